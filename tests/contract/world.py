"""One namespace in one real database, with a clock that the test sets: what the contract tests play in."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_sqlbeat.definition import Rules
from celery_sqlbeat.ids import Ids
from celery_sqlbeat.lifecycle import Ending, after_success
from celery_sqlbeat.model import Claim, StartedRun, StartRequest
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.policy import policies_from_setting
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.beat_store import Claimed, SqlBeatStore

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
LEASE = 120.0
DISPATCH = 15.0


class World:
    """The store under test, a second way into the same tables, and short words for the steps of a fire."""

    def __init__(
        self,
        store: Store,
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
        self.beat = store.for_beat("beat-1")
        self.worker = store.for_worker("worker-1")
        self.admin = store.for_admin()

    def at(self, instant: datetime) -> None:
        """Set the server's clock."""
        self.now = instant
        self._set_clock(instant)

    def later(self, seconds: float) -> datetime:
        """Let the server's clock run on."""
        self.at(self.now + timedelta(seconds=seconds))
        return self.now

    def sql(self, text: str, *values: Any) -> list[Mapping[str, Any]]:
        """Run a statement by hand, as a DBA would; `?` stands for a value. Names of the result are lower case."""
        return self._sql(text, values)

    def planner_for(self, policies: Mapping[str, Any] | None = None, **rules: Any) -> Planner:
        """A planner under other rules."""
        defaults: dict[str, Any] = {"time_zone": "UTC", "lock_timeout": LEASE, "max_retries": 3}
        return Planner(Rules(policies_from_setting(policies or {}), **{**defaults, **rules}), self.ids)

    def add(self, name: str | None = None, **columns: Any) -> str:
        """Insert a job by hand; due now unless `NextRunTime` says otherwise. Returns its name."""
        name = name or f"job-{next(self._numbers)}"
        row = {"Schedule": "every 60s", "TaskName": "app.task", "NextRunTime": self.now, **columns}
        row = {"Namespace": self.namespace, "JobName": name, **row}
        self.sql(f"INSERT INTO Jobs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", *row.values())
        return name

    def job(self, name: str) -> Mapping[str, Any]:
        """The row of a job."""
        return self.sql("SELECT * FROM Jobs WHERE Namespace = ? AND JobName = ?", self.namespace, name)[0]

    def runs(self, name: str) -> list[Mapping[str, Any]]:
        """The history of a job, oldest first."""
        return self.sql(
            "SELECT * FROM JobRuns WHERE Namespace = ? AND JobName = ? ORDER BY ScheduledFor, Attempt, RunId",
            self.namespace,
            name,
        )

    def states(self, name: str) -> list[str]:
        """The states of a job's attempts, oldest first."""
        return [run["state"] for run in self.runs(name)]

    def claim(self, beat: SqlBeatStore | None = None, planner: Planner | None = None, batch: int = 500) -> Claimed:
        """Claim what is due."""
        return (beat or self.beat).claim(planner or self.planner, batch, DISPATCH)

    def claim_one(self, planner: Planner | None = None) -> Claim:
        """Claim the only job that is due."""
        (claim,) = self.claim(planner=planner).claims
        return claim

    def publish(self, *claims: Claim) -> set[str]:
        """Record that the broker has these messages."""
        return self.beat.mark_published([(claim, claim.lease_seconds) for claim in claims])

    def request(self, claim: Claim, celery_retries: int = 0) -> StartRequest:
        """The question of a worker that took the claim's message."""
        return StartRequest(claim.run_id, claim.claim_id, claim.fence, self.ids.one(), celery_retries)

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

    def finish(self, run: StartedRun, ending: Ending | None = None) -> bool:
        """End a run; whether that was written."""
        return not self.worker.finish([(run, ending or after_success())])
