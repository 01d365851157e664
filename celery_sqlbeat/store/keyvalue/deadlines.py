"""Tell when some beat has something to do, and which leases have ended. Nothing here writes."""

from collections.abc import Iterator
from datetime import datetime

from celery_sqlbeat.model import Claimable, HeldLease, ReplaceableRun
from celery_sqlbeat.store.keyvalue.due import Scope, is_free, scope_of
from celery_sqlbeat.store.keyvalue.rows import Place, Row, Scan
from celery_sqlbeat.store.keyvalue.tables import (
    DUE_ONE_OFFS,
    HELD,
    JOB,
    LEASES,
    ONE_OFF_LEASES,
    OUTBOX,
    OWNERS,
    PLANNED,
    RUN,
    due_index,
    instant,
    micros,
    record_of,
    replace_index,
    seen,
)
from celery_sqlbeat.store.records import ALL_JOBS, Expired, NextDeadlines, Pulse

_FIRST_PAGE, _GROWTH = 16, 4  # entries of an index that holds others' jobs, too
_LEASED = (LEASES, ONE_OFF_LEASES)
_SET = 1  # the least score of an instant; 0 is that of none


class Deadlines:
    """When there is work in one place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._owners: list[str] = []
        """The apps that the last pulse knew of."""

    def pulse(self) -> Pulse:
        """Return the place's clock, the counter of changes, and when the next row is due.

        What was due before, or ended, may be for nobody here, and hides nothing: of that only
        one-offs are told, since who submits them counts no change.
        """
        owners: list[str] | None = None
        while owners != self._owners:
            owners = self._owners
            jobs = [due_index(owner, is_coded) for owner in (None, *owners) for is_coded in (False, True)] + [LEASES]
            scans = [Scan(name, low=_SET, limit=1) for name in (DUE_ONE_OFFS, ONE_OFF_LEASES, *jobs)]
            snapshot = self._place.read(scans=[Scan(OWNERS), *scans])
            self._owners = [owner for owner, _ in snapshot.scanned[0].ids]
        _, due, ends, *rest = snapshot.scanned
        one_offs, others = due.ids + ends.ids, [entry for found in rest for entry in found.ids]
        now = snapshot.now
        if any(at <= now for _, at in others):
            later = self._place.read(scans=[Scan(name, low=now + 1, limit=1) for name in jobs]).scanned
            others = [entry for found in later for entry in found.ids]
        return Pulse(instant(now), snapshot.counter, _first(one_offs + others))

    def next_deadlines(self, claimable: Claimable = ALL_JOBS, after: datetime | None = None) -> NextDeadlines:
        """Return the earliest instants at which some beat has something to do."""
        scope = scope_of(self._place, claimable)
        low = None if after is None else micros(after) + 1
        due: list[str] = []
        mixed: list[str] = []
        for name in scope.due_indexes():
            (due if scope.takes_all(name) else mixed).append(name)
        replace = [replace_index(owner) for owner in scope.owners]
        snapshot = self._place.read(
            scans=[
                *(Scan(name, low=_SET, limit=1) for name in _LEASED),
                *(Scan(name, only_count=True) for name in _LEASED),
                Scan(HELD, limit=1),
                Scan(PLANNED, limit=1),
                Scan(OUTBOX, low=low, limit=1),
                *(Scan(name, low=low, limit=1) for name in mixed),
                *(Scan(name, low=low, limit=1) for name in due),
                *(Scan(name, limit=1) for name in replace),
            ]
        )
        leases, one_off_leases, locked, one_offs_locked, held, planned, outbox, *others = snapshot.scanned
        inhabited = [name for name, scanned in zip(mixed, others, strict=False) if scanned.ids]
        due_at = [at for scanned in others[len(mixed) : len(mixed) + len(due)] for _, at in scanned.ids]
        due_at += [at for at in (self._first_job(name, low, scope) for name in inhabited) if at is not None]
        return NextDeadlines(
            now=instant(snapshot.now),
            due_at=seen(min(due_at, default=None)),
            lease_ends_at=_first(leases.ids + one_off_leases.ids),
            planned_at=_first(self._planned(snapshot.now) if _is_past(planned.ids, snapshot.now) else planned.ids),
            held_ends_at=_first(held.ids),
            outbox_at=seen(self._first_waiting(low, scope)) if outbox.ids else None,
            changes=snapshot.counter,
            replace_at=_first([entry for scanned in others[len(mixed) + len(due) :] for entry in scanned.ids]),
            locked=locked.total + one_offs_locked.total,
        )

    def expired(self, batch_size: int, owner: str = "") -> Expired:
        """Return leases that have ended, and runs that hold jobs although the next slot came."""
        replace = [replace_index(name) for name in scope_of(self._place, Claimable(owner)).owners]
        scans = [Scan(name, low=_SET, limit=batch_size) for name in (*_LEASED, HELD, *replace)]
        snapshot = self._place.read(scans=scans)
        jobs_leased, one_offs_leased, held, *rest = (
            [row_id for row_id, at in s.ids if at <= snapshot.now] for s in snapshot.scanned
        )
        leased = jobs_leased + one_offs_leased
        replaceable = [job_id for ids in rest for job_id in ids][:batch_size]
        if not leased and not held and not replaceable:
            return Expired([], [])
        keys = [*((RUN, run_id) for run_id in held), *((JOB, job_id) for job_id in dict.fromkeys(leased + replaceable))]
        snapshot = self._place.read(keys)
        rows = {key: read.row for key, read in snapshot.rows.items() if read.row is not None}
        jobs = [(job_id, rows[JOB, job_id]) for job_id in leased if (JOB, job_id) in rows]
        runs = self._runs({job["run_id"] for _, job in jobs if job.get("run_id") is not None})
        now = snapshot.now
        leases = [
            _leased(job_id, job, runs[job["run_id"]], now)
            for job_id, job in jobs
            if _is_over(job, "locked_by", now) and job.get("run_id") in runs
        ]
        overlapping = [(run_id, rows[RUN, run_id]) for run_id in held if (RUN, run_id) in rows]
        leases += [_overlapping(run_id, run, now) for run_id, run in overlapping if _is_over(run, "held_by", now)]
        free = [(job_id, rows[JOB, job_id]) for job_id in replaceable if (JOB, job_id) in rows]
        return Expired(
            leases[:batch_size], [_replaceable(job_id, job, now) for job_id, job in free if is_replaceable(job, now)]
        )

    def _runs(self, run_ids: set[str]) -> dict[str, Row]:
        if not run_ids:
            return {}
        read = self._place.read([(RUN, run_id) for run_id in sorted(run_ids)]).rows
        return {key[1]: versioned.row for key, versioned in read.items() if versioned.row is not None}

    def _planned(self, now: int) -> list[tuple[str, int]]:
        return self._place.read(scans=[Scan(PLANNED, low=now + 1, limit=1)]).scanned[0].ids

    def _first_job(self, index_name: str, low: int | None, scope: Scope) -> int | None:
        """Return when the first job of an index is due that this beat may claim."""
        for ids in self._pages(index_name, low):
            rows = self._place.read([(JOB, job_id) for job_id, _ in ids]).rows
            for job_id, at in ids:
                row = rows[JOB, job_id].row
                if row is not None and scope.has(row):
                    return at
        return None

    def _first_waiting(self, low: int | None, scope: Scope) -> int | None:
        """Return since when the first attempt in the outbox waits that this beat may take up."""
        for ids in self._pages(OUTBOX, low):
            runs = self._runs({run_id for run_id, _ in ids})
            jobs = self._place.read([(JOB, job_id) for job_id in {run["job_id"] for run in runs.values()}]).rows
            for run_id, at in ids:
                row = jobs[JOB, runs[run_id]["job_id"]].row if run_id in runs else None
                if row is not None and is_free(row) and scope.has(row):
                    return at
        return None

    def _pages(self, index_name: str, low: int | None) -> Iterator[list[tuple[str, int]]]:
        """Yield the entries of an index, more each time; one that moved may come again."""
        size, known = _FIRST_PAGE, set[tuple[str, int]]()
        while True:
            ids = self._place.read(scans=[Scan(index_name, low=low, limit=size)]).scanned[0].ids
            if new := [entry for entry in ids if entry not in known]:
                yield new
            if len(ids) < size:
                return
            known.update(new)
            size *= _GROWTH


def is_replaceable(job: Row, now: int) -> bool:
    """Return whether a job's next slot has come, and its run is to make room for it."""
    at = job.get("replace_at")
    return (
        job.get("locked_by") is not None
        and job.get("run_id") is not None
        and bool(job.get("enabled"))
        and job.get("quarantine") is None
        and at is not None
        and at <= now
    )


def _is_over(row: Row, holder: str, now: int) -> bool:
    return row.get(holder) is not None and row.get("lease_ends_at") is not None and row["lease_ends_at"] <= now


def _is_past(ids: list[tuple[str, int]], now: int) -> bool:
    return bool(ids) and ids[0][1] <= now


def _first(ids: list[tuple[str, int]]) -> datetime | None:
    return seen(min((at for _, at in ids), default=None))


def _leased(job_id: str, job: Row, run: Row, now: int) -> HeldLease:
    facts = {
        "job_id": job_id,
        "run_id": job["run_id"],
        "job_name": run["job_name"],
        "claimed_at": seen(job.get("claimed_at")),
        "published_at": seen(job.get("published_at")),
        "locked_at": seen(job.get("locked_at")),
        "started": job.get("started_retry") is not None,
        "republishes": job.get("republishes", 0),
        "now": instant(now),
    }
    return record_of(HeldLease, run, facts | {field: job.get(field) for field in _OF_THE_JOB})


def _overlapping(run_id: str, run: Row, now: int) -> HeldLease:
    facts = {"run_id": run_id, "locked_at": seen(run.get("claimed_at")), "started": True, "republishes": 0}
    return record_of(HeldLease, run, {**facts, "now": instant(now)} | dict.fromkeys(_OF_THE_JOB))


_OF_THE_JOB = ("task_name", "args", "kwargs", "options", "code_key", "code_owner", "policies")


def _replaceable(job_id: str, job: Row, now: int) -> ReplaceableRun:
    started = int(job.get("started_retry") is not None)
    return record_of(ReplaceableRun, job, {"job_id": job_id, "started": started, "now": instant(now)})
