"""What became of one slot, told from its attempts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from celery_sqlbeat import lifecycle
from celery_sqlbeat.durations import span
from celery_sqlbeat.handle.records import Run

_SKIPPED = {
    "misfire": "skipped: no beat took it up in time, or it was later than its policy allows (misfire)",
    "overlap": "skipped: the run before it still went on (overlap)",
    "paused": "skipped: the job was paused",
    "expired": "skipped: its message expired before a worker took it",
    "unknown task": "skipped: no worker that knows its task came in time (unknown task)",
    "superseded": "skipped: another slot took its place (superseded)",
}

_MAY_COME = "; should it still come, it begins if no other run holds the job then"


def story(attempts: Sequence[Run]) -> str:
    """The story of a slot, given its attempts, the last one first."""
    last = attempts[0]
    text = _of_the_last(last)
    if last.slots > 1:
        text = f"{last.slots} slots {text}"
    if last.attempt > 1:
        text += f"; attempt {last.attempt}"
    return text


def _of_the_last(run: Run) -> str:
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
