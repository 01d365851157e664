"""Find jobs whose runs take longer than their period, and say what their `overlap` does. Pure.

Runs that go on for several intervals of their job: without `max_runtime` nobody stops them, so it
is said. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import NamedTuple, Protocol

from celery_sqlbeat.config.policy import ALLOW, QUEUE, REPLACE, SKIP
from celery_sqlbeat.config.validation import span
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model import CODE_SCHEDULE, RunningJob
from celery_sqlbeat.model.definition import Definition, Rules, Slots, read_definition
from celery_sqlbeat.schedule import Every, Fire, Timeline

MOST_RUNS_COMPARED = 10  # of each job, the last ones
LEAST_PERIOD = 0.5  # seconds; a shorter run is longer than no period that matters
_BY_POLICY: Mapping[str, str] = {
    QUEUE: "each begins right after the one before, for the latest slot that came due, the others are skipped",
    SKIP: "the slots that come due meanwhile are skipped",
    ALLOW: "several of them go on beside each other",
    REPLACE: "each is cancelled when the next slot comes",
}


class Ran(Protocol):
    """A run that may have ended."""

    @property
    def scheduled_for(self) -> datetime:
        """The slot of the run."""

    @property
    def started_at(self) -> datetime | None:
        """The time at which a worker began."""

    @property
    def finished_at(self) -> datetime | None:
        """The time of the outcome."""


class SlowJob(NamedTuple):
    """A job whose runs take longer than the time between its slots."""

    job_name: str
    takes_seconds: float
    period_seconds: float
    overlap: str

    def __str__(self) -> str:
        return f"the runs of job {self.job_name} take {self.told}"

    @property
    def told(self) -> str:
        """How long they take, and what that leads to."""
        return (
            f"about {span(self.takes_seconds)}, longer than its period of {span(self.period_seconds)}: "
            f"{_BY_POLICY[self.overlap]} (overlap={self.overlap})"
        )

    @property
    def is_chosen(self) -> bool:
        """Whether its policy is one that somebody chooses for such jobs."""
        return self.overlap in (SKIP, ALLOW)


def slow_job(name: str, definition: Definition, runs: Iterable[Ran]) -> SlowJob | None:
    """Return the job if most of its last runs took longer than its period; newest runs first."""
    timeline = definition.timeline
    if not isinstance(timeline, Timeline):
        return None  # only its code knows the slots of a custom schedule class
    if isinstance(timeline.schedule, Every) and timeline.cadence == "fixed_delay":
        return None
    taken = _taken(timeline, runs)
    slow = [(took, period) for took, period in taken if took > period]
    if 2 * len(slow) <= len(taken):
        return None
    takes, period = median(took for took, _ in slow), median(period for _, period in slow)
    return SlowJob(name, takes, period, definition.policy.overlap)


def _taken(timeline: Timeline, runs: Iterable[Ran]) -> Sequence[tuple[float, float]]:
    times: list[tuple[float, float]] = []
    for run in runs:
        if run.started_at is None or run.finished_at is None:
            continue
        following = timeline.following(run.scheduled_for)
        if following is not None:
            took = (run.finished_at - run.started_at).total_seconds()
            times.append((took, (following - run.scheduled_for).total_seconds()))
        if len(times) == MOST_RUNS_COMPARED:
            break
    return times


INTERVALS = 3  # as many slots of the job have come due since the run began
LEAST_SECONDS = 10.0  # a job of every second may well take three
MOST_LONG_RUNS = 100  # told of at a time, those that have gone on for longest


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
        return f"check that worker; celery -A app sqlbeat jobs put {self.job_name} --max-runtime SECONDS bounds a run"


def long_runs(running: Iterable[RunningJob], rules: Rules) -> Iterator[LongRun]:
    """Return the running jobs whose run has gone on for several of their intervals."""
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
