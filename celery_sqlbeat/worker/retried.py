"""Tells Celery what its main process would take for a failure: another attempt follows, or the body had returned.

As `Request._announce_cancelled` does, where Celery itself does so in the main process.
"""

import logging
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery import signals
from celery.worker import state

from celery_sqlbeat.worker.failed import AttemptFailed, attempt_failed
from celery_sqlbeat.worker.monitors import leave_checked_in
from celery_sqlbeat.worker.reports import Report

logger = logging.getLogger(__name__)


def tell_retried(req: Any, error: BaseException, exc_info: Any, seconds: float, told: Report) -> None:
    """The state RETRY, the hook, the signal and the event of a retry; the message is acknowledged as for a retry."""
    if not isinstance(error, Exception):  # whoever reads the result must not end by the SystemExit of a task
        error = WorkerLostError(told.error)
    failed = attempt_failed(error, seconds, told)
    logger.warning("task %s[%s] retry: %s", req.name, req.id, failed)
    state.task_ready(req)
    _store(req, failed, exc_info)
    try:
        _tell_hooks(req, failed, exc_info)
    except Exception:  # of the shop's own code: the message is seen to all the same
        logger.exception("a hook of task %s[%s], which is tried again, failed", req.name, req.id)
    try:
        raise failed
    except AttemptFailed:
        req.on_retry(ExceptionInfo())


def tell_failed(req: Any, error: Exception) -> None:
    """A failure that Celery does not know of itself."""
    try:
        raise error
    except Exception:
        req.on_failure(ExceptionInfo())


def gives_back(req: Any, error: BaseException) -> bool:
    """Whether Celery gives the message of a lost process back to the broker."""
    is_lost = isinstance(error, WorkerLostError | SystemExit)
    return bool(is_lost and req.task.acks_late and getattr(req.task, "reject_on_worker_lost", False))


def say_nothing() -> None:
    """Something else that Celery says follows."""


def tell_returned(req: Any) -> None:
    """The body returned, and its result is nowhere: no failure, and nothing that another try would mend."""
    state.task_ready(req)
    if req.task.acks_late:
        req.acknowledge()
    req.send_event("task-succeeded", result="not stored", runtime=None)


def _store(req: Any, failed: AttemptFailed, exc_info: Any) -> None:
    if req.store_errors:
        trace = getattr(exc_info, "traceback", None)
        try:
            req.task.backend.mark_as_retry(req.id, failed.exc, trace, request=req._context)
        except Exception as error:  # backends raise what their clients raise
            logger.error("that task %s[%s] is tried again could not be stored: %r", req.name, req.id, error)


def _tell_hooks(req: Any, failed: AttemptFailed, exc_info: Any) -> None:
    task, context = req.task, req._context  # there is no other way to the request that hooks and signals expect
    leave_checked_in(context)
    task.request_stack.push(context)
    try:
        task.on_retry(failed.exc, req.id, req.args, req.kwargs, exc_info)
        signals.task_retry.send(sender=task, request=context, reason=failed, einfo=exc_info)
    finally:
        task.request_stack.pop()
