"""Why a job ran or did not run: what it does now, what became of its last slots, when it fires next. Pure.

Whoever asks has gathered the facts; nothing here looks at a clock or a database.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_sqlbeat.handle.facts import Facts
from celery_sqlbeat.handle.plight import plight
from celery_sqlbeat.handle.records import Job, Run, plain
from celery_sqlbeat.handle.stories import story
from celery_sqlbeat.model import FINISHED
from celery_sqlbeat.pace import slow_job
from celery_sqlbeat.policy import ALLOW, QUEUE, REPLACE, SKIP
from celery_sqlbeat.schedule import Every, Fire, Timeline
from celery_sqlbeat.schedule.forecast import Forecast, forecasts

FIRES = 10
_OVERLAPS = {
    QUEUE: "slots whose time comes while a run goes on become one run right after it, for the latest (overlap=queue)",
    SKIP: "a slot whose time comes while a run goes on is skipped, and recorded (overlap=skip)",
    ALLOW: "a slot whose time comes while a run goes on starts beside it, without the job's lease (overlap=allow)",
    REPLACE: "a slot whose time comes while a run goes on takes its place: the run is cancelled (overlap=replace)",
}


@dataclass(frozen=True, slots=True)
class SlotStory:
    """What became of one slot, or of a gap of them."""

    scheduled_for: datetime
    last_slot: datetime | None
    slots: int
    kind: str
    state: str
    says: str
    attempts: tuple[str, ...]
    """The run ids of its attempts, the last one first."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer."""

    job: Job
    now: tuple[str, ...]
    """What it does at this moment, and why."""
    slots: tuple[SlotStory, ...]
    """The last ones, newest first."""
    next_fires: tuple[Forecast, ...]
    remarks: tuple[str, ...]
    """What holds for all of them."""

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "job": self.job.as_json(),
            "now": list(self.now),
            "slots": [
                {
                    "scheduled_for": plain(each.scheduled_for),
                    "last_slot": plain(each.last_slot),
                    "slots": each.slots,
                    "kind": each.kind,
                    "state": each.state,
                    "says": each.says,
                    "attempts": list(each.attempts),
                }
                for each in self.slots
            ],
            "next_fires": [
                {"at": plain(each.at), "local": each.local.isoformat(), "note": each.note} for each in self.next_fires
            ],
            "remarks": list(self.remarks),
        }


def explain(facts: Facts) -> Explanation:
    """Tell why the job ran or did not run at each of its last slots, and what comes."""
    fires = tuple(itertools.islice(_fires(facts), FIRES))
    return Explanation(facts.job, tuple(plight(facts)), tuple(_stories(facts.runs)), fires, tuple(_remarks(facts)))


def _stories(runs: Iterable[Run]) -> Iterator[SlotStory]:
    for (at, kind), group in itertools.groupby(runs, lambda run: (run.scheduled_for, run.kind)):
        attempts = list(group)
        last = attempts[0]
        ids = tuple(run.id for run in attempts)
        yield SlotStory(at, last.last_slot, last.slots, kind, last.state, story(attempts), ids)


def _fires(facts: Facts) -> Iterator[Forecast]:
    job, definition = facts.job, facts.definition
    timeline = definition.timeline if definition is not None else None
    if not isinstance(timeline, Timeline) or definition is None:
        return
    slot = _next_slot(facts, timeline)
    if slot is not None:
        yield from forecasts(timeline, slot, job.read_at, job.id)


def _next_slot(facts: Facts, timeline: Timeline) -> datetime | None:
    """The next slot that is not being dealt with already."""
    job = facts.job
    due, now = job.next_run_time, job.read_at
    if job.disabled_reason == FINISHED:
        return None
    if not isinstance(due, datetime):
        return timeline.first_slot(now, job.start if isinstance(job.start, datetime) else None, job.id)
    if due > now and job.locked_by is None:
        return due
    answer = timeline.plan(due, now, key=job.id)
    overlap = facts.definition.policy.overlap if facts.definition is not None else QUEUE
    if job.locked_by is None and job.retry_at is None and job.enabled:
        # What is due is fired for the latest of the slots that were missed.
        return answer.slot if isinstance(answer, Fire) else answer.next_slot
    if isinstance(timeline.schedule, Every) and timeline.cadence == "from_start" and facts.claimed_at is not None:
        planned = facts.claimed_at + timeline.schedule.interval
        if overlap == SKIP and planned <= now:
            return timeline.passed_by(planned, now, job.id).next_slot  # the claim and as many intervals
        return max(planned, now)
    if overlap == QUEUE and isinstance(answer, Fire) and answer.delay is None and answer.slot != due:
        return answer.slot  # it has come already, and runs as soon as the run ends
    if isinstance(answer, Fire) and answer.next_slot is None and answer.delay is not None:
        return now + timedelta(seconds=answer.delay)
    return answer.next_slot


def _remarks(facts: Facts) -> Iterator[str]:
    job, definition = facts.job, facts.definition
    if definition is None:
        return
    timeline = definition.timeline
    if not isinstance(timeline, Timeline):
        yield "only the code that defines this job knows when it fires"
        return
    yield f"{timeline.schedule}, read in {timeline.zone}"
    if not job.enabled:
        yield "none of these fires before the job is resumed"
    if isinstance(timeline.schedule, Every) and timeline.cadence == "from_start":
        yield "each interval counts from the start of the run before it, so a late run moves the later ones"
    if isinstance(timeline.schedule, Every) and timeline.cadence == "fixed_delay":
        yield "each interval counts from the end of the run before it"
    policy = definition.policy
    yield (
        _OVERLAPS[policy.overlap]
        if policy.max_parallel is None or policy.overlap != ALLOW
        else (f"a slot whose time comes while {policy.max_parallel} runs go on is skipped (max_parallel)")
    )
    slow = slow_job(job.name, definition, facts.runs)
    if slow is not None:
        yield f"its runs take {slow.told}"
    if policy.misfire == "skip":
        grace = 60.0 if policy.misfire_grace is None else policy.misfire_grace
        yield f"a slot that is more than {grace:g} s late is skipped (misfire=skip)"
