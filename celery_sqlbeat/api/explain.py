"""Explain why a job ran or did not run: its state, its last slots, its next fires."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from celery_sqlbeat.api.explain_text import Facts, present_state, slot_text
from celery_sqlbeat.api.records import Job, Run, job_of, plain, plain_fields, run_of
from celery_sqlbeat.api.reschedule import definition_of
from celery_sqlbeat.api.runs import all_runs
from celery_sqlbeat.api.status import HOUR, processes, read_worker_tasks, tasks_of_queue
from celery_sqlbeat.celery_bridge.app import queue_of
from celery_sqlbeat.config.policy import ALLOW, QUEUE, REPLACE, SKIP
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.errors import NoSuchJob
from celery_sqlbeat.model import CODE_SCHEDULE, FINISHED, JobRecord
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.nodes import nobody_has
from celery_sqlbeat.model.run_times import slow_job
from celery_sqlbeat.schedule import Every, Fire, Timeline
from celery_sqlbeat.schedule.timeline import Forecast, forecasts
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import JobQuery, RunQuery

FIRES = 10  # next fires of an explanation
PAGE = 100  # attempts that are read at a time
_OVERLAPS = {
    QUEUE: "slots whose time comes while a run goes on become one run right after it, for the latest (overlap=queue)",
    SKIP: "a slot whose time comes while a run goes on is skipped, and recorded (overlap=skip)",
    ALLOW: "a slot whose time comes while a run goes on starts beside it, without the job's lease (overlap=allow)",
    REPLACE: "a slot whose time comes while a run goes on takes its place: the run is cancelled (overlap=replace)",
}


@dataclass(frozen=True, slots=True)
class SlotHistory:
    """What became of one slot, or of a gap."""

    scheduled_for: datetime
    last_slot: datetime | None
    slots: int
    kind: str
    state: str
    says: str
    attempts: tuple[str, ...]
    """The run ids of its attempts, the last first."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a job."""

    job: Job
    now: tuple[str, ...]
    """What it does now, and why."""
    slots: tuple[SlotHistory, ...]
    """The last slots, newest first."""
    next_fires: tuple[Forecast, ...]
    remarks: tuple[str, ...]
    """What holds for all fires."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "job": self.job.as_json(),
            "now": list(self.now),
            "slots": [plain_fields(slot) for slot in self.slots],
            "next_fires": [
                {"at": plain(fire.at), "local": fire.local.isoformat(), "note": fire.note} for fire in self.next_fires
            ],
            "remarks": list(self.remarks),
        }


def explain(facts: Facts) -> Explanation:
    """Explain each of the last slots, and what comes. Pure."""
    fires = tuple(itertools.islice(_fires(facts), FIRES))
    return Explanation(
        facts.job, tuple(present_state(facts)), tuple(_slot_histories(facts.runs)), fires, tuple(_remarks(facts))
    )


def _slot_histories(runs: Iterable[Run]) -> Iterator[SlotHistory]:
    for (at, kind), group in itertools.groupby(runs, lambda run: (run.scheduled_for, run.kind)):
        attempts = list(group)
        last = attempts[0]
        ids = tuple(run.id for run in attempts)
        yield SlotHistory(at, last.last_slot, last.slots, kind, last.state, slot_text(attempts), ids)


def _fires(facts: Facts) -> Iterator[Forecast]:
    job, timeline = facts.job, _timeline_of(facts)
    slot = None if timeline is None else _next_slot(facts, timeline)
    if timeline is not None and slot is not None:
        yield from forecasts(timeline, slot, job.read_at, job.id)


def _timeline_of(facts: Facts) -> Timeline | None:
    """Return the timeline of the job; None if it has none, or only its code knows it."""
    timeline = None if facts.definition is None else facts.definition.timeline
    return timeline if isinstance(timeline, Timeline) and facts.job.schedule != CODE_SCHEDULE else None


def _next_slot(facts: Facts, timeline: Timeline) -> datetime | None:
    """Return the next slot that no run has yet."""
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
        # The latest of the missed slots is fired.
        return answer.slot if isinstance(answer, Fire) else answer.next_slot
    if isinstance(timeline.schedule, Every) and timeline.cadence == "from_start" and facts.claimed_at is not None:
        planned = facts.claimed_at + timeline.schedule.interval
        if overlap == SKIP and planned <= now:
            return timeline.passed_by(planned, now, job.id).next_slot  # intervals counted from the claim
        return max(planned, now)
    if overlap == QUEUE and isinstance(answer, Fire) and answer.delay is None and answer.slot != due:
        return answer.slot  # it is due already, and fires as soon as the run ends
    if isinstance(answer, Fire) and answer.next_slot is None and answer.delay is not None:
        return now + timedelta(seconds=answer.delay)
    return answer.next_slot


def _remarks(facts: Facts) -> Iterator[str]:
    job, definition = facts.job, facts.definition
    if definition is None:
        return
    timeline = _timeline_of(facts)
    if timeline is None:
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
        else f"a slot whose time comes while {policy.max_parallel} runs go on is skipped (max_parallel)"
    )
    slow = slow_job(job.name, definition, facts.runs)
    if slow is not None:
        yield f"its runs take {slow.told}"
    if policy.misfire == "skip":
        grace = 60.0 if policy.misfire_grace is None else policy.misfire_grace
        yield f"a slot that is more than {grace:g} s late is skipped (misfire=skip)"


def explain_job(app: Any, store: Store, settings: Settings, rules: Rules, name: str, slots: int) -> Explanation:
    """Read what an explanation needs, and explain the job."""
    row = store.jobs(JobQuery(names=[name])).get(name)
    if row is None:
        raise NoSuchJob(name, settings.namespace)
    definition = definition_of(row, rules)
    nodes = store.nodes(max(HOUR, settings.worker_memory))
    queue = None if definition is None else queue_of(app, definition.call)
    known = tasks_of_queue(read_worker_tasks(store, nodes, settings.worker_alive), queue)
    return explain(
        Facts(
            job=job_of(row, rules.policies),
            definition=definition,
            runs=list(_attempts(store, row, slots)),
            processes=processes(nodes, settings),
            queue=queue,
            claimed_at=row.claimed_at,
            published_at=row.published_at,
            started=row.started_retry is not None,
            republishes=row.republishes,
            is_unknown=definition is not None and nobody_has(definition.call.task_name, known),
            unknown_seconds=settings.unknown_task_timeout,
        )
    )


def _attempts(store: Store, row: JobRecord, slots: int) -> Iterator[Run]:
    """Read all attempts of the last slots, the latest first."""
    seen = set[tuple[object, str]]()
    for attempt in all_runs(store, RunQuery(job_id=row.job_id, page_size=PAGE)):
        seen.add((attempt.scheduled_for, attempt.kind))
        if len(seen) > slots:
            return
        run = run_of(attempt)
        # The attempt's own row has the instant only once it starts or ends.
        if attempt.run_id == row.run_id and run.published_at is None:
            run = replace(run, published_at=row.published_at)
        yield run
