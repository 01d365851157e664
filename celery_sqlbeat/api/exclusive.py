"""Let a task run once at a time for each key, over all workers: a lock that lives as long as it."""

from __future__ import annotations

import inspect
import string
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import wraps
from typing import Any, TypeVar

from celery_sqlbeat import environment, events
from celery_sqlbeat.api.locks import Locks
from celery_sqlbeat.celery_bridge.app import app_in_use, running_task
from celery_sqlbeat.config.pools import POOL_ALLOWED, Pool, in_turn, pool_of
from celery_sqlbeat.errors import FieldError, LockNotAcquired
from celery_sqlbeat.model.locks import LEAST_EXPIRY, checked_key, seconds_of

SKIP, RETRY, FAIL = "skip", "retry", "fail"
_LONGEST_POLL = 1.0  # seconds, while a task waits for a place of its pool
_AGAIN_SECONDS = 5.0  # at least, until a task that found its lock taken is tried again

Function = TypeVar("Function", bound=Callable[..., Any])
_handles: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def exclusive(
    *, key: str | None = None, pool: str | None = None, wait: float = 0, on_busy: str = SKIP, expiry: float = 30
) -> Callable[[Function], Function]:
    """Let one call of a task's function run at a time for each key, as in "report:{account}".

    `pool`: instead, or as well, let as many run as it has places, as in "erp:3", together with the
    runs of jobs whose policy names it. `wait`: how many seconds to wait. `on_busy`: where it still
    may not run, "skip" returns None, "retry" lets Celery retry the task, and "fail" raises
    LockNotAcquired. `expiry`: after so many seconds the lock of a process that has died is free.
    """
    if key is not None or pool is None:
        checked_key(key)
    named = None if pool is None else pool_of(pool)
    if pool is not None and named is None:
        raise FieldError("pool", pool, f"write {POOL_ALLOWED}")
    wait_seconds, expiry_seconds = seconds_of("wait", wait), seconds_of("expiry", expiry, LEAST_EXPIRY)
    if on_busy not in (SKIP, RETRY, FAIL):
        raise FieldError("on_busy", on_busy, f'write "{SKIP}", "{RETRY}" or "{FAIL}"')

    def decorate(function: Function) -> Function:
        if not inspect.isfunction(function):
            raise FieldError("exclusive", function, "write it below the decorator that makes the task, next to the def")
        signature = inspect.signature(function)
        if key is not None:
            _check_fields(key, signature)

        @wraps(function)
        def alone(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as held:
                try:
                    if key is not None:
                        bound = signature.bind(*args, **kwargs)
                        bound.apply_defaults()
                        name = key.format(**bound.arguments)
                        held.enter_context(_locks().lock(name, expiry_seconds, wait_seconds))
                    if named is not None and not _is_in(named):
                        held.enter_context(_place(_locks(), named, expiry_seconds, wait_seconds))
                except LockNotAcquired as busy:
                    return _busy(busy, on_busy)
                return function(*args, **kwargs)

        return alone  # type: ignore[return-value]  # it has the function's own signature

    return decorate


def _is_in(pool: Pool) -> bool:
    """Return whether the task is the run of a job, and has its place of the pool already."""
    task = running_task()
    header = None if task is None else (task.request.get("sqlbeat") or (task.request.headers or {}).get("sqlbeat"))
    own = pool_of(header.get("pool")) if isinstance(header, dict) else None
    return own is not None and own.name == pool.name


def _place(locks: Locks, pool: Pool, expiry: float, wait: float) -> AbstractContextManager[Any]:
    """Take a place of a pool; poll, with jitter, for as long as all are held."""
    end = environment.monotonic() + wait
    while True:
        busy: LockNotAcquired | None = None
        for key in in_turn(pool.keys, (), environment.chance):
            if locks.has_taken(key):
                return nullcontext()  # this thread is inside of the pool already
            try:
                return locks.lock(key, expiry).acquire()
            except LockNotAcquired as error:
                busy = error
        left = end - environment.monotonic()
        if left <= 0 and busy is not None:
            raise busy
        threading.Event().wait(min(max(left, 0.0), _LONGEST_POLL) * (0.5 + environment.chance() / 2))


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


def _locks() -> Locks:
    """Return the locks of the task's app; one for each app in a process."""
    from celery_sqlbeat.api import Handle

    app = app_in_use()
    if app not in _handles:
        _handles[app] = Handle(app)
    locks: Locks = _handles[app].locks
    return locks
