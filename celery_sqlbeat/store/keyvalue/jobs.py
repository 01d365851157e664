"""What is asked about jobs: pages of them, how many there are, which of them run."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice
from operator import attrgetter

from celery_sqlbeat.config.validation import is_text
from celery_sqlbeat.model import JobCounts, JobRecord, RunningJob
from celery_sqlbeat.model.lifecycle import RUNNING, SKIPPED
from celery_sqlbeat.store.keyvalue.reading import read_rows
from celery_sqlbeat.store.keyvalue.rows import Place, Scan
from celery_sqlbeat.store.keyvalue.tables import (
    DEAD,
    DISABLED,
    ENDED_STATES,
    HELD,
    JOB,
    LEASES,
    NAME,
    NAMES,
    ONE_OFF_LEASES,
    OPEN,
    OWNERS,
    QUARANTINED,
    REPAIR,
    RETRYING,
    RUN,
    after,
    disabled_index,
    due_index,
    instant,
    owned_index,
    record_of,
    seen,
    slots_index,
    task_index,
)
from celery_sqlbeat.store.keyvalue.units import parts
from celery_sqlbeat.store.records import FIRST_ID, JobQuery

_NAME = attrgetter("job_name")


class JobQuestions:
    """What a store is asked about jobs."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def jobs(self, query: JobQuery) -> dict[str, JobRecord]:
        """Return jobs by name; a page is in the order that the query names."""
        if query.names is not None:
            names = [name for name in query.names if is_text(name)]
            records = list(self._of_one_offs(names) if query.one_offs else self._of_names(names))
        elif query.needing_repair_of is not None:
            records = list(islice(self._needing_repair(query, query.needing_repair_of), query.page_size))
        elif query.only_quarantined:
            records = self._by_name(self._of_indexes([QUARANTINED]), query)
        elif query.of_tasks is not None:
            indexes = [task_index(task) for task in sorted(set(query.of_tasks))]
            records = self._by_name(self._of_indexes(indexes), query)
        else:
            records = list(islice(self._all(query), query.page_size))
        return {record.job_name: record for record in records}

    def counts(self, since_seconds: float = 0.0) -> JobCounts:
        """Return how many jobs there are of each kind, and attempts of the last seconds' slots."""
        indexes = (NAMES, DISABLED, LEASES, RETRYING, QUARANTINED, DEAD)
        read = self._place.read(scans=[*(Scan(name, only_count=True) for name in indexes), Scan(OWNERS)])
        total, disabled, held, retrying, quarantined, dead = (scanned.total for scanned in read.scanned[:-1])
        owners = [owner for owner, _ in read.scanned[-1].ids]
        due, due_at = self._due(read.now, owners)
        return JobCounts(
            total=total,
            active=total - disabled,
            held=held,
            retrying=retrying,
            quarantined=quarantined,
            due=due,
            due_at=seen(due_at),
            dead=dead,
            now=instant(read.now),
            states=self._states(after(read.now, -since_seconds)) if since_seconds else {},
            owners=self._enabled_of(owners),
        )

    def running(self, least_seconds: float, most: int) -> list[RunningJob]:
        """Return jobs whose run goes on for at least so many seconds, oldest run first."""
        read = self._place.read(scans=[Scan(name) for name in (LEASES, ONE_OFF_LEASES, HELD)])
        leased, one_offs, held = ([row_id for row_id, _ in scanned.ids] for scanned in read.scanned)
        jobs = read_rows(self._place, JOB, leased + one_offs)
        run_ids = {row["run_id"] for row in jobs.values() if row.get("run_id") is not None} | set(held)
        runs = read_rows(self._place, RUN, sorted(run_ids))
        until = after(read.now, -least_seconds)
        old = [(run_id, run) for run_id, run in runs.items() if run["state"] == RUNNING and run["started_at"] <= until]
        old.sort(key=lambda item: (item[1]["started_at"], item[0]))
        jobs |= read_rows(self._place, JOB, sorted({run["job_id"] for _, run in old} - jobs.keys()))
        now = instant(read.now)
        return [
            record_of(
                RunningJob,
                jobs[run["job_id"]],
                {
                    "job_id": run["job_id"],
                    "run_id": run_id,
                    "worker": run.get("started_by"),
                    "started_at": instant(run["started_at"]),
                    "now": now,
                },
            )
            for run_id, run in old
            if run["job_id"] in jobs
        ][:most]

    def _of_names(self, names: Sequence[str]) -> Iterator[JobRecord]:
        """Return the jobs of these names, in their order."""
        known = read_rows(self._place, NAME, names)
        yield from self._of_ids([known[name]["job_id"] for name in names if known.get(name, {}).get("job_id")])

    def _of_one_offs(self, run_ids: Sequence[str]) -> Iterator[JobRecord]:
        known = read_rows(self._place, JOB, run_ids)
        return self._of_ids([run_id for run_id, row in known.items() if row.get("one_off")])

    def _of_ids(self, ids: Iterable[str]) -> Iterator[JobRecord]:
        for part in parts(list(ids)):
            read = self._place.read([(JOB, job_id) for job_id in part])
            for (_, job_id), versioned in read.rows.items():
                if versioned.row is not None:
                    yield record_of(JobRecord, versioned.row, {"job_id": job_id, "now": instant(read.now)})

    def _of_indexes(self, names: Collection[str]) -> Iterator[JobRecord]:
        read = self._place.read(scans=[Scan(name) for name in names])
        return self._of_ids(row_id for scanned in read.scanned for row_id, _ in scanned.ids)

    def _by_name(self, records: Iterable[JobRecord], query: JobQuery) -> list[JobRecord]:
        rest = (record for record in records if record.job_name > query.after_name)
        return nsmallest(query.page_size, rest, key=_NAME)

    def _all(self, query: JobQuery) -> Iterator[JobRecord]:
        for names in self._pages(NAMES, query.after_name or None, query.page_size):
            yield from self._of_names(names)

    def _needing_repair(self, query: JobQuery, owner: str) -> Iterator[JobRecord]:
        after_id = None if query.after_id == FIRST_ID else query.after_id
        for ids in self._pages(REPAIR, after_id, query.page_size):
            for record in self._of_ids(ids):
                if record.code_owner is None or record.delete_requested or owner in ("", record.code_owner):
                    yield record

    def _pages(self, index_name: str, after_id: str | None, size: int) -> Iterator[list[str]]:
        """Return pages of an index whose scores are all the same."""
        while True:
            read = self._place.read(scans=[Scan(index_name, limit=size, after=after_id)])
            if ids := [row_id for row_id, _ in read.scanned[0].ids]:
                yield ids
                after_id = ids[-1]
            if len(ids) < size:
                return

    def _due(self, now: int, owners: Sequence[str]) -> tuple[int, int | None]:
        """Return how many jobs are due, and since when the longest waiting one is."""
        indexes = [due_index(owner, is_coded) for owner in (None, *owners) for is_coded in (False, True)]
        scans = [Scan(name, high=now, only_count=True) for name in indexes]
        read = self._place.read(scans=[*scans, *(Scan(name, high=now, limit=1) for name in indexes)])
        counted, earliest = read.scanned[: len(indexes)], read.scanned[len(indexes) :]
        first = min((at for scanned in earliest for _, at in scanned.ids), default=None)
        return sum(scanned.total for scanned in counted), first

    def _enabled_of(self, owners: Sequence[str]) -> dict[str, int]:
        scans = [Scan(index(owner), only_count=True) for owner in owners for index in (owned_index, disabled_index)]
        totals = [scanned.total for scanned in self._place.read(scans=scans).scanned] if scans else []
        enabled = [all_jobs - disabled for all_jobs, disabled in zip(totals[::2], totals[1::2], strict=True)]
        return {owner: jobs for owner, jobs in zip(owners, enabled, strict=True) if jobs}

    def _states(self, since: int) -> dict[str, int]:
        """Return how many attempts of the slots after an instant are in each state."""
        states = [state for state in ENDED_STATES if state != SKIPPED]
        counted = [Scan(slots_index(state), low=since + 1, only_count=True) for state in states]
        listed = [Scan(slots_index(state), low=since + 1) for state in (SKIPPED, OPEN)]
        read = self._place.read(scans=[*counted, *listed])
        tally = {state: scanned.total for state, scanned in zip(states, read.scanned, strict=False)}
        for scanned in read.scanned[-2:]:
            for row in read_rows(self._place, RUN, [run_id for run_id, _ in scanned.ids]).values():
                tally[row["state"]] = tally.get(row["state"], 0) + row.get("slot_count", 1)
        return {state: slots for state, slots in tally.items() if slots}
