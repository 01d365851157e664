"""Divert calls of tasks that are far ahead, and what revokes tasks, to functions of ours.

Celery's own functions are called for everything else, with what they were given.
"""

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from celery.utils import time as celery_time
from kombu.utils.imports import symbol_by_name
from kombu.utils.uuid import uuid

from celery_sqlbeat import events
from celery_sqlbeat.celery_bridge.message_header import HEADER
from celery_sqlbeat.celery_bridge.symbol_row import FAR_CALLS, difference
from celery_sqlbeat.celery_bridge.symbols import SYMBOLS, shown_version

# What belongs to this sending, and not to the message.
_OF_SENDING = (
    "producer",
    "publisher",
    "connection",
    "result_cls",
    "task_type",
    "add_to_parent",
    "retry",
    "retry_policy",
)
_ELSEWHERE = ("router", "route_name")  # where these are given, the row could not say where it goes
_instant_of: Any = celery_time.maybe_iso8601
_aware: Any = celery_time.maybe_make_aware


class FarCall(NamedTuple):
    """An ordinary call of a task with a countdown or an eta."""

    task_name: str
    task_id: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    countdown: float | None
    eta: datetime | None


Take = Callable[[FarCall], bool]
"""Takes a call over; False: Celery sends it."""
Revoked = Callable[[Sequence[str], bool], None]
"""Hears which tasks somebody revokes, and whether those that run are to be terminated."""

_apps: "weakref.WeakSet[Any]" = weakref.WeakSet()


def divert(app: Any, is_asked: Callable[[], bool], take: Take, revoked: Revoked) -> None:
    """Let `take` see each call with a countdown or an eta, and `revoked` the ids of revoked tasks.

    Only where `is_asked`, which is called no earlier: the settings need not be there yet.
    """
    if app in _apps:
        return
    _apps.add(app)
    send = app.send_task

    def send_task(
        name: str,
        args: Any = None,
        kwargs: Any = None,
        countdown: Any = None,
        eta: Any = None,
        task_id: Any = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        if (countdown or eta) and not more and _is_ordinary(options) and is_asked() and _is_whole():
            call = _call(app, name, args, kwargs, countdown, eta, task_id, options)
            if call is not None:
                task_id = call.task_id
                if take(call):
                    return _result(app, task_id, options)
        return send(name, args, kwargs, countdown, eta, task_id, *more, **options)

    app.send_task = send_task
    _divert_control(app, is_asked, revoked)


@cache
def _is_whole() -> bool:
    """Return whether Celery has all that this needs."""
    wrong = next((found for row in SYMBOLS if row.feature == FAR_CALLS and (found := difference(row))), None)
    if wrong is not None:
        events.hook_missing(feature=FAR_CALLS, reason=f"{shown_version('celery')} {wrong}")
    return wrong is None


def _is_ordinary(options: Mapping[str, Any]) -> bool:
    """Return whether it is no message of ours, no retry of Celery's, and goes where rows say."""
    headers = options.get("headers") or {}
    return not options.get("retries") and HEADER not in headers and not any(map(options.get, _ELSEWHERE))


def _call(
    app: Any, name: str, args: Any, kwargs: Any, countdown: Any, eta: Any, task_id: Any, options: Mapping[str, Any]
) -> FarCall | None:
    """Return the call; None where a row could not keep it as Celery's message would."""
    own = {key: value for key, value in options.items() if value is not None and key not in _OF_SENDING}
    own.setdefault("reply_to", app.thread_oid)
    parent = app.current_worker_task
    if parent:
        own.setdefault("root_id", parent.request.root_id or parent.request.id)
        own.setdefault("parent_id", parent.request.id)
    try:
        if isinstance(own.get("expires"), datetime):
            own["expires"] = _aware(own["expires"], app.timezone).isoformat()
        at = None if eta is None else _aware(_instant_of(eta), app.timezone)
        args, kwargs, own = json.loads(json.dumps([list(args or ()), dict(kwargs or {}), own]))
    except (TypeError, ValueError) as error:
        events.advice(
            topic="durable eta",
            text=f"a call of task {name} is sent as ever, as a row cannot keep it ({error})",
            remedy="give it what JSON keeps: text, numbers, True, False, None, lists, mappings",
        )
        return None
    return FarCall(name, task_id or str(uuid()), args, kwargs, own, countdown, at)


def _result(app: Any, task_id: str, options: Mapping[str, Any]) -> Any:
    """Return what Celery's function returns."""
    result = (options.get("result_cls") or app.AsyncResult)(task_id)
    result.ignored = options.get("ignore_result")
    parent = app.current_worker_task
    if parent and options.get("add_to_parent", True):
        parent.add_trail(result)
    return result


def _divert_control(app: Any, is_asked: Callable[[], bool], revoked: Revoked) -> None:
    def diverted(control: Any) -> Any:
        revoke = control.revoke

        def revoke_ours_too(task_id: Any, *args: Any, **kwargs: Any) -> Any:
            answer = revoke(task_id, *args, **kwargs)
            if is_asked() and _is_whole():
                terminates = bool(args[1] if len(args) > 1 else kwargs.get("terminate"))
                revoked([task_id] if isinstance(task_id, str) else [*task_id], terminates)
            return answer

        control.revoke = revoke_ours_too
        return control

    if "control" in vars(app):
        diverted(app.control)
        return
    make = app.control_cls  # the name of a class; to make it would read the configuration

    def control_of(app: Any) -> Any:
        return diverted(symbol_by_name(make)(app=app))

    app.control_cls = control_of
