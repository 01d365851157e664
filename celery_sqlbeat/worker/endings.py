"""What becomes of a run by the way its task ended. Pure; docs/outcomes.md is the table of it."""

from collections.abc import Callable
from enum import Enum

from celery_sqlbeat.config import Settings
from celery_sqlbeat.lifecycle import (
    CANCELLED,
    DLQ,
    SKIPPED,
    Backoff,
    Ending,
    after_failure,
    after_lost_lease,
    after_success,
    given_back,
    given_back_unknown,
    left_to_strategy,
)
from celery_sqlbeat.model import StartedRun


class End(Enum):
    """How a task ended, as its worker sees it. Celery's own retry is none: the attempt goes on (`Keeper.retrying`)."""

    SUCCESS = "success"
    REPLACED = "replaced"  # self.replace(): another task takes its place
    IGNORED = "ignored"  # raised Ignore
    UNSTORED = "result not stored"  # its body returned; what Celery does with the result after that has failed
    FAILURE = "failure"  # an exception, the soft time limit, SystemExit
    TIME_LIMIT = "time limit"  # the hard one: its process was killed
    CHILD_LOST = "child lost"  # its process died
    REQUEUED = "requeued"  # raised Reject with requeue
    REJECTED = "rejected"  # raised Reject without
    REVOKED = "revoked"  # before or during the run
    EXPIRED = "expired"  # its message was too old when its turn came
    STOPPED = "worker stopped"  # the worker's own end took it along; the slot is not to blame
    NOT_BEGUN = "not begun"
    LEFT = "left"  # the strategy of its task has taken the message, and nobody hears more of it
    UNKNOWN_TASK = "unknown task"  # this worker does not know it, and another one may


ELSEWHERE_SECONDS = 2.0  # on average, until a slot is sent again whose task this worker does not know


def backoff_of(settings: Settings) -> Backoff:
    """How long these settings want a failed slot to wait."""
    return Backoff(settings.retry_base, settings.retry_factor, settings.retry_max)


def ending(
    end: End,
    run: StartedRun,
    backoff: Backoff,
    random: Callable[[], float],
    error: str | None = None,
    traceback: str | None = None,
) -> Ending:
    """How the run ends."""
    if end is End.SUCCESS:
        return after_success()
    if end in (End.REPLACED, End.IGNORED):
        return after_success(end.value)
    if end is End.UNSTORED:
        return after_success(end.value, error)
    if end is End.REJECTED:
        return Ending(DLQ, end.value, None, 1, 0, error, traceback)
    if end is End.REVOKED:
        return Ending(CANCELLED, end.value)
    if end is End.EXPIRED:
        return Ending(SKIPPED, end.value)
    if end is End.STOPPED:
        return after_lost_lease(run.lost_leases, 0, end.value, counted=False)
    if end is End.LEFT:
        return left_to_strategy()
    if end is End.NOT_BEGUN:
        return given_back(end.value)
    if end is End.UNKNOWN_TASK:
        return given_back_unknown(ELSEWHERE_SECONDS * (0.5 + random()))
    return after_failure(run.failures, run.max_retries, backoff, random, error, traceback)
