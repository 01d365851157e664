"""Tell in sentences what a job does now and what became of each slot. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_sqlbeat.api.records import Job, Run
from celery_sqlbeat.api.status import Process
from celery_sqlbeat.config.payload_key import is_sealed
from celery_sqlbeat.config.validation import span
from celery_sqlbeat.errors import LOCKED
from celery_sqlbeat.model import CODE_SCHEDULE, FINISHED, LEFT_THE_CODE, lifecycle
from celery_sqlbeat.model.definition import Definition

_DISABLED = {
    FINISHED: "it is finished: its schedule has no slot left; give it another one with jobs put",
    LEFT_THE_CODE: "it is disabled: its entry left the beat_schedule that defined it; it comes back with the entry",
}
_SKIPPED = {
    "misfire": "skipped: no beat took it up in time, or it was later than its policy allows (misfire)",
    "overlap": "skipped: the run before it still went on (overlap)",
    "paused": "skipped: the job was paused",
    "expired": "skipped: its message expired before a worker took it",
    "unknown task": "skipped: no worker that knows its task came in time (unknown task)",
    "superseded": "skipped: another slot took its place (superseded)",
}
_MAY_COME = "; should it still come, it begins if no other run holds the job then"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that an explanation is made of."""

    job: Job
    definition: Definition | None
    """None where the row cannot be read; the job's quarantine says why."""
    runs: Sequence[Run]
    """Its attempts, the latest slot and attempt first."""
    processes: Sequence[Process]
    queue: str | None
    """The queue of its messages."""
    claimed_at: datetime | None
    published_at: datetime | None
    started: bool
    republishes: int
    is_unknown: bool = False
    """Whether living workers consume its queue, and none of them knows its task."""
    unknown_seconds: float = 0.0
    """How long a slot waits for one that does."""


def present_state(facts: Facts) -> Iterator[str]:
    """Tell what the job does now, the decisive sentence first."""
    job = facts.job
    if job.deleted:
        yield "it is deleted as soon as its run has ended"
    if job.quarantine is not None:
        yield f"it is set aside, since it cannot run as it is written: {job.quarantine}"
    if is_sealed(job.args) or is_sealed(job.kwargs):
        yield f"its {LOCKED}: only a beat that has their key sends it"
    if not job.enabled and not job.deleted:
        reason = job.disabled_reason or "no reason was given"
        yield _DISABLED.get(reason, f"it is paused ({reason}): go on with celery -A app sqlbeat jobs resume {job.name}")
    if job.locked_by is not None:
        yield from _held(facts)
    elif job.retry_at is not None:
        yield from _waits_for_retry(facts)
    elif job.enabled and job.quarantine is None:
        yield from _waits(facts)
    yield from _extra(facts)
    if facts.is_unknown and job.enabled:
        yield (
            f"no living worker of queue {facts.queue!r} knows its task {job.task}: nothing is sent, and a slot waits "
            f"for {span(facts.unknown_seconds)} at most; deploy the workers, or correct the task's name or its queue"
        )


def _held(facts: Facts) -> Iterator[str]:
    job = facts.job
    if job.run_id is None:
        yield f"it is locked by {job.locked_by}, but not for a run: somebody wrote that by hand, and a beat ends it"
        return
    left = _seconds_left(job.lease_ends_at, job.read_at)
    if facts.started:
        yield f"{job.locked_by} runs it, run {job.run_id}; " + _lease(left)
    elif facts.published_at is None:
        yield f"{job.locked_by} has claimed it and is about to send its message, run {job.run_id}; " + _lease(left)
    else:
        # Deadlines, not copies: one passes without a copy where no worker would take it.
        deadline = f", deadline {facts.republishes + 1} of {lifecycle.MAX_REPUBLISHES + 1}" if facts.republishes else ""
        yield f"its message was sent and waits for a worker{deadline}, run {job.run_id}; " + _queued(left)
        yield from _workers(facts)


def _waits_for_retry(facts: Facts) -> Iterator[str]:
    job, last = facts.job, _waiting(facts)
    left = _seconds_left(job.retry_at, job.read_at)
    when = "now" if left is None or left <= 0 else f"in {span(left)}"
    if last is not None and last.reason == lifecycle.UNKNOWN_TASK:
        yield f"its slot waits for a worker that knows its task {job.task}; it is checked again {when}"
    elif last is not None and last.state == lifecycle.SCHEDULED:
        yield f"its slot was given back ({last.reason or 'no reason was given'}); it is due again {when}"
    elif last is not None and last.reason == lifecycle.CANNOT_BE_PUBLISHED:
        yield f"no message can be made of it; it is tried again {when}"
    else:
        yield f"its last attempt did not succeed; it is tried again {when}"
    if last is not None and last.state != lifecycle.SCHEDULED and facts.definition is not None:
        counted = f"{_count(last.failures, 'failure')}, at most {_count(facts.definition.max_retries, 'retry')}"
        lost = f", {_count(last.lost_leases, 'lost lease')}" if last.lost_leases else ""
        yield f"so far {counted}{lost}: {last.error or last.reason or 'no error was recorded'}"
    if left is not None and left <= 0:
        yield from _beats(facts)


def _waits(facts: Facts) -> Iterator[str]:
    job = facts.job
    left = _seconds_left(job.next_run_time, job.read_at)
    if left is None:
        yield "it is new: a beat works out its first slot"
        yield from _beats(facts)
    elif left > 0:
        yield f"it is not due yet: its next slot comes in {span(left)}"
    else:
        yield f"it has been due for {span(-left)}"
        yield from _beats(facts)


def _extra(facts: Facts) -> Iterator[str]:
    job = facts.job
    for run in facts.runs:
        if run.state == lifecycle.RUNNING and run.id != job.run_id:
            yield f"run {run.id} goes on beside it on {run.started_by}"
        if run.due_at is not None:
            what = "an extra slot" if run.attempt == 1 else f"attempt {run.attempt} of an extra slot or a replay"
            is_paused = not job.enabled and job.disabled_reason != FINISHED
            wait = "is resumed" if is_paused else "is free" if job.locked_by else "is claimed"
            yield f"{what} waits until the job {wait}, run {run.id}"
            if not is_paused and job.locked_by is None:
                yield from _beats(facts)


def _beats(facts: Facts) -> Iterator[str]:
    alive = [process for process in facts.processes if process.kind == "beat" and process.state == "alive"]
    if not alive:
        yield "no beat is alive to claim it: start celery -A app beat --scheduler celery_sqlbeat.Scheduler"
    elif facts.job.schedule == CODE_SCHEDULE:
        yield f"only a beat whose code defines it may claim it, one of {facts.job.code_owner}"
    else:
        who = f"one of {len(alive)} living beats" if len(alive) > 1 else "the living beat"
        yield f"{who} claims it at its next poll"


def _workers(facts: Facts) -> Iterator[str]:
    if facts.queue is None:
        return
    consuming = [
        process.id
        for process in facts.processes
        if process.kind == "worker" and process.state == "alive" and facts.queue in process.queues
    ]
    if consuming:
        yield f"queue {facts.queue!r} is consumed by {', '.join(consuming)}"
    else:
        yield f"no living worker with celery-sqlbeat consumes queue {facts.queue!r}: start one with -Q {facts.queue}"


def _waiting(facts: Facts) -> Run | None:
    """Return the attempt that is tried again or given back; extra slots have their own instant."""
    waiting = (lifecycle.RETRY, lifecycle.SCHEDULED)
    return next((run for run in facts.runs if run.state in waiting and run.due_at is None), None)


def _seconds_left(at: object, now: datetime) -> float | None:
    return (at - now).total_seconds() if isinstance(at, datetime) else None


def _lease(left: float | None) -> str:
    if left is None:
        return "its lease has no end that can be read"
    return (
        f"{span(left)} of the lease are left"
        if left > 0
        else f"the lease ended {span(-left)} ago: a beat takes it over"
    )


def _queued(left: float | None) -> str:
    if left is None or left > 0:
        return f"unless one starts it, a beat checks it in {span(left or 0.0)}"
    return f"it should have been started {span(-left)} ago: a beat checks it"


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def slot_text(attempts: Sequence[Run]) -> str:
    """Tell what became of a slot, given its attempts, the last first."""
    last = attempts[0]
    text = _last_attempt(last)
    if last.slots > 1:
        text = f"{last.slots} slots {text}"
    if last.attempt > 1:
        text += f"; attempt {last.attempt}"
    return text


def _last_attempt(run: Run) -> str:
    if run.state == lifecycle.SUCCESS:
        return _ran(run) + (f" ({run.reason})" if run.reason else "")
    if run.state == lifecycle.DLQ:
        return f"failed for good, {run.reason or 'no more retries'}: {run.error or 'no error was recorded'}"
    if run.state == lifecycle.DISPATCHED:
        if run.reason == lifecycle.LEFT_TO_OTHERS:
            return "sent beside workers without celery-sqlbeat; if one of them ran it, nobody recorded that"
        if run.reason == lifecycle.LEFT_TO_STRATEGY:
            return "given to the strategy of its task; how it ended nobody recorded"
        if run.reason:
            return f"sent, but {run.reason} before its last deadline: no worker took its message{_MAY_COME}"
        sent = f"sent without a lease{_late(run, run.published_at)}"
        return f"{sent}; what became of it nobody recorded, since no worker of this store has begun it so far"
    if run.state == lifecycle.SKIPPED and run.reason == lifecycle.OVERLAP and run.published_at is not None:
        return "skipped: its message came after its last deadline, while another run held the job (overlap)"
    if run.state == lifecycle.SKIPPED:
        return _SKIPPED.get(run.reason or "", f"skipped: {run.reason or 'no reason was recorded'}")
    if run.state == lifecycle.CANCELLED and run.reason == lifecycle.REPLACED_REASON:
        return "cancelled: the next slot came while it went on (overlap = replace)"
    if run.state == lifecycle.CANCELLED:
        return f"cancelled: {run.reason or 'no reason was recorded'}"
    if run.state == lifecycle.RUNNING:
        return f"runs on {run.started_by}{_late(run, run.started_at)}"
    if run.state == lifecycle.CLAIMED:
        waits = "its message waits for a worker" if run.published_at else "its message is about to be sent"
        return f"claimed by {run.claimed_by}: {waits}"
    if run.state == lifecycle.RETRY:
        return f"did not succeed ({run.reason or 'failed'}): {run.error or 'no error was recorded'}; it is tried again"
    return f"waits for a beat{f' ({run.reason})' if run.reason else ''}"


def _ran(run: Run) -> str:
    took = "" if run.seconds is None else f" for {span(run.seconds)}"
    return f"ran{took} on {run.started_by or 'a worker that nobody recorded'}{_late(run, run.started_at)}"


def _late(run: Run, at: datetime | None) -> str:
    late = 0.0 if at is None else (at - run.scheduled_for).total_seconds()
    return f", {span(late)} late" if late >= 1.0 else ""
