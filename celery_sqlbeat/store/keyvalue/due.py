"""Read what is due, for a beat that may claim it. Nothing here writes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from celery_sqlbeat.model import FINISHED, Attempt, Claimable, DueBatch, DueJob
from celery_sqlbeat.model.lifecycle import LONGEST_QUEUED_SECONDS
from celery_sqlbeat.store.keyvalue.rows import Place, Row, Scan, Snapshot
from celery_sqlbeat.store.keyvalue.tables import (
    DUE_ONE_OFFS,
    JOB,
    OUTBOX,
    OWNERS,
    RUN,
    after,
    due_index,
    instant,
    open_index,
    record_of,
)
from celery_sqlbeat.store.keyvalue.units import parts
from celery_sqlbeat.store.records import ALL_JOBS, EVERY_SHARE

_GROWTH = 4  # of a look into an index whose first entries are not for this beat


class Scope:
    """The jobs that a beat may claim, as far as their rows tell."""

    def __init__(self, claimable: Claimable, owners: Iterable[str]) -> None:
        self._claimable = claimable
        self._code_keys = frozenset(claimable.code_keys)
        self._other_entries = frozenset(claimable.other_entries)
        self.owners: list[str | None] = [None, *owners]
        """Of its jobs."""

    def due_indexes(self) -> list[str]:
        """Return the indexes that its due jobs stand in."""
        plain = [DUE_ONE_OFFS, *(due_index(owner) for owner in self.owners)]
        return plain + [due_index(owner, is_coded=True) for owner in self.owners] if self._code_keys else plain

    def has(self, row: Row) -> bool:
        """Return whether a job is among them."""
        owner, code_key = row.get("code_owner"), row.get("code_key")
        if code_key is not None and code_key not in self._code_keys:
            return False
        if owner is None:
            return True
        return self._claimable.owner in ("", owner) and row["job_name"] not in self._other_entries

    def includes(self, row: Row) -> bool:
        """Return whether a job is among them by everything that the beat knows."""
        return self.has(row) and self._claimable.includes(row["job_name"], row.get("code_owner"))

    def takes_all(self, index_name: str) -> bool:
        """Return whether every job of an index of due jobs is among them."""
        return index_name in (DUE_ONE_OFFS, due_index(None)) or (
            not self._other_entries and index_name.startswith("due:")
        )


def scope_of(place: Place, claimable: Claimable) -> Scope:
    """Return the scope of a beat; one that claims for all apps asks which there are."""
    if claimable.owner:
        return Scope(claimable, [claimable.owner])
    return Scope(claimable, [owner for owner, _ in place.read(scans=[Scan(OWNERS)]).scanned[0].ids])


def is_free(row: Row) -> bool:
    """Return whether a job may take up what waits in the outbox."""
    return (
        row.get("locked_by") is None
        and row.get("quarantine") is None
        and (bool(row.get("enabled")) or row.get("disabled_reason") == FINISHED)
    )


class DueReader:
    """Reads due jobs of one place."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def due(
        self, batch_size: int, claimable: Claimable = ALL_JOBS, share: str = EVERY_SHARE, besides: Collection[str] = ()
    ) -> DueBatch:
        """Read due jobs, of extra slots first, and the attempts that their next ones continue."""
        scope = scope_of(self._place, claimable)

        def may_have(job_id: str) -> bool:
            return (share == EVERY_SHARE or job_id[-1].lower() in share) and job_id not in besides

        # Of a share the others' jobs are read as well, but not their rows.
        size = batch_size * len(EVERY_SHARE) // max(len(set(share)), 1) + len(besides)
        batch = _Batch(self._place, {OUTBOX: batch_size} | dict.fromkeys(scope.due_indexes(), size))
        # The outbox first: the schedule of a job that runs longer than its interval is due whenever
        # it is free. One slot of a job at a time; the others wait until it is free.
        picked: dict[str, str | None] = {}
        for run_id, job_id, row in batch.outbox():
            if job_id not in picked and may_have(job_id) and is_free(row) and scope.includes(row):
                picked[job_id] = run_id
                if len(picked) == batch_size:
                    return batch.filled(picked)
        for job_id, row in batch.due(may_have):
            if job_id not in picked and _is_due(row, batch.now) and scope.includes(row):
                picked[job_id] = None
                if len(picked) == batch_size:
                    break
        return batch.filled(picked)


def _is_due(row: Row, now: int) -> bool:
    if not row.get("enabled") or row.get("locked_by") is not None or row.get("quarantine") is not None:
        return False
    at = row["retry_at"] if row.get("retry_at") is not None else row.get("next_run_time")
    return at is not None and at <= now


class _Batch:
    """Reads indexes from their beginning on, and the rows of what stands there."""

    def __init__(self, place: Place, sizes: Mapping[str, int]) -> None:
        """Read so many entries of each index; more where those are not enough."""
        self._place = place
        self._sizes = dict(sizes)
        self._first = place.read(scans=[Scan(name, limit=size) for name, size in sizes.items()])
        self._jobs: dict[str, Row | None] = {}
        self.now = self._first.now
        """The clock at the last read."""

    def outbox(self) -> Iterator[tuple[str, str, Row]]:
        """Yield the attempts that are due, with the ids and rows of their jobs."""
        for ids in self._new_ids([OUTBOX]):
            runs = _present(self._place.read([(RUN, run_id) for run_id in ids]), RUN)
            self._read_jobs(run["job_id"] for run in runs.values())
            for run_id, run in runs.items():
                row = self._jobs[run["job_id"]]
                if run.get("due_at") is not None and row is not None:
                    yield run_id, run["job_id"], row

    def due(self, may_have: Callable[[str], bool]) -> Iterator[tuple[str, Row]]:
        """Yield the jobs that are due and that the beat may have by their ids, earliest first."""
        for ids in self._new_ids([name for name in self._sizes if name != OUTBOX]):
            for part in parts([job_id for job_id in ids if may_have(job_id)]):
                self._read_jobs(part)
                for job_id in part:
                    row = self._jobs[job_id]
                    if row is not None:
                        yield job_id, row

    def _new_ids(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield what is due in these indexes, earliest first, and then what stands behind it."""
        places = {name: at for at, name in enumerate(self._sizes)}
        snapshot, scanned = self._first, [self._first.scanned[places[name]] for name in names]
        known: set[str] = set()
        while True:
            self.now = max(self.now, snapshot.now)
            entries = sorted((at, row_id) for answer in scanned for row_id, at in answer.ids)
            new = [row_id for at, row_id in entries if at <= snapshot.now and row_id not in known]
            if new:
                yield new
            if not any(
                len(answer.ids) == self._sizes[name] and answer.ids[-1][1] <= snapshot.now
                for name, answer in zip(names, scanned, strict=True)
            ):
                return
            known.update(new)
            for name in names:
                self._sizes[name] *= _GROWTH
            snapshot = self._place.read(scans=[Scan(name, limit=self._sizes[name]) for name in names])
            scanned = snapshot.scanned

    def _read_jobs(self, job_ids: Iterable[str]) -> None:
        """Read jobs that were not read yet."""
        if new := [job_id for job_id in dict.fromkeys(job_ids) if job_id not in self._jobs]:
            snapshot = self._place.read([(JOB, job_id) for job_id in new])
            self.now = max(self.now, snapshot.now)
            self._jobs |= {key[1]: versioned.row for key, versioned in snapshot.rows.items()}

    def filled(self, picked: Mapping[str, str | None]) -> DueBatch:
        """Return these jobs, each with the attempt in the outbox that it stands for, if any."""
        rows: dict[str, Row] = {job_id: row for job_id in picked if (row := self._jobs[job_id]) is not None}
        waiting = {job_id: run_id or rows[job_id].get("retry_run_id") for job_id, run_id in picked.items()}
        prior = {run_id for run_id in waiting.values() if run_id is not None}
        prior |= {row["run_id"] for row in rows.values() if row.get("run_id") is not None}
        attempts: dict[str, Attempt] = {}
        open_runs: Mapping[str, int] = {}
        counted = [job_id for job_id, row in rows.items() if row.get("is_parallel")]
        if prior or counted:
            sent_after = after(self.now, -LONGEST_QUEUED_SECONDS) + 1
            scans = [Scan(open_index(job_id), low=sent_after, only_count=True) for job_id in counted]
            snapshot = self._place.read([(RUN, run_id) for run_id in sorted(prior)], scans)
            open_runs = {job_id: scanned.total for job_id, scanned in zip(counted, snapshot.scanned, strict=True)}
            for run_id, run in _present(snapshot, RUN).items():
                attempts[run_id] = record_of(Attempt, run, {"run_id": run_id})
        now = instant(self.now)
        jobs = [
            record_of(
                DueJob,
                rows[job_id],
                {
                    "job_id": job_id,
                    "left_run_id": rows[job_id].get("run_id"),
                    "run_id": waiting[job_id],
                    "extra": int(run_id is not None),
                    "now": now,
                    "open_runs": open_runs.get(job_id, 0),
                },
            )
            for job_id, run_id in picked.items()
        ]
        return DueBatch(jobs, attempts)


def _present(snapshot: Snapshot, table: str) -> dict[str, Row]:
    return {key[1]: read.row for key, read in snapshot.rows.items() if key[0] == table and read.row is not None}
