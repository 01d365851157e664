"""Two stores that are asked the same, step by step, and must give the same answers.

What a store may choose is made alike: job ids are told by the names of their jobs, and what has no
order is sorted.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from random import Random
from typing import Any, TypeVar

from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import Claim, JobRecord, StartedRun, StartRequest
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.records import JobQuery, RunQuery

LEASE = 60.0  # seconds
BY_RUN = attrgetter("run_id")

T = TypeVar("T")


class Side:
    """One of the stores, with what beats and workers know of it."""

    def __init__(self, store: Store, seed: int, clock: Callable[[], datetime]) -> None:
        self.store = store
        self.ids = Ids(Random(seed).randbytes, lambda: int(clock().timestamp() * 1000))
        self.planner = Planner(Rules(policies_from_setting({}), "UTC", LEASE, 2), self.ids)
        self.names: dict[str, str] = {}
        """Of all jobs that there were, by id."""
        self.claims: list[Claim] = []
        self.runs: list[StartedRun] = []
        self.requests: list[StartRequest] = []

    def told(self, value: Any) -> Any:
        """Return a value as it can be compared with that of the other side."""
        if isinstance(value, str):
            return self.names.get(value, value)
        if isinstance(value, bool | float):
            return float(value)
        if hasattr(value, "_asdict"):
            return self.told(value._asdict())
        if isinstance(value, Mapping):
            return {self.told(key): self.told(item) for key, item in value.items() if key != "timeline"}
        if isinstance(value, set | frozenset):
            return sorted(self.told(item) for item in value)
        if isinstance(value, list | tuple):
            return [self.told(item) for item in value]
        return value

    def job(self, name: str) -> JobRecord | None:
        """Return the job of this name."""
        return self.store.jobs(JobQuery(names=[name])).get(name)

    def seen(self) -> dict[str, Any]:
        """Return everything that can be seen of the store."""
        jobs = self.store.jobs(JobQuery())
        self.names |= {job.job_id: job.job_name for job in jobs.values()}
        unended = self.store.unended_results(1000, 1e6)
        return {
            "jobs": jobs,
            "to be repaired": self.store.jobs(JobQuery(needing_repair_of="")),
            "runs": self.store.runs(RunQuery()),
            "dead letters": self.store.runs(RunQuery(only_dead=True)),
            # Of writes that change nothing a store may tell or not.
            "deadlines": self.store.next_deadlines()._replace(changes=0),
            "one-offs": self.store.runs(RunQuery(one_offs=True)),
            "pulse": self.store.pulse()._replace(changes=0),
            "counts": self.store.counts(7200.0),
            "running": sorted(self.store.running(0.0, 100), key=attrgetter("started_at", "run_id")),
            "unended": sorted((slot._replace(earlier=tuple(sorted(slot.earlier))) for slot in unended), key=BY_RUN),
        }


class Sides:
    """Both stores, which share a clock."""

    def __init__(
        self, stores: Iterable[Store], seed: int, noon: datetime, set_clock: Callable[[datetime], None]
    ) -> None:
        self.random = Random(seed)
        self.now = noon
        self._set_clock = set_clock
        set_clock(noon)
        self.sides = [Side(store, seed, lambda: self.now) for store in stores]
        self.ids = Ids(Random(f"walk {seed}").randbytes, lambda: int(self.now.timestamp() * 1000))

    def both(self, action: Callable[[Side], T], what: str) -> list[T]:
        """Do the same on both sides, which must answer alike."""
        answers = [action(side) for side in self.sides]
        one, other = (side.told(answer) for side, answer in zip(self.sides, answers, strict=True))
        assert one == other, f"{what}: {_differences(one, other)}"
        return answers

    def let_pass(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self._set_clock(self.now)

    def some(self, side: Side, which: str, chosen: list[float]) -> list[Any]:
        """Return what a side knows at these shares of its list, one for each job."""
        known = getattr(side, which)
        return list({item.job_id: item for item in (known[int(at * len(known))] for at in chosen if known)}.values())

    def shares(self) -> list[float]:
        """Choose some places in a list, mostly near its end: what is old is stale."""
        return [max(self.random.random() for _ in "123") for _ in range(self.random.choice([1, 1, 2, 3]))]


def _differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Return what differs, each by the way to it."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [text for key in one for text in _differences(one[key], other[key], f"{where}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [text for at, (first, second) in pairs for text in _differences(first, second, f"{where}/{at}")]
    return [] if one == other else [f"{where}: {one!r} here, {other!r} in memory"]
