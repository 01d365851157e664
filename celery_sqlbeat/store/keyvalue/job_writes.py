"""Write jobs, delete them, cancel their runs, and add attempts that wait for a beat."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import (
    CANCELLED_BY_HAND,
    AddJob,
    CancelRun,
    DeleteIdleJob,
    DeleteJob,
    JobWrite,
    JobWriteResult,
    NewRun,
    QuarantineJob,
    RepairJob,
)
from celery_sqlbeat.model.lifecycle import CANCELLED, Ending
from celery_sqlbeat.store.keyvalue.job_rows import add, change, enqueue, keep_up
from celery_sqlbeat.store.keyvalue.reading import read_rows
from celery_sqlbeat.store.keyvalue.rows import Key, Place, Row, Scan
from celery_sqlbeat.store.keyvalue.tables import JOB, NAME, RUN, STORE, held_index
from celery_sqlbeat.store.keyvalue.units import View, carry_out, parts, sure
from celery_sqlbeat.store.records import Recorded, Release

Finish = Callable[[Sequence[Release]], Recorded]
Right = tuple[str, str, str, int]
"""A job, a run, its claim and its fence."""


class JobWriter:
    """What a store does to jobs."""

    def __init__(self, place: Place, finish: Finish, ids: Ids | None = None) -> None:
        """Write to a place. `finish` ends runs as a worker that holds them may."""
        self._place = place
        self._finish = finish
        self._ids = ids or Ids()

    def write_jobs(self, writes: Sequence[JobWrite], together: bool = False) -> JobWriteResult:
        """Write jobs that are as their writes expect, at most one write for each name."""
        names = {write.job_name for write in writes}
        rows = [write for write in writes if not isinstance(write, CancelRun)]
        try:
            done = self._write_together(rows) if together else self._write_each(rows)
        except _Conflicts as conflicts:
            return JobWriteResult(set(), names - conflicts.done)
        for write in writes:
            if isinstance(write, CancelRun) and self._cancel(write):
                done.add(write.job_name)
        self._delete([write for write in rows if isinstance(write, DeleteJob) and write.job_name in done])
        return JobWriteResult(done, names - done)

    def enqueue(self, runs: Sequence[NewRun]) -> set[str]:
        """Add attempts, which wait for a beat; return their ids."""

        def keys(run: NewRun) -> list[Key]:
            return [(JOB, run.job_id), (RUN, run.run_id), *([(RUN, run.letter.run_id)] if run.letter else [])]

        made = sure(carry_out(self._place, runs, keys, enqueue))
        return {run_id for run_id in made if run_id is not None}

    def _write_each(self, writes: Sequence[JobWrite]) -> set[str]:
        """Write each job by itself; return the names of those that were as expected."""
        done = sure(carry_out(self._place, writes, _keys, self._write))
        return {write.job_name for write, is_done in zip(writes, done, strict=True) if is_done}

    def _write_together(self, writes: Sequence[JobWrite]) -> set[str]:
        """Write all jobs at once, or raise what was as expected."""
        names = read_rows(self._place, NAME, [write.job_name for write in writes])
        known: list[Key] = [(JOB, row["job_id"]) for row in names.values() if row.get("job_id")]

        def write_all(view: View, _: None) -> set[str]:
            done = {write.job_name for write in writes if self._write(view, write)}
            if len(done) < len(writes):
                raise _Conflicts(done)
            return done

        def keys(_: None) -> list[Key]:
            return [*known, *(key for write in writes for key in _keys(write))]

        return sure(carry_out(self._place, [None], keys, write_all))[0]

    def _write(self, view: View, write: JobWrite) -> bool:
        if isinstance(write, AddJob):
            return add(view, write, self._ids.random_id())
        if isinstance(write, RepairJob | QuarantineJob | DeleteIdleJob):
            return keep_up(view, write)
        return not isinstance(write, CancelRun) and change(view, write)

    def _ids_of(self, writes: Sequence[JobWrite]) -> dict[str, str]:
        """Return the ids of jobs, by name."""
        names = read_rows(self._place, NAME, [write.job_name for write in writes])
        return {name: row["job_id"] for name, row in names.items() if row.get("job_id")}

    def _cancel(self, write: CancelRun) -> bool:
        """Cancel the run that holds a job."""
        jobs = read_rows(self._place, JOB, list(self._ids_of([write]).values()))
        return bool(self._end(_leases(jobs), write.reason))

    def _delete(self, writes: Sequence[DeleteJob]) -> None:
        """Delete jobs whose deletion is asked for, once their runs have ended, or been ended.

        They can start no other run now; without this a beat deletes each once its runs have ended.
        """
        ids = self._ids_of(writes)
        forced = read_rows(self._place, JOB, [ids[w.job_name] for w in writes if w.force and w.job_name in ids])
        doomed = {job_id: row for job_id, row in forced.items() if row.get("delete_requested")}
        self._end(_leases(doomed) | self._held(list(doomed)), CANCELLED_BY_HAND)
        self._write_each([DeleteIdleJob(name, job_id) for name, job_id in ids.items()])

    def _held(self, job_ids: Sequence[str]) -> set[Right]:
        """Return the rights of the runs of jobs that overlap others."""
        rights: set[Right] = set()
        for part in parts(job_ids):
            scanned = self._place.read(scans=[Scan(held_index(job_id)) for job_id in part]).scanned
            runs = read_rows(self._place, RUN, [run_id for held in scanned for run_id, _ in held.ids])
            rights |= {(run["job_id"], run_id, run["claim_id"], run["fence"]) for run_id, run in runs.items()}
        return rights

    def _end(self, rights: Iterable[Right], reason: str) -> set[str]:
        releases = [Release(*right, Ending(CANCELLED, reason)) for right in sorted(rights)]
        return self._finish(releases).done if releases else set()


def _leases(jobs: Mapping[str, Row]) -> set[Right]:
    """Return the rights of the runs that hold jobs."""
    return {
        (job_id, row["run_id"], row["claim_id"], row["fence"])
        for job_id, row in jobs.items()
        if row.get("locked_by") is not None and row.get("run_id") is not None
    }


class _Conflicts(Exception):  # never leaves this module
    def __init__(self, done: set[str]) -> None:
        super().__init__(done)
        self.done = done


def _keys(write: JobWrite) -> list[Key]:
    """Return the rows that a write reads in any case."""
    if isinstance(write, RepairJob | QuarantineJob):
        return [(JOB, write.job_id)]
    if isinstance(write, DeleteIdleJob):
        return [(JOB, write.job_id), (NAME, write.job_name)]
    return [(NAME, write.job_name), *([STORE] if isinstance(write, AddJob) else [])]
