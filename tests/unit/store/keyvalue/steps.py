"""A memory store at noon, and short words for the steps of a fire."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import (
    AddJob,
    Claim,
    DueBatch,
    HeldLease,
    JobDraft,
    JobRecord,
    NewRun,
    Plan,
    ReplaceableRun,
    StartedRun,
    StartRequest,
)
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import DISPATCHED, Ending, after_success
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.keyvalue.entries import entries
from celery_sqlbeat.store.keyvalue.identity import new_store
from celery_sqlbeat.store.keyvalue.memory import MemoryPlace
from celery_sqlbeat.store.keyvalue.rows import ABSENT, Change, Key, Place, Row, Scan, Snapshot
from celery_sqlbeat.store.keyvalue.store import KeyValueStore
from celery_sqlbeat.store.records import Guard, JobQuery, Release, RunQuery

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
LEASE, DISPATCH = 120.0, 15.0  # seconds
BEAT, WORKER = "beat-1", "worker-1"
OVERLAP, REPLACE = '{"overlap": "allow"}', '{"overlap": "replace"}'


class Clock:
    """A clock that the test sets."""

    def __init__(self, at: datetime = NOON) -> None:
        self.now = at

    def __call__(self) -> datetime:
        return self.now

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Interrupted:
    """A place at which somebody else acts between a read and the write that follows it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.actions: list[Callable[[], object]] = []

    def read(self, keys: Sequence[Key] = (), scans: Sequence[Scan] = ()) -> Snapshot:
        return self.place.read(keys, scans)

    def write(self, changes: Sequence[Change]) -> list[bool]:
        if self.actions:
            self.actions.pop(0)()
        return self.place.write(changes)

    def forget(self) -> None:
        self.place.forget()

    def close(self) -> None:
        self.place.close()


class Steps:
    """A store on a place in memory, and what is done to it."""

    def __init__(self, clock: Clock | None = None, place: MemoryPlace | None = None) -> None:
        self.clock = clock or Clock()
        self.place = place or MemoryPlace(entries, [new_store(NOON)], self.clock)
        self.store = KeyValueStore(self.place)
        self.ids = Ids()
        self.planner = Planner(Rules(policies_from_setting({}), "UTC", LEASE, 3), self.ids)

    def copy(self) -> "Steps":
        """Return a place with the same rows, and a clock of its own."""
        clock = Clock(self.clock.now)
        first = [Change({key: (ABSENT, dict(row)) for key, row in self.rows().items()})]
        return Steps(clock, MemoryPlace(entries, first, clock))

    def rows(self) -> dict[Key, Row]:
        """Return everything that the place keeps."""
        return {key: versioned.row for key, versioned in self.place._rows.items() if versioned.row is not None}

    def add(self, name: str = "job", **fields: Any) -> JobRecord:
        """Add a job of every minute that is due now."""
        plain = JobDraft(name, "app.task", "every 60s", None, None, None, None, None, True, None, self.clock.now, None)
        assert self.store.write_jobs([AddJob(plain._replace(**fields))]).done == {name}
        return self.job(name)

    def job(self, name: str = "job") -> JobRecord:
        return self.store.jobs(JobQuery(names=[name]))[name]

    def states(self, name: str = "job") -> list[str]:
        """Return the states of a job's attempts, oldest first."""
        return [run.state for run in self.store.runs(RunQuery(job_id=self.job(name).job_id))][::-1]

    def due(self) -> tuple[DueBatch, Plan]:
        due = self.store.due(100)
        return due, self.planner(due)

    def claim(self) -> Claim:
        """Claim the only job that is due."""
        (claim,) = self.store.claim(*self.due(), BEAT, DISPATCH).claims
        return claim

    def published(self) -> Claim:
        claim = self.claim()
        assert self.store.mark_published([(claim, LEASE)]).done == {claim.run_id}
        return claim

    def begin(self, claim: Claim) -> StartedRun:
        run = self.store.start([request(claim)], WORKER)[claim.run_id]
        assert isinstance(run, StartedRun)
        return run

    def running(self) -> StartedRun:
        return self.begin(self.published())

    def overlapping(self) -> StartedRun:
        claim = self.claim()
        self.store.finish([release(claim, Ending(DISPATCHED))], Guard.UNSTARTED)
        return self.begin(claim)

    def enqueue(self, job: JobRecord) -> str:
        (run_id,) = self.store.enqueue([NewRun(self.ids.run_ids(1)[0], job.job_id)])
        return run_id


def request(claim: Claim, start_id: str = "start-1", celery_retries: int = 0) -> StartRequest:
    """Return the question of a worker that took the claim's message."""
    return StartRequest(claim.run_id, claim.claim_id, claim.fence, start_id, celery_retries)


def release(held: Claim | StartedRun | HeldLease | ReplaceableRun, ending: Ending | None = None) -> Release:
    """Return the end of a run, by whoever holds it."""
    retries = held.celery_retries if isinstance(held, StartedRun) else None
    return Release(held.job_id, held.run_id, held.claim_id, held.fence, ending or after_success(), retries)
