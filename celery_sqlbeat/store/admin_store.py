"""What an administrator does to the database: define, pause, run, delete, look back, replay, purge.

Every change bumps the change counter in its own transaction, so that beats notice it.
"""

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from celery_sqlbeat.checks import is_text
from celery_sqlbeat.lifecycle import CANCELLED, Ending
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
from celery_sqlbeat.store.database import Database
from celery_sqlbeat.store.history import History
from celery_sqlbeat.store.protocol import ANY_VERSION, FIRST_ID, LAST_ID, Purged, Purging
from celery_sqlbeat.store.run_store import Release, delete_free, release
from celery_sqlbeat.store.session import Row, Rows, Session

CANCELLED_BY_HAND = "cancelled by hand"
LAST_INSTANT = datetime(9998, 12, 31, tzinfo=timezone.utc)

# SQL Server: below the number of locks at which it would lock the whole table. SQLite: whoever writes keeps everybody
# else from writing, so a batch is short, and takes a quarter of the time.
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

    def add_jobs(self, drafts: Sequence[JobDraft]) -> set[str]:
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
        facts = changed_facts(JobChange(draft, version, reschedule, enabled, gap, fence))
        return _version(self._change("update_job", gap=gap, **facts))

    def jobs(self, names: Iterable[str]) -> dict[str, JobRecord]:
        rows = [(name,) for name in names if is_text(name)]  # no job has a name that no database can hold
        found = self._database.read("read_jobs", rows, namespace=self._namespace) if rows else []
        return {row[1]: JobRecord._make(row) for row in found}

    def list_jobs(self, page_size: int, after_name: str = "") -> list[JobRecord]:
        rows = self._database.read("list_jobs", namespace=self._namespace, after_name=after_name, page_size=page_size)
        return [JobRecord._make(row) for row in rows]

    def set_aside(self, page_size: int, after_name: str = "") -> list[JobRecord]:
        scope = {"namespace": self._namespace, "after_name": after_name, "page_size": page_size}
        return [JobRecord._make(row) for row in self._database.read("list_set_aside", **scope)]

    def counts(self) -> JobCounts:
        return JobCounts._make(self._database.read("count_jobs", namespace=self._namespace)[0])

    def running(self, least_seconds: float, most: int) -> list[RunningJob]:
        scope = {"namespace": self._namespace, "since_seconds": least_seconds, "page_size": most}
        return [RunningJob._make(row) for row in self._database.read("read_running", **scope)]

    def states(self, since_seconds: float) -> dict[str, int]:
        rows = self._database.read("count_states", namespace=self._namespace, since_seconds=since_seconds)
        return {state: int(slots) for state, slots in rows}

    def pause(self, job_name: str, reason: str, version: int = ANY_VERSION) -> int | None:
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
        facts = {"job_name": job_name, "version": version, "next_run_time": next_run_time, "finished": int(finished)}
        return _version(self._change("resume_job", gap=gap, fence=_fence(fence), **facts))

    def add_slot(self, run_id: str, job_id: str) -> bool:
        return bool(self._change("insert_outbox", [(run_id, job_id, MANUAL, None, 1, "new")]))

    def replay(self, letters: Sequence[tuple[str, RunRecord]]) -> set[str]:
        if not letters:
            return set()

        def work(session: Session) -> set[str]:
            rows = [(dead.run_id,) for _, dead in letters]
            left = {row[0] for row in session.fetch("leave_dead", rows, namespace=self._namespace)}
            slots = {(dead.job_id, dead.scheduled_for, dead.kind) for _, dead in letters if dead.run_id in left}
            # A slot that was run again by hand may have attempts after the dead one.
            found = session.fetch("read_attempt_numbers", sorted(slots)) if slots else []
            numbers = {row[:3]: itertools.count(row[3] + 1) for row in found}
            again = []
            for run_id, dead in letters:
                if dead.run_id in left:
                    number = next(numbers[dead.job_id, dead.scheduled_for, dead.kind])
                    again.append((run_id, dead.job_id, dead.kind, dead.scheduled_for, number, dead.state))
            made = session.fetch("insert_outbox", again, namespace=self._namespace) if again else []
            session.fetch("bump_changes", namespace=self._namespace)
            return {row[0] for row in made}

        return self._database.write(work)

    def delete(self, job_name: str, force: bool = False, version: int = ANY_VERSION) -> bool:

        def work(session: Session) -> list[Row]:
            scope = {"namespace": self._namespace, "job_name": job_name, "version": version}
            found = session.fetch("request_delete", **scope)
            delete_free(session, self._namespace, found)
            session.fetch("bump_changes", namespace=self._namespace)
            return found

        found = self._database.write(work)
        # Now that it can start no other run; without us a beat deletes the row once the run has ended.
        if found and force and self._cancel(job_name, ("read_holding", "read_held"), CANCELLED_BY_HAND):
            self._database.write(lambda session: delete_free(session, self._namespace, found))
        return bool(found)

    def cancel(self, job_name: str, reason: str = CANCELLED_BY_HAND) -> bool:
        return self._cancel(job_name, ("read_holding",), reason)

    def runs(self, page_size: int, before_id: str = LAST_ID) -> list[RunRecord]:
        return self._run_records("list_runs", before_id=before_id, page_size=page_size)

    def runs_in(self, state: str, scan_size: int, before_id: str) -> list[RunRecord]:
        return self._run_records("list_runs_in", state=state, before_id=before_id, scan_size=scan_size)

    def job_runs(self, job_id: str, page_size: int, before: RunRecord | None = None) -> list[RunRecord]:
        slot, attempt = (LAST_INSTANT, 0) if before is None else (before.scheduled_for, before.attempt)
        return self._run_records(
            "list_job_runs", job_id=job_id, before=slot, before_attempt=attempt, page_size=page_size
        )

    def run(self, run_id: str) -> RunRecord | None:
        found = self._run_records("read_run", [(run_id,)])
        return found[0] if found else None

    def dead(self, page_size: int, after_id: str = FIRST_ID) -> list[RunRecord]:
        return self._run_records("list_dead", after_id=after_id, page_size=page_size)

    def purge_dead(self, run_ids: Iterable[str]) -> set[str]:
        rows = [(run_id,) for run_id in run_ids]
        if not rows:
            return set()
        return {row[0] for row in self._database.fetch("purge_dead", rows, namespace=self._namespace)}

    @property
    def purging(self) -> Purging:
        return PURGING.get(self._database.dialect.name, PURGING["postgresql"])

    def purge_history(self, keep_seconds: float, batch_size: int, after: datetime | None = None) -> Purged:
        return self._history.purge(keep_seconds, batch_size, after)

    def purge_nodes(self, keep_seconds: float) -> None:
        scope = {"namespace": self._namespace, "keep_seconds": keep_seconds}
        self._database.fetch("purge_nodes", **scope)
        # A name is forgotten one pass after the floor was raised for it: whoever adds a row meanwhile sees one of both.
        self._database.fetch("forget_deleted_jobs", **scope)
        self._database.fetch("raise_fence_floor", **scope)
        self._database.fetch("note_deleted_jobs", namespace=self._namespace)

    def _change(
        self, block: str, rows: Rows | None = None, /, gap: GapRecord | None = None, **scalars: object
    ) -> list[Row]:
        def work(session: Session) -> list[Row]:
            found = session.fetch(block, rows, namespace=self._namespace, **scalars)
            if found and gap is not None:
                session.fetch("insert_gaps", [gap])
            session.fetch("bump_changes", namespace=self._namespace)
            return found

        return self._database.write(work)

    def _cancel(self, job_name: str, blocks: Sequence[str], reason: str) -> bool:
        scope = {"namespace": self._namespace, "job_name": job_name}
        # An overlapping run that began before its message was marked as sent is found by both blocks.
        held = {row for block in blocks for row in self._database.read(block, **scope)}
        ending = Ending(CANCELLED, reason)
        releases = [Release(job_id, run_id, claim_id, fence, ending) for job_id, run_id, claim_id, fence in held]
        return bool(release(self._database, self._namespace, releases)())

    def _run_records(self, block: str, rows: Rows | None = None, /, **scalars: object) -> list[RunRecord]:
        found = self._database.read(block, rows, namespace=self._namespace, **scalars)
        return [RunRecord._make(row) for row in found]


def changed_facts(change: JobChange) -> dict[str, object]:
    """What `update_job` is told of a change."""
    facts: dict[str, object] = change.draft._asdict()
    enabled = -1 if change.enabled is None else int(change.enabled)
    facts.update(version=change.version, reschedule=int(change.reschedule), reason=PAUSED, enabled=enabled)
    facts["fence"] = _fence(change.fence)
    return facts


def _fence(fence: int | None) -> int:
    return -1 if fence is None else fence  # fences count from 0


def _version(found: list[Row]) -> int | None:
    return int(found[0][0]) if found else None
