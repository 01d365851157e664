"""A request of ours as Celery sees it: of its own class, but one that tells an execution what Celery says about it.

Nothing is bound to the one request, so that it goes as soon as Celery lets go of it. Where requests are part of cycles,
the garbage collector takes longer over them than all of the rest that a worker does for a short task of ours.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from celery_sqlbeat.worker.threshold import hand_over

logger = logging.getLogger(__name__)

Instead = Callable[[], None]
"""What is done instead of what Celery would do."""

Seen = Mapping[str, Callable[..., Instead | None]]
_EXECUTION = "sqlbeat_execution"
_CLASS = "_sqlbeat_watched"  # kept by the class that it is made of, which Celery makes anew with each connection


def watch(req: Any, execution: Any, seen: Seen) -> None:
    """Tell this execution, by the functions `seen`, what Celery says from now on, each time before it acts on it."""
    base = type(req)
    watched = vars(base).get(_CLASS)
    if watched is None:
        watched = _watched(base, seen)
        for one in (base, watched):  # who is watched already is watched by the same class
            setattr(one, _CLASS, watched)
    req.__class__ = watched
    setattr(req, _EXECUTION, execution)


def let_go(req: Any) -> None:
    """Tell nobody any more: the task is gone, and its message may be acknowledged."""
    setattr(req, _EXECUTION, None)


def _watched(base: Any, seen: Seen) -> Any:
    hooks: dict[str, Any] = {name: _telling(getattr(base, name), tell) for name, tell in seen.items()}
    hooks |= {name: _late(getattr(base, name)) for name in ("acknowledge", "reject")}
    hooks |= {"cancel": _cancel(base.cancel), "execute_using_pool": hand_over}
    return type(base.__name__, (base,), {**hooks, "__module__": base.__module__})


def _telling(original: Callable[..., Any], tell: Callable[..., Instead | None]) -> Callable[..., Any]:
    def call(req: Any, *args: Any, **kwargs: Any) -> Any:
        execution, instead = getattr(req, _EXECUTION), None
        if execution is not None:
            try:
                instead = tell(execution, *args, **kwargs)
            except Exception:
                logger.exception("how a task ended could not be noted")
        return original(req, *args, **kwargs) if instead is None else instead()

    return call


def _late(original: Callable[..., Any]) -> Callable[..., Any]:
    def say(req: Any, *args: Any, **kwargs: Any) -> Any:
        execution = getattr(req, _EXECUTION)
        if execution is None or execution.may_acknowledge:
            return original(req, *args, **kwargs)
        execution.acknowledge_later(partial(original, req, *args, **kwargs))
        return None

    return say


def _cancel(original: Callable[..., Any]) -> Callable[..., Any]:
    def cancel(req: Any, pool: Any, signal: Any = None, **options: Any) -> Any:
        execution = getattr(req, _EXECUTION)
        if execution is None:
            return None  # the task is gone, and its process runs another one
        if execution.cancels_by_celery():
            return original(req, pool, signal, **options)
        return req._announce_cancelled(**options)

    return cancel
