"""What an administrator does to the database: define, pause, run, delete, look back, replay, purge.

Every change bumps the change counter in its own transaction, so that beats notice it.
"""

from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any

from celery_sqlbeat.config.validation import is_text
from celery_sqlbeat.model import (
    CANCELLED_BY_HAND,
    MANUAL,
    PAUSED,
    AddJob,
    CancelRun,
    DeleteJob,
    JobChange,
    JobCounts,
    JobRecord,
    JobUpkeep,
    JobWrite,
    JobWriteResult,
    NewRun,
    PauseJob,
    ResumeJob,
    RunningJob,
    RunRecord,
    SealJob,
    UpdateJob,
)
from celery_sqlbeat.model.lifecycle import CANCELLED, Ending
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.store.purges import DeadLetters, OldKeys, OldNodes, OldRuns, Purged, WholeNamespace
from celery_sqlbeat.store.records import (
    ANY_VERSION,
    FIRST_ID,
    LAST_ID,
    Guard,
    JobQuery,
    Release,
    RunQuery,
)
from celery_sqlbeat.store.sql.claim_batch import without_mark
from celery_sqlbeat.store.sql.engine import Conflict, Database, Part
from celery_sqlbeat.store.sql.purge import Purger
from celery_sqlbeat.store.sql.runs import delete_free, release
from celery_sqlbeat.store.sql.session import Row, Rows, Session
from celery_sqlbeat.store.sql.upkeep import write_upkeep

LAST_INSTANT = datetime(9998, 12, 31, tzinfo=timezone.utc)


class Jobs(Part):
    """The verbs of administrators."""

    def __init__(self, database: Database, namespace: str = "default") -> None:
        super().__init__(database, namespace)
        self._purger = Purger(database, namespace)

    def jobs(self, query: JobQuery) -> dict[str, JobRecord]:
        """Return jobs by name; a page is in the order of the names."""
        page: dict[str, Any] = {"namespace": self.namespace, "page_size": query.page_size}
        if query.names is not None:
            names = [(name,) for name in query.names if is_text(name)]  # others are in no database
            rows = (
                self.database.read("read_jobs", names, namespace=self.namespace, one_off=int(query.one_offs))
                if names
                else []
            )
        elif query.of_tasks is not None:
            tasks = [(task,) for task in query.of_tasks]
            rows = self.database.read("read_jobs_of_tasks", tasks, **page) if tasks else []
        elif query.needing_repair_of is not None:
            page |= {"code_owner": query.needing_repair_of, "after_id": query.after_id}
            rows = self.database.read("read_rows_needing_repair", **page)
        else:
            block = "list_quarantined" if query.only_quarantined else "list_jobs"
            rows = self.database.read(block, after_name=query.after_name, **page)
        return {row[1]: without_mark(JobRecord._make(row)) for row in rows}

    def counts(self, since_seconds: float = 0.0) -> JobCounts:
        """Return how many jobs there are of each kind, and attempts of the last seconds' slots."""
        scope = {"namespace": self.namespace}
        counts = self.database.read("count_jobs", **scope)[0]
        states = self.database.read("count_states", since_seconds=since_seconds, **scope) if since_seconds else []
        owners = {owner: int(jobs) for owner, jobs in self.database.read("read_owners", **scope)}
        return JobCounts(*counts)._replace(states={state: int(slots) for state, slots in states}, owners=owners)

    def running(self, least_seconds: float, most: int) -> list[RunningJob]:
        """Return jobs whose run goes on for at least so many seconds, oldest run first."""
        scope = {"namespace": self.namespace, "since_seconds": least_seconds, "page_size": most}
        return [RunningJob._make(row) for row in self.database.read("read_running", **scope)]

    def write_jobs(self, writes: Sequence[JobWrite], together: bool = False) -> JobWriteResult:
        """Write jobs that are as their writes expect, at most one write for each name."""
        upkeep = [write for write in writes if isinstance(write, JobUpkeep)]
        holder = ("read_lease_holder",)
        cancelled = {
            write.job_name: self._cancel(write.job_name, holder, write.reason)
            for write in writes
            if isinstance(write, CancelRun)
        }
        result = write_upkeep(self.database, self.namespace, upkeep)
        result.done.update(name for name, is_done in cancelled.items() if is_done)
        result.conflicts.update(name for name, is_done in cancelled.items() if not is_done)
        own = self._write_by_hand([write for write in writes if isinstance(write, AddJob | JobChange)], together)
        return JobWriteResult(result.done | own.done, result.conflicts | own.conflicts, result.refused)

    def _write_by_hand(self, writes: Sequence[AddJob | JobChange], together: bool) -> JobWriteResult:
        if not writes:
            return JobWriteResult(set(), set())
        names = {write.job_name for write in writes}

        def work(session: Session) -> tuple[set[str], list[tuple[DeleteJob, Rows]]]:
            done = self._add(session, [write for write in writes if isinstance(write, AddJob)])
            held: list[tuple[DeleteJob, Rows]] = []
            for write in writes:
                rows = [] if isinstance(write, AddJob) else self._change(session, write)
                if rows:
                    done.add(write.job_name)
                if rows and isinstance(write, DeleteJob) and not delete_free(session, self.namespace, rows):
                    held.append((write, rows))
            if together and done != names:
                raise _Conflicts(done)  # out of the transaction, which undoes it
            if done:
                session.fetch("bump_changes", namespace=self.namespace)
            return done, held

        try:
            done, held = self.database.write(work)
        except _Conflicts as conflicts:
            return JobWriteResult(set(), names - conflicts.done)
        for write, rows in held:
            # Now that it can start no other run; without us a beat deletes the row once the run has
            # ended.
            if write.force:
                self._cancel(write.job_name, ("read_lease_holder", "read_held"), CANCELLED_BY_HAND)
            # Where an overlapping run has ended meanwhile, neither has seen the other.
            self.database.write(partial(delete_free, namespace=self.namespace, job_ids=rows))
        return JobWriteResult(done, names - done)

    def _add(self, session: Session, additions: Sequence[AddJob]) -> set[str]:
        if not additions:
            return set()
        scope = {"namespace": self.namespace}
        done = {row[0] for row in session.fetch("insert_jobs", [write.draft for write in additions], **scope)}
        notes = [
            (write.job_name, write.last_run_time, write.disabled_reason)
            for write in additions
            if write.job_name in done and (write.last_run_time is not None or write.disabled_reason is not None)
        ]
        if notes:
            session.fetch("note_arrivals", notes, **scope)
        return done

    def _change(self, session: Session, write: JobChange) -> list[Row]:
        block, facts = _block(write)
        rows = session.fetch(block, namespace=self.namespace, job_name=write.job_name, **facts)
        if rows and isinstance(write, UpdateJob | ResumeJob) and write.gap is not None:
            session.fetch("insert_gaps", [write.gap])
        return rows

    def enqueue(self, runs: Sequence[NewRun]) -> set[str]:
        """Add attempts, which wait for a beat; return their ids."""
        if not runs:
            return set()
        again = [(run.letter.run_id,) for run in runs if run.letter is not None and run.letter.kind == ONE_OFF]
        runs = [run for run in runs if run.letter is None or run.letter.kind != ONE_OFF]
        letters = [(run.letter.run_id,) for run in runs if run.letter is not None]

        def work(session: Session) -> set[str]:
            scope = {"namespace": self.namespace}
            reopened = session.fetch("reopen_dead", again, **scope) if again else []
            left = {row[0] for row in session.fetch("leave_dead", letters, **scope)} if letters else set()
            rows = [_outbox_row(run) for run in runs if run.letter is None or run.letter.run_id in left]
            made = session.fetch("insert_outbox", rows, **scope) if rows else []
            session.fetch("bump_changes", **scope)
            return {row[0] for row in (*made, *reopened)}

        try:
            return self.database.write(work)
        except Conflict:
            # A beat has claimed such a slot meanwhile, which an operator had moved its job back to:
            # that one is open.
            return self.database.write(work)

    def runs(self, query: RunQuery) -> list[RunRecord]:
        """Return attempts in the order of the query; those of given ids in any order."""
        after, size = query.after, query.page_size
        if query.run_ids is not None:
            return self._runs("read_run", [(run_id,) for run_id in query.run_ids]) if query.run_ids else []
        if query.job_id is not None:
            slot, attempt = (LAST_INSTANT, 0) if after is None else (after.scheduled_for, after.attempt)
            page = {"before": slot, "before_attempt": attempt, "page_size": size}
            return self._runs("list_job_runs", job_id=query.job_id, **page)
        if query.only_dead:
            return self._runs("list_dead", after_id=FIRST_ID if after is None else after.run_id, page_size=size)
        before_id = LAST_ID if after is None else after.run_id
        if query.one_offs:
            return self._runs("list_one_offs", state=query.state or "", before_id=before_id, scan_size=size)
        if query.state is not None:
            return self._runs("list_runs_in", state=query.state, before_id=before_id, scan_size=size)
        return self._runs("list_runs", before_id=before_id, page_size=size)

    def purge(self, what: DeadLetters | OldRuns | OldNodes | OldKeys | WholeNamespace) -> Purged:
        """Delete rows for good; those that the database refuses to delete are passed by."""
        return self._purger.purge(what)

    def _cancel(self, job_name: str, blocks: Sequence[str], reason: str) -> bool:
        scope = {"namespace": self.namespace, "job_name": job_name}
        # An overlapping run that began before its message was marked as sent is found by both
        # blocks.
        held = {row for block in blocks for row in self.database.read(block, **scope)}
        ending = Ending(CANCELLED, reason)
        releases = [Release(job_id, run_id, claim_id, fence, ending) for job_id, run_id, claim_id, fence in held]
        return bool(release(self.database, self.namespace, releases, Guard.HELD))

    def _runs(self, block: str, rows: Rows | None = None, /, **scalars: object) -> list[RunRecord]:
        records = self.database.read(block, rows, namespace=self.namespace, **scalars)
        return [RunRecord._make(row) for row in records]


def _block(write: JobChange) -> tuple[str, dict[str, object]]:
    """Return the block of a write, and its parameters beside the name."""
    if isinstance(write, PauseJob):
        return "pause_job", {"reason": write.reason, "version": _version(write)}
    if isinstance(write, DeleteJob):
        return "request_delete", {"version": _version(write)}
    if isinstance(write, SealJob):
        return "seal_job", {"version": write.version, "args": write.args, "kwargs": write.kwargs}
    facts: dict[str, object] = {"version": write.version, "fence": -1 if write.fence is None else write.fence}
    if isinstance(write, ResumeJob):
        return "resume_job", {**facts, "next_run_time": write.next_run_time, "finished": int(write.finished)}
    enabled = -1 if write.enabled is None else int(write.enabled)
    facts |= {**write.draft._asdict(), "reschedule": int(write.reschedule), "enabled": enabled, "reason": PAUSED}
    del facts["job_name"]
    return "update_job", facts


def _version(write: PauseJob | DeleteJob) -> int:
    """Return the version that is asked for; no row is at 0, which means any here."""
    return ANY_VERSION if write.version is None else write.version or -1


def _outbox_row(run: NewRun) -> Row:
    letter = run.letter
    if letter is None:
        return run.run_id, run.job_id, MANUAL, None, 1, "new"
    # It is the last attempt of its slot: where another one comes meanwhile, it has this number.
    return run.run_id, run.job_id, letter.kind, letter.scheduled_for, letter.attempt + 1, letter.state


class _Conflicts(Exception):  # never leaves this module
    def __init__(self, done: set[str]) -> None:
        super().__init__(done)
        self.done = done
