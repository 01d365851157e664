"""One namespace in the store under test: its clock, its jobs and their history."""

import itertools
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from celery_sqlbeat import environment
from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import AddJob, JobDraft, JobRecord, JobWrite, NewRun, RunRecord, UpdateJob
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.records import JobQuery, RunQuery
from celery_sqlbeat.testing.clock import Clock, SetClock

LEASE = 120.0  # seconds, as every duration here
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
OVERLAP = '{"overlap": "allow"}'  # as policies of a job

MakeStore = Callable[[str], Store]


class Namespace:
    """A namespace of the test's own, where it is noon; it ends with the stores that it has made."""

    def __init__(self, make_store: MakeStore, set_clock: SetClock | None) -> None:
        self._make = make_store
        self._made: list[Store] = []
        self._numbers = itertools.count(1)
        self._job_ids: dict[str, str] = {}
        self.namespace = f"test-{environment.random_hex(6)}"
        self.ids = Ids()
        self.store = self.another_store()
        self.clock = Clock(lambda: self.store.pulse().now, set_clock)
        self.noon = self.clock.began_at
        self.planner = self.planner_for()

    def another_store(self, suffix: str = "") -> Store:
        """Return a store of its own for this namespace, or for one beside it."""
        store = self._make(self.namespace + suffix)
        self._made.append(store)
        return store

    def sibling(self) -> Store:
        """Return a store of another namespace in the same place."""
        return self.another_store("-sibling")

    def close(self) -> None:
        """Close all stores."""
        for store in self._made:
            store.close()

    @property
    def now(self) -> datetime:
        """The time by the server's clock."""
        return self.clock.now

    def at(self, instant: datetime) -> None:
        """Set the server's clock."""
        self.clock.at(instant)

    def later(self, seconds: float) -> datetime:
        """Let the server's clock run on."""
        return self.clock.later(seconds)

    def near(self, instant: datetime) -> Any:
        """Return what equals an instant that the server's clock has made."""
        return self.clock.near(instant)

    def planner_for(self, policies: Mapping[str, Any] | None = None, **rules: Any) -> Planner:
        """Return a planner with other rules."""
        defaults: dict[str, Any] = {"time_zone": "UTC", "lock_timeout": LEASE, "max_retries": 3}
        return Planner(Rules(policies_from_setting(policies or {}), **{**defaults, **rules}), self.ids)

    # Jobs

    def draft(self, name: str, **fields: Any) -> JobDraft:
        """Return a job of every minute that is due now, unless the fields say otherwise."""
        plain = JobDraft(name, "app.task", "every 60s", None, None, None, None, None, True, None, self.now, None)
        return plain._replace(**fields)

    def add(self, name: str | None = None, **fields: Any) -> str:
        """Add a job; return its name."""
        name = name or f"job-{next(self._numbers)}"
        assert self.write(AddJob(self.draft(name, **fields))) == {name}
        self._job_ids[name] = self.job(name).job_id
        return name

    def change(self, name: str, **fields: Any) -> None:
        """Change a job, as an administrator who has just read it."""
        job = self.job(name)
        same = {field: getattr(job, field) for field in JobDraft._fields}
        draft = JobDraft(**{**same, "enabled": bool(job.enabled), **fields})
        is_moved = "next_run_time" in fields
        update = UpdateJob(draft, version=job.version, reschedule=is_moved, enabled=fields.get("enabled"))
        assert self.write(update) == {name}

    def change_time(self, name: str, at: datetime) -> None:
        """Set the next run of a job, as an administrator."""
        self.change(name, next_run_time=at)

    def write(self, *writes: JobWrite) -> set[str]:
        """Write jobs; return the names of those written."""
        return self.store.write_jobs(writes).done

    def job(self, name: str) -> JobRecord:
        """Return a job."""
        return self.store.jobs(JobQuery(names=[name]))[name]

    def is_there(self, name: str) -> bool:
        """Return whether a job of this name exists."""
        return name in self.store.jobs(JobQuery(names=[name]))

    def runs(self, name: str) -> list[RunRecord]:
        """Return the history of a job that the test has added, oldest first."""
        job_id = self._job_ids.get(name) or self.job(name).job_id
        return self.store.runs(RunQuery(job_id=job_id, page_size=1000))[::-1]

    def run(self, run_id: str) -> RunRecord:
        """Return one attempt."""
        (run,) = self.store.runs(RunQuery(run_ids=[run_id]))
        return run

    def states(self, name: str) -> list[str]:
        """Return the states of a job's attempts, oldest first."""
        return [run.state for run in self.runs(name)]

    def history(self, name: str) -> list[tuple[float, str, str | None, int]]:
        """Return of each attempt its slot in seconds from noon, state, reason, number of slots."""
        return [
            ((run.scheduled_for - self.noon) / SECOND, run.state, run.reason, run.slot_count) for run in self.runs(name)
        ]

    def changes(self) -> int:
        """Return the change counter."""
        return self.store.pulse().changes

    def enqueue(self, job_id: str) -> bool:
        """Add an extra slot; return whether the job is there."""
        return bool(self.store.enqueue([NewRun(self.ids.run_ids(1)[0], job_id)]))

    def add_slot(self, name: str) -> None:
        """Add an extra slot of a job."""
        assert self.enqueue(self.job(name).job_id)

    def letters(self) -> list[RunRecord]:
        """Return the dead letters."""
        return self.store.runs(RunQuery(only_dead=True))

    def replay(self, *letters: RunRecord, store: Store | None = None) -> set[str]:
        """Replay dead letters; return the run ids, which are new but for one-offs."""
        ids = self.ids.run_ids(len(letters))
        new = [NewRun(run_id, letter.job_id, letter) for run_id, letter in zip(ids, letters, strict=True)]
        return (store or self.store).enqueue(new)
