"""Runs that go on for several intervals of their job: without `max_runtime` nobody stops them, so it is said. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat.definition import Rules, Slots, read_definition
from celery_sqlbeat.durations import span
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model import CODE_SCHEDULE, RunningJob
from celery_sqlbeat.schedule import Fire

INTERVALS = 3  # as many slots of the job have come due since the run began
LEAST_SECONDS = 10.0  # a job of every second may well take three
MOST_RUNS = 100  # told of at a time, those that have gone on for longest


class LongRun(NamedTuple):
    """A run that goes on for so many intervals of its job."""

    job_name: str
    run_id: str
    worker: str | None
    seconds: float
    intervals: int
    max_runtime: float | None

    def __str__(self) -> str:
        return (
            f"job {self.job_name}: run {self.run_id} on {self.worker} goes on for {self.intervals} of its intervals, "
            f"{span(self.seconds)}"
        )

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.max_runtime is not None:
            return "its worker stops it when its max_runtime is over"
        return f"look at that worker; celery -A app sqlbeat jobs put {self.job_name} --max-runtime SECONDS bounds a run"


def long_runs(running: Iterable[RunningJob], rules: Rules) -> Iterator[LongRun]:
    """Those of the running jobs that go on for several of their intervals."""
    for row in running:
        if row.schedule == CODE_SCHEDULE:
            continue  # only the beat that has its class could say how often it is due
        try:
            definition = read_definition(row, rules)
        except FieldError:
            continue
        passed = _slots_since(definition.timeline, row.started_at, row.now, row.job_id)
        if passed >= INTERVALS:
            seconds = (row.now - row.started_at).total_seconds()
            longest = definition.policy.max_runtime
            yield LongRun(row.job_name, row.run_id, row.worker, seconds, passed, longest)


def _slots_since(timeline: Slots, began: datetime, now: datetime, key: str) -> int:
    first = timeline.first_slot(began, None, key)
    if first is None or first > now:
        return 0
    plan = timeline.plan(first, now, None, key=key)
    return 1 + (plan.gap.count if isinstance(plan, Fire) and plan.gap is not None else 0)
