"""Jobs whose runs take longer than their period: `overlap` says what becomes of the slots meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import NamedTuple, Protocol

from celery_sqlbeat.definition import Definition
from celery_sqlbeat.durations import span
from celery_sqlbeat.policy import ALLOW, QUEUE, REPLACE, SKIP
from celery_sqlbeat.schedule import Every, Timeline

MOST_RUNS = 10  # of each job, the last ones
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
    def scheduled_for(self) -> datetime: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def finished_at(self) -> datetime | None: ...


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
    """The job, if most of its last runs took longer than the time from their slot to the next; `runs` newest first."""
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
    found: list[tuple[float, float]] = []
    for run in runs:
        if run.started_at is None or run.finished_at is None:
            continue
        following = timeline.following(run.scheduled_for)
        if following is not None:
            took = (run.finished_at - run.started_at).total_seconds()
            found.append((took, (following - run.scheduled_for).total_seconds()))
        if len(found) == MOST_RUNS:
            break
    return found
