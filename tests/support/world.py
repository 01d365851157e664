"""One namespace in one real database, with a clock that the test sets.

What the contract tests play in.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import Claim, HeldLease, JobRecord, JobWrite, NewRun, RunRecord, StartedRun, StartRequest
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import (
    LONGEST_QUEUED_SECONDS,
    MAX_REPUBLISHES,
    Ending,
    ExpiredLease,
    Republish,
    after_ended_lease,
    after_success,
    why_refused,
)
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.records import JobQuery, NextDeadlines, RunQuery
from celery_sqlbeat.store.sql.dialects.sqlite_values import instant_of
from celery_sqlbeat.store.sql.store import SqlStore
from tests.support.claiming import Fired, claim_due
from tests.support.views import AdminView, BeatView, WorkerView

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
LEASE = 120.0
DISPATCH = 15.0
MAX_LOST = 5
OVERLAP = '{"overlap": "allow"}'  # for the column Policies


def earliest(wake: NextDeadlines) -> datetime | None:
    """Return the first of the instants at which a beat has something to do."""
    instants = (wake.due_at, wake.lease_ends_at, wake.planned_at, wake.held_ends_at, wake.outbox_at, wake.replace_at)
    return min((at for at in instants if at is not None), default=None)


class World:
    """The store under test, a second way into its tables, and short words for a fire's steps."""

    def __init__(
        self,
        store: SqlStore,
        sql: Callable[[str, Sequence[Any]], list[Mapping[str, Any]]],
        set_clock: Callable[[datetime], None],
    ) -> None:
        self.store = store
        self.namespace = store.namespace
        self._sql = sql
        self._set_clock = set_clock
        self._numbers = itertools.count(1)
        self.ids = Ids()
        self.now = NOON
        self.at(NOON)
        self.planner = self.planner_for()
        self.beat = BeatView(store, "beat-1")
        self.worker = WorkerView(store, "worker-1")
        self.admin = AdminView(store)

    def sibling(self) -> SqlStore:
        """Another namespace in the same database."""
        return SqlStore(self.store.database, self.namespace + "-sibling")

    def at(self, instant: datetime) -> None:
        """Set the server's clock."""
        self.now = instant
        self._set_clock(instant)

    def later(self, seconds: float) -> datetime:
        """Let the server's clock run on."""
        self.at(self.now + timedelta(seconds=seconds))
        return self.now

    def sql(self, text: str, *values: Any) -> list[Mapping[str, Any]]:
        """Run a statement by hand, as a DBA would; `?` stands for a value.

        Names of the result are lower case.
        """
        return self._sql(text, values)

    def planner_for(self, policies: Mapping[str, Any] | None = None, **rules: Any) -> Planner:
        """Return a planner with other rules."""
        defaults: dict[str, Any] = {"time_zone": "UTC", "lock_timeout": LEASE, "max_retries": 3}
        return Planner(Rules(policies_from_setting(policies or {}), **{**defaults, **rules}), self.ids)

    def add(self, name: str | None = None, **columns: Any) -> str:
        """Insert a job by hand; due now unless `NextRunTime` says otherwise. Returns its name."""
        name = name or f"job-{next(self._numbers)}"
        row = {"Schedule": "every 60s", "TaskName": "app.task", "NextRunTime": self.now, **columns}
        row = {"Namespace": self.namespace, "JobName": name, **row}
        self.sql(f"INSERT INTO Jobs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", *row.values())
        return name

    def change(self, name: str, **columns: Any) -> None:
        """Change the row of a job by hand."""
        sets = ", ".join(f"{column} = ?" for column in columns)
        self.sql(f"UPDATE Jobs SET {sets} WHERE Namespace = ? AND JobName = ?", *columns.values(), self.namespace, name)

    def clear(self) -> None:
        """Leave nothing behind, for tests that fill or read whole tables."""
        for table in ("JobRuns", "Jobs"):
            self.sql(f"DELETE FROM {table} WHERE Namespace = ?", self.namespace)

    def job(self, name: str) -> Mapping[str, Any]:
        """Return the row of a job."""
        return self.sql("SELECT * FROM Jobs WHERE Namespace = ? AND JobName = ?", self.namespace, name)[0]

    def record(self, name: str) -> JobRecord:
        """Return a job as an administrator sees it."""
        return self.admin.jobs(JobQuery(names=[name]))[name]

    def write(self, *writes: JobWrite) -> set[str]:
        """Write jobs as an administrator; return the names of those written."""
        return self.admin.write_jobs(writes).done

    def add_slot(self, job_id: object) -> bool:
        """Add an extra slot; tell whether the job is there."""
        return bool(self.admin.enqueue([NewRun(self.ids.run_ids(1)[0], str(job_id))]))

    def replay(self, *letters: RunRecord) -> set[str]:
        """Replay dead letters; return the new run ids."""
        ids = self.ids.run_ids(len(letters))
        return self.admin.enqueue(
            [NewRun(run_id, letter.job_id, letter) for run_id, letter in zip(ids, letters, strict=True)]
        )

    def letters(self) -> list[RunRecord]:
        """Return the dead letters."""
        return self.admin.runs(RunQuery(only_dead=True))

    def instant(self, name: str, column: str) -> datetime | None:
        """Return an instant in the row of a job, whatever form the database gives it."""
        return as_instant(self.job(name)[column])

    def runs(self, name: str) -> list[Mapping[str, Any]]:
        """Return the history of a job, oldest first."""
        return self.sql(
            "SELECT * FROM JobRuns WHERE Namespace = ? AND JobName = ? ORDER BY ScheduledFor, Attempt, RunId",
            self.namespace,
            name,
        )

    def states(self, name: str) -> list[str]:
        """Return the states of a job's attempts, oldest first."""
        return [run["state"] for run in self.runs(name)]

    def claim(self, beat: BeatView | None = None, planner: Planner | None = None, batch: int = 500) -> Fired:
        """Claim what is due."""
        return claim_due(beat or self.beat, planner or self.planner, batch, DISPATCH)

    def claim_one(self, planner: Planner | None = None) -> Claim:
        """Claim the only job that is due."""
        (claim,) = self.claim(planner=planner).claims
        return claim

    def publish(self, *claims: Claim) -> set[str]:
        """Record that the broker has these messages."""
        return self.beat.mark_published([(claim, claim.lease_seconds) for claim in claims]).done

    def request(self, claim: Claim, celery_retries: int = 0) -> StartRequest:
        """Return the question of a worker that took the claim's message."""
        return StartRequest(claim.run_id, claim.claim_id, claim.fence, self.ids.random_id(), celery_retries)

    def start(self, claim: Claim, celery_retries: int = 0) -> StartedRun | None:
        """Start a claim's run on the first worker."""
        return self.worker.start([self.request(claim, celery_retries)]).get(claim.run_id)

    def running(self, planner: Planner | None = None) -> StartedRun:
        """Claim, publish and start the only job that is due."""
        claim = self.claim_one(planner)
        self.publish(claim)
        run = self.start(claim)
        assert run is not None
        return run

    def refused(self, claim: Claim) -> str | None:
        """Why a message of this claim may not begin."""
        return why_refused(self.worker.refuse([self.request(claim)]).get(claim.run_id))

    def forgotten(self) -> Claim:
        """Fire and forget the only job that is due."""
        claim = self.claim_one()
        assert self.beat.mark_dispatched([claim]).done == {claim.run_id}
        return claim

    def never_started(self) -> Claim:
        """Publish the only due job with a lease, and let its message outlast its last deadline."""
        claim = self.claim_one()
        self.publish(claim)
        for _ in range(1 + MAX_REPUBLISHES):
            self.later(LONGEST_QUEUED_SECONDS)
            self.sweep(can_republish=False)
        return claim

    def finish(self, run: StartedRun, ending: Ending | None = None) -> bool:
        """End a run; whether that was written."""
        return not self.worker.finish([(run, ending or after_success())])

    def decided(
        self, lease: HeldLease, can_republish: bool = True, max_lost: int = MAX_LOST, **facts: Any
    ) -> Ending | Republish:
        """Return what a beat decides about a lease that it found ended."""
        ended = ExpiredLease.of(lease)
        return after_ended_lease(ended, max_lost, can_republish, **facts)

    def sweep(self, beat: BeatView | None = None, can_republish: bool = True, **facts: Any) -> set[str]:
        """Do what a beat does about all leases that ended; returns the run ids to publish again."""
        beat = beat or self.beat
        endings, waiting = [], []
        for lease in beat.ended(500):
            decision = self.decided(lease, can_republish, **facts)
            if isinstance(decision, Republish):
                waiting.append((lease, decision.queued_seconds))
            else:
                endings.append((lease, decision))
        beat.reclaim(endings)
        return beat.postpone_start_deadline(waiting)


def as_instant(value: Any) -> datetime | None:
    """Return an instant as a statement by hand gives it."""
    found: datetime | None = instant_of(value)
    return found.replace(tzinfo=timezone.utc) if found is not None and found.tzinfo is None else found
