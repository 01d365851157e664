"""The requests of Celery's worker: hear what Celery says of one, and say what Celery does not.

A watched request gets a class over its own, one for all requests of that class. Nothing is bound to
the single request, so no reference cycle waits for the garbage collector after each task.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback  # type: ignore[attr-defined]  # not in its stubs
from celery import signals
from celery.exceptions import WorkerLostError
from celery.worker import state
from celery.worker.request import Request

from celery_sqlbeat import events
from celery_sqlbeat.celery_bridge.tasks import AttemptFailed, Report, attempt_failed, hide_from_monitors
from celery_sqlbeat.events.emitter import logger

Instead = Callable[[], None]
"""What happens instead of what Celery would do."""

_OBSERVER = "sqlbeat_observer"
_CLASS = "_sqlbeat_watched"  # kept by the class below it, which Celery makes anew with each connection


class RequestObserver(Protocol):
    """Hears what Celery says of one request, each time before Celery acts on it."""

    @property
    def may_acknowledge(self) -> bool:
        """Whether Celery may acknowledge or reject the message now."""

    def acknowledge_later(self, say: Callable[[], Any]) -> None:
        """Keep this acknowledgement or rejection until it may be sent."""

    def accepted(self, pid: Any) -> None:
        """Hear that a process or a green thread of the pool has the task."""

    def succeeded(self) -> None:
        """Hear that the task returned."""

    def failed(self, error: BaseException, exc_info: Any, is_reported: bool) -> Instead | None:
        """Hear by which error the task ended; `is_reported`: by its own process, too."""

    def timed_out(self, seconds: float) -> Instead | None:
        """Hear that the hard time limit has ended the task."""

    def revoked(self, is_expired: bool) -> None:
        """Hear that the task was revoked before its body began, or had expired."""

    def terminating(self) -> None:
        """Hear that somebody ends the task while it runs."""

    def cancels_by_celery(self) -> bool:
        """Return whether Celery itself can end the task, as it wants to; else stop it."""


def watch(req: Any, observer: RequestObserver, check_prerun: Callable[..., Any]) -> None:
    """Tell the observer what Celery says from now on; the pool's process calls `check_prerun`."""
    base = type(req)
    watched = vars(base).get(_CLASS)
    if watched is None:
        watched = _watched(base, check_prerun)
        for each in (base, watched):  # a request that is watched already keeps its class
            setattr(each, _CLASS, watched)
    req.__class__ = watched
    setattr(req, _OBSERVER, observer)


def let_go(req: Any) -> None:
    """Stop watching: the task is gone, and its message may be acknowledged."""
    setattr(req, _OBSERVER, None)


def _watched(base: Any, check_prerun: Callable[..., Any]) -> Any:
    hooks: dict[str, Any] = {name: _telling(getattr(base, name), tell) for name, tell in _TOLD.items()}
    hooks |= {name: _late(getattr(base, name)) for name in ("acknowledge", "reject")}
    hooks["cancel"] = _cancel(base.cancel)
    hooks["execute_using_pool"] = lambda req, pool, **_: hand_over(req, pool, check_prerun)
    return type(base.__name__, (base,), {**hooks, "__module__": base.__module__})


def _telling(original: Callable[..., Any], tell: Callable[..., Instead | None]) -> Callable[..., Any]:
    def call(req: Any, *args: Any, **kwargs: Any) -> Any:
        observer, instead = getattr(req, _OBSERVER), None
        if observer is not None:
            try:
                instead = tell(observer, *args, **kwargs)
            except Exception as error:
                events.fault_caught(doing="note how a task ended", error=error)
        return original(req, *args, **kwargs) if instead is None else instead()

    return call


def _late(original: Callable[..., Any]) -> Callable[..., Any]:
    def say(req: Any, *args: Any, **kwargs: Any) -> Any:
        observer = getattr(req, _OBSERVER)
        if observer is None or observer.may_acknowledge:
            return original(req, *args, **kwargs)
        observer.acknowledge_later(partial(original, req, *args, **kwargs))
        return None

    return say


def _cancel(original: Callable[..., Any]) -> Callable[..., Any]:
    def cancel(req: Any, pool: Any, signal: Any = None, **options: Any) -> Any:
        observer = getattr(req, _OBSERVER)
        if observer is None:
            return None  # the task is gone, and its process runs another one
        if observer.cancels_by_celery():
            return original(req, pool, signal, **options)
        return req._announce_cancelled(**options)

    return cancel


# With Celery's own parameters, which `self_test` and the table of symbols hold to be these.


def _on_accepted(observer: RequestObserver, pid: Any, _time_accepted: float) -> None:
    observer.accepted(pid)


def _on_success(observer: RequestObserver, failed__retval__runtime: Any, **_: Any) -> None:
    if not failed__retval__runtime[0]:  # else `on_failure` follows
        observer.succeeded()


def _on_failure(
    observer: RequestObserver, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
) -> Instead | None:
    error = exc_info.exception
    if isinstance(error, ExceptionWithTraceback):
        error = error.exc
    return observer.failed(error, exc_info, return_ok)


def _on_timeout(observer: RequestObserver, soft: bool, timeout: float, **_: Any) -> Instead | None:
    return None if soft else observer.timed_out(timeout)


def _on_terminate(observer: RequestObserver, *_: Any, **__: Any) -> None:
    observer.terminating()


def _on_revoked(observer: RequestObserver, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
    if not terminated:
        observer.revoked(expired)


_TOLD: dict[str, Callable[..., Instead | None]] = {
    "on_accepted": _on_accepted,
    "on_success": _on_success,
    "on_failure": _on_failure,
    "on_timeout": _on_timeout,
    "terminate": _on_terminate,
    "_announce_revoked": _on_revoked,
}


class _CheckingPool:
    """A pool whose processes check a run before they begin its body."""

    def __init__(self, pool: Any, check_prerun: Callable[..., Any]) -> None:
        self._pool, self._check_prerun = pool, check_prerun

    def apply_async(self, target: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> Any:
        """Hand over the check, which calls the target."""
        return self._pool.apply_async(self._check_prerun, args=(target, *args), **options)


def hand_over(req: Any, pool: Any, check_prerun: Callable[..., Any]) -> Any:
    """Hand a request to a pool of processes, which call `check_prerun` before the body."""
    return Request.execute_using_pool(req, _CheckingPool(pool, check_prerun))  # type: ignore[arg-type]  # a stand-in


def is_with_pool(req: Any) -> bool:
    """Return whether the pool has taken the task that was handed to it."""
    return req._apply_result is not None


def finished(req: Any) -> None:
    """Tell Celery's worker that it need not think of this request any more."""
    state.task_ready(req)


def drop(req: Any, reason: str, is_cancelled: bool = False) -> None:
    """Acknowledge the message of a task that does not run here; REVOKED is what was cancelled."""
    if is_cancelled and isinstance(req, Request):
        tell_revoked(req)
        return
    req.acknowledge()
    finished(req)
    req.send_event("task-rejected", name=req.name, requeue=False, reason=reason)


def drop_expired(req: Any) -> None:
    """Drop a message as Celery drops an expired one; Celery judges by the worker's clock."""
    if isinstance(req, Request):
        req._announce_revoked("expired", False, None, True)  # type: ignore[attr-defined]  # not in its stubs
    else:
        drop(req, "expired")


def tell_revoked(req: Any) -> None:
    """Tell signals, monitors and the backend that a task was revoked; acknowledge its message."""
    try:
        # As one that was terminated: the run of another one would be looked for, and ended.
        req._announce_revoked("cancelled", True, None, False)
    except Exception as error:  # backends raise what their clients raise
        events.step_failed(step="store that a task was cancelled", subject=f"{req.name}[{req.id}]", error=error)
        finished(req)
        req.acknowledge()


def return_now(req: Any) -> None:
    """Give the message back to the broker at once.

    `Request.reject` only asks the event loop to do so, which is too late where the worker ends.
    """
    if not req.acknowledged:
        req.message.reject_log_error(logger, req.connection_errors, True)
        req.acknowledged = True
        req.send_event("task-rejected", requeue=True)
    finished(req)


def tell_retried(req: Any, error: BaseException, exc_info: Any, seconds: float, told: Report) -> None:
    """Tell hooks, signals, monitors and the backend of a retry, and acknowledge the message."""
    if not isinstance(error, Exception):  # the SystemExit of a task must not end who reads the result
        error = WorkerLostError(told.error)
    failed = attempt_failed(error, seconds, told)
    events.run_retried(task_name=req.name, run_id=req.id, error=failed)
    finished(req)
    _store_retry(req, failed, exc_info)
    try:
        _call_retry_hooks(req, failed, exc_info)
    except Exception as fault:  # the shop's own code; the message is acknowledged all the same
        events.fault_caught(doing="call the hooks of a task that is tried again", error=fault, subject=req.id)
    try:
        raise failed
    except AttemptFailed:
        req.on_retry(ExceptionInfo())


def tell_failed(req: Any, error: Exception) -> None:
    """Tell Celery of a failure that it does not know of."""
    try:
        raise error
    except Exception:
        req.on_failure(ExceptionInfo())


def tell_nothing() -> None:
    """Say nothing: what Celery says next is enough."""


def tell_returned(req: Any) -> None:
    """Acknowledge a task that returned, and whose result could not be stored."""
    finished(req)
    if req.task.acks_late:
        req.acknowledge()
    req.send_event("task-succeeded", result="not stored", runtime=None)


def is_requeued(req: Any, error: BaseException) -> bool:
    """Return whether Celery gives the message of a lost process back to the broker."""
    is_lost = isinstance(error, WorkerLostError | SystemExit)
    return bool(is_lost and req.task.acks_late and getattr(req.task, "reject_on_worker_lost", False))


def _store_retry(req: Any, failed: AttemptFailed, exc_info: Any) -> None:
    if req.store_errors:
        trace = getattr(exc_info, "traceback", None)
        try:
            req.task.backend.mark_as_retry(req.id, failed.exc, trace, request=req._context)
        except Exception as error:  # backends raise what their clients raise
            events.step_failed(step="store that a task is tried again", subject=f"{req.name}[{req.id}]", error=error)


def _call_retry_hooks(req: Any, failed: AttemptFailed, exc_info: Any) -> None:
    task, context = req.task, req._context  # hooks and signals expect this very object
    hide_from_monitors(context)
    task.request_stack.push(context)
    try:
        task.on_retry(failed.exc, req.id, req.args, req.kwargs, exc_info)
        signals.task_retry.send(sender=task, request=context, reason=failed, einfo=exc_info)
    finally:
        task.request_stack.pop()
