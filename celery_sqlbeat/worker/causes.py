"""How a task ended, by the error that Celery reports of it."""

from typing import Any

from billiard.exceptions import Terminated, WorkerLostError
from celery.exceptions import Ignore, Reject
from celery.worker import state

from celery_sqlbeat.errors import LeaseLost
from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.reports import NO_REPORT, Report, report

_REPLACED = "Replaced by new task"  # what Celery's Task.replace says

AFTER_RETURN = (End.IGNORED, End.FAILURE, End.TIME_LIMIT, End.CHILD_LOST, End.STOPPED, End.REVOKED)
"""How a run may seem to have ended whose body had returned: what came after that is no part of it."""

FAILURES = (End.FAILURE, End.TIME_LIMIT, End.CHILD_LOST)
"""Of these Celery hears as of its own retries, where another attempt follows."""

OF_THE_BODY = (End.SUCCESS, End.IGNORED, End.FAILURE, End.UNSTORED)
"""What a body may say of itself after it has sent its own retry, which goes on with the attempt all the same."""


def how_it_ended(error: BaseException, exc_info: Any, is_terminating: bool, is_cancelled: bool) -> tuple[End, Report]:
    """`is_terminating`: somebody revoked or cancelled it while it ran; `is_cancelled`: that was Celery itself."""
    told = report(error, exc_info)
    if isinstance(error, Reject):
        return _how_rejected(error), told
    if isinstance(error, LeaseLost) and is_terminating:
        return End.STOPPED, NO_REPORT
    if isinstance(error, Ignore):
        return (End.REPLACED if str(error) == _REPLACED else End.IGNORED), NO_REPORT
    if isinstance(error, Terminated) or (is_terminating and isinstance(error, WorkerLostError | SystemExit)):
        return (End.STOPPED if is_cancelled else End.REVOKED), NO_REPORT
    if isinstance(error, WorkerLostError):
        if is_stopping():
            return End.STOPPED, NO_REPORT  # the signal that stops the worker reached its children, too
        return End.CHILD_LOST, told
    if is_terminating and is_stopping():
        return End.STOPPED, NO_REPORT  # in solo, Celery's own cancelling raises inside the body
    return End.FAILURE, told


def is_stopping() -> bool:
    """Whether this worker has been told to end."""
    return any(flag is not None and flag is not False for flag in (state.should_stop, state.should_terminate))


def _how_rejected(error: Reject) -> End:
    """A task may refuse its message. Celery does so, too, where it could not send what `self.retry()` asked for."""
    unsent_retry = isinstance(error.reason, Exception)
    return End.REQUEUED if error.requeue or unsent_retry else End.REJECTED
