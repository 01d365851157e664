"""What an administrator does to the database: define, pause, run, delete, look back, replay, purge.

Every change bumps the change counter in its own transaction, so that beats notice it.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from celery_sqlbeat.config.validation import is_text
from celery_sqlbeat.model import (
    MANUAL,
    PAUSED,
    GapRecord,
    JobChange,
    JobCounts,
    JobDraft,
    JobRecord,
    RunningJob,
    RunRecord,
)
from celery_sqlbeat.model.lifecycle import CANCELLED, Ending
from celery_sqlbeat.store.beat_protocol import ANY_VERSION, FIRST_ID, LAST_ID, Purged, Purging, WriteResult
from celery_sqlbeat.store.protocols import JobQuery, RunQuery
from celery_sqlbeat.store.sql.engine import Conflict, Database
from celery_sqlbeat.store.sql.purge import History, Leftovers
from celery_sqlbeat.store.sql.runs import Release, delete_free, release
from celery_sqlbeat.store.sql.session import Row, Rows, Session

CANCELLED_BY_HAND = "cancelled by hand"
LAST_INSTANT = datetime(9998, 12, 31, tzinfo=timezone.utc)

# SQL Server: below the number of locks at which it would lock the whole table. SQLite has one
# writer at a time, so a batch is short, and takes a quarter of the time.
PURGING = {
    "postgresql": Purging(rows=2000, rest=0.0, most_a_second=15_000.0),
    "mssql": Purging(rows=900, rest=0.0, most_a_second=15_000.0),
    "sqlite": Purging(rows=100, rest=3.0, most_a_second=15_000.0),
}


class SqlAdminStore:
    """The AdminStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._history = History(database, namespace)
        self._leftovers = Leftovers(database, namespace)

    def add_jobs(self, drafts: Sequence[JobDraft]) -> set[str]:
        """Add jobs; returns the names added. The others are there already and stay as they are."""
        return {row[0] for row in self._change("insert_jobs", drafts)} if drafts else set()

    def update_job(
        self,
        draft: JobDraft,
        version: int,
        reschedule: bool,
        enabled: bool | None = None,
        gap: GapRecord | None = None,
        fence: int | None = None,
    ) -> int | None:
        """Change a job at this version, and return the new version; None on a conflict."""
        facts = changed_facts(JobChange(draft, version, reschedule, enabled, gap, fence))
        return _version(self._change("update_job", gap=gap, **facts))

    def jobs(self, query: JobQuery) -> dict[str, JobRecord]:
        """Return jobs by name; a page is in the order of the names."""
        if query.names is not None:
            names = [(name,) for name in query.names if is_text(name)]  # others are in no database
            rows = self._database.read("read_jobs", names, namespace=self._namespace) if names else []
        else:
            page = {"namespace": self._namespace, "after_name": query.after_name, "page_size": query.page_size}
            rows = self._database.read("list_quarantined" if query.only_quarantined else "list_jobs", **page)
        return {row[1]: JobRecord._make(row) for row in rows}

    def counts(self, since_seconds: float = 0.0) -> JobCounts:
        """Return how many jobs there are of each kind, and attempts of the last seconds' slots."""
        scope = {"namespace": self._namespace}
        counts = self._database.read("count_jobs", **scope)[0]
        states = self._database.read("count_states", since_seconds=since_seconds, **scope) if since_seconds else []
        return JobCounts(*counts)._replace(states={state: int(slots) for state, slots in states})

    def running(self, least_seconds: float, most: int) -> list[RunningJob]:
        """Return jobs whose run goes on for at least so many seconds, oldest run first."""
        scope = {"namespace": self._namespace, "since_seconds": least_seconds, "page_size": most}
        return [RunningJob._make(row) for row in self._database.read("read_running", **scope)]

    def pause(self, job_name: str, reason: str, version: int = ANY_VERSION) -> int | None:
        """Pause a job; returns the new version, or None where there is nothing to pause."""
        return _version(self._change("pause_job", job_name=job_name, reason=reason, version=version))

    def resume(
        self,
        job_name: str,
        version: int,
        next_run_time: datetime | None,
        gap: GapRecord | None = None,
        finished: bool = False,
        fence: int | None = None,
    ) -> int | None:
        """Resume a paused job at a slot, with the record of those skipped; None on a conflict."""
        facts = {"job_name": job_name, "version": version, "next_run_time": next_run_time, "finished": int(finished)}
        return _version(self._change("resume_job", gap=gap, fence=_fence(fence), **facts))

    def add_slot(self, run_id: str, job_id: str) -> bool:
        """Add one extra slot, due now; False where the job is gone."""
        return bool(self._change("insert_outbox", [(run_id, job_id, MANUAL, None, 1, "new")]))

    def replay(self, letters: Sequence[tuple[str, RunRecord]]) -> set[str]:
        """Give dead letters a new attempt under new run ids; returns the new ids."""
        if not letters:
            return set()

        def work(session: Session) -> set[str]:
            rows = [(dead.run_id,) for _, dead in letters]
            left = {row[0] for row in session.fetch("leave_dead", rows, namespace=self._namespace)}
            # Each is the last attempt of its slot: where another one comes meanwhile, it has this
            # number.
            again = [
                (run_id, dead.job_id, dead.kind, dead.scheduled_for, dead.attempt + 1, dead.state)
                for run_id, dead in letters
                if dead.run_id in left
            ]
            made = session.fetch("insert_outbox", again, namespace=self._namespace) if again else []
            session.fetch("bump_changes", namespace=self._namespace)
            return {row[0] for row in made}

        try:
            return self._database.write(work)
        except Conflict:
            # A beat has claimed such a slot meanwhile, which an operator had moved its job back to:
            # that one is open.
            return self._database.write(work)

    def delete(self, job_name: str, force: bool = False, version: int = ANY_VERSION) -> bool:
        """Delete a job once its runs have ended, or at once with `force`, which cancels them."""

        def work(session: Session) -> tuple[list[Row], bool]:
            scope = {"namespace": self._namespace, "job_name": job_name, "version": version}
            requested = session.fetch("request_delete", **scope)
            is_gone = bool(delete_free(session, self._namespace, requested))
            session.fetch("bump_changes", namespace=self._namespace)
            return requested, is_gone

        requested, is_gone = self._database.write(work)
        if requested and not is_gone:
            # Now that it can start no other run; without us a beat deletes the row once the run has
            # ended.
            if force:
                self._cancel(job_name, ("read_lease_holder", "read_held"), CANCELLED_BY_HAND)
            # Where an overlapping run has ended meanwhile, neither has seen the other.
            self._database.write(lambda session: delete_free(session, self._namespace, requested))
        return bool(requested)

    def cancel(self, job_name: str, reason: str = CANCELLED_BY_HAND) -> bool:
        """Cancel the run that holds a job; its worker stops the task at the next heartbeat."""
        return self._cancel(job_name, ("read_lease_holder",), reason)

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
        if query.state is not None:
            return self._runs("list_runs_in", state=query.state, before_id=before_id, scan_size=size)
        return self._runs("list_runs", before_id=before_id, page_size=size)

    def purge_dead(self, run_ids: Iterable[str]) -> WriteResult:
        """Delete dead letters for good; return which were deleted and which were refused."""
        return self._leftovers.purge_dead([(run_id,) for run_id in run_ids])

    @property
    def purging(self) -> Purging:
        """How the history is best deleted here."""
        return PURGING.get(self._database.dialect.name, PURGING["postgresql"])

    def purge_history(self, keep_seconds: float, batch_size: int, after: datetime | None = None) -> Purged:
        """Delete a batch of ended runs, the oldest first, of slots at `after` or later."""
        return self._history.purge(keep_seconds, batch_size, after)

    def purge_nodes(self, keep_seconds: float) -> None:
        """Delete nodes that were silent for so long, and names of jobs that were deleted then."""
        self._leftovers.purge(keep_seconds)

    def _change(
        self, block: str, rows: Rows | None = None, /, gap: GapRecord | None = None, **scalars: object
    ) -> list[Row]:
        def work(session: Session) -> list[Row]:
            versions = session.fetch(block, rows, namespace=self._namespace, **scalars)
            if versions and gap is not None:
                session.fetch("insert_gaps", [gap])
            session.fetch("bump_changes", namespace=self._namespace)
            return versions

        return self._database.write(work)

    def _cancel(self, job_name: str, blocks: Sequence[str], reason: str) -> bool:
        scope = {"namespace": self._namespace, "job_name": job_name}
        # An overlapping run that began before its message was marked as sent is found by both
        # blocks.
        held = {row for block in blocks for row in self._database.read(block, **scope)}
        ending = Ending(CANCELLED, reason)
        releases = [Release(job_id, run_id, claim_id, fence, ending) for job_id, run_id, claim_id, fence in held]
        return bool(release(self._database, self._namespace, releases))

    def _runs(self, block: str, rows: Rows | None = None, /, **scalars: object) -> list[RunRecord]:
        records = self._database.read(block, rows, namespace=self._namespace, **scalars)
        return [RunRecord._make(row) for row in records]


def changed_facts(change: JobChange) -> dict[str, object]:
    """Return the parameters of `update_job` for a change."""
    facts: dict[str, object] = change.draft._asdict()
    enabled = -1 if change.enabled is None else int(change.enabled)
    facts.update(version=change.version, reschedule=int(change.reschedule), reason=PAUSED, enabled=enabled)
    facts["fence"] = _fence(change.fence)
    return facts


def _fence(fence: int | None) -> int:
    return -1 if fence is None else fence  # fences count from 0


def _version(rows: list[Row]) -> int | None:
    return int(rows[0][0]) if rows else None
