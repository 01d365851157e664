"""Let a task run once at a time for each key, over all workers: a lock that lives as long as it."""

from __future__ import annotations

import inspect
import string
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.app import app_in_use, running_task
from celery_sqlbeat.errors import FieldError, LockNotAcquired
from celery_sqlbeat.model.locks import LEAST_EXPIRY, checked_key, seconds_of

SKIP, RETRY, FAIL = "skip", "retry", "fail"
_AGAIN_SECONDS = 5.0  # at least, until a task that found its lock taken is tried again

Function = TypeVar("Function", bound=Callable[..., Any])
_handles: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def exclusive(*, key: str, wait: float = 0, on_busy: str = SKIP, expiry: float = 30) -> Callable[[Function], Function]:
    """Let one call of a task's function run at a time for each key, as in "report:{account}".

    `wait`: how many seconds to wait for the lock. `on_busy`: where somebody else holds it still,
    "skip" returns None, "retry" lets Celery retry the task, and "fail" raises LockNotAcquired.
    `expiry`: after so many seconds the lock of a process that has died is free.
    """
    checked_key(key)
    wait_seconds, expiry_seconds = seconds_of("wait", wait), seconds_of("expiry", expiry, LEAST_EXPIRY)
    if on_busy not in (SKIP, RETRY, FAIL):
        raise FieldError("on_busy", on_busy, f'write "{SKIP}", "{RETRY}" or "{FAIL}"')

    def decorate(function: Function) -> Function:
        if not inspect.isfunction(function):
            raise FieldError("exclusive", function, "write it below the decorator that makes the task, next to the def")
        signature = inspect.signature(function)
        _check_fields(key, signature)

        @wraps(function)
        def alone(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            lock = _locks().lock(key.format(**bound.arguments), expiry_seconds, wait_seconds)
            try:
                lock.acquire()
            except LockNotAcquired as busy:
                return _busy(busy, on_busy)
            with lock:
                return function(*args, **kwargs)

        return alone  # type: ignore[return-value]  # it has the function's own signature

    return decorate


def _check_fields(key: str, signature: inspect.Signature) -> None:
    """Refuse a key that names what is no parameter of the function."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(key) if name is not None]
    except ValueError as error:
        raise FieldError("key", key, f"it is no format: {error}") from None
    for name in names:
        parameter = name.partition(".")[0].partition("[")[0]
        if parameter not in signature.parameters:
            allowed = ", ".join(f"{{{each}}}" for each in signature.parameters) or "nothing in braces"
            raise FieldError("key", key, f"{{{name}}} is no parameter of the function: write {allowed}")


def _busy(busy: LockNotAcquired, on_busy: str) -> None:
    if on_busy == FAIL:
        raise busy
    task = running_task()
    name = "a call" if task is None else task.name
    text = f"{name} leaves its work to {busy.holder}, who holds the lock {busy.key!r}"
    events.noted(topic="exclusive", text=text)
    if on_busy == RETRY and task is not None:
        raise task.retry(exc=busy, countdown=_AGAIN_SECONDS * (1.0 + environment.chance()))


def _locks() -> Any:
    """Return the locks of the task's app; one for each app in a process."""
    from celery_sqlbeat.api import Handle

    app = app_in_use()
    if app not in _handles:
        _handles[app] = Handle(app)
    return _handles[app].locks
