"""What Celery made of the first message of a kind, kept so that the next ones cost little: each is its likeness.

A kind is a task with the same options. Whatever might come out differently for another message is not kept.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from celery.app.routes import MapRoute
from celery.utils.saferepr import saferepr
from kombu import serialization

from celery_sqlbeat.beat.messages import HEADER
from celery_sqlbeat.beat.outlets import First, Outlet, Shape
from celery_sqlbeat.model import Claim

Key = tuple[str, str]
_encode: Any = serialization.dumps  # kombu leaves it without types

LONGEST_LIFE = 30.0  # seconds; a route or a task may be changed in the running process
MOST_KINDS = 2000  # kinds kept at a time, a few kilobytes each

_PLAIN = frozenset({int, float, bool, type(None)})
_DIFFERENT = frozenset(
    {"id", "root_id", "argsrepr", "kwargsrepr", "eta", "expires", "periodic_task_name", "sqlbeat"}
)  # headers


class Likeness(NamedTuple):
    """The first message of a kind, without what differs."""

    shape: Shape
    embed: Any
    serializer: str
    encoding: str
    empty: Any
    """The body of a message without arguments."""
    own_root: bool
    reprs: tuple[str | None, str | None]
    """What the options say in place of the arguments."""
    seconds: tuple[float | None, float | None]
    """The countdown, and when it expires."""
    queue: str | None
    check: Callable[..., Any] | None
    """Raises where the arguments are none that the task takes."""


def key_of(claim: Claim) -> Key | None:
    """What tells kinds apart, or None where the options cannot be compared as text."""
    if not claim.options:
        return claim.task_name, ""
    try:
        return claim.task_name, json.dumps(claim.options)
    except (TypeError, ValueError):
        return None


def routes_by_name_alone(app: Any) -> bool:
    """Whether every router decides by the name of the task alone."""
    return all(type(route) is MapRoute for route in app.amqp.routes)


def likeness(
    outlet: Outlet,
    options: Mapping[str, Any],
    check: Callable[..., Any] | None,
    serializer: str,
    queue: str | None,
) -> Likeness | None:
    """What others may share with the message just published with these options; None if it is one of its own."""
    first = outlet.first
    if first is None or not _is_common(first, outlet.run_id, options):
        return None
    seconds = options.get("countdown"), options.get("expires")
    static = {name: value for name, value in first.headers.items() if name not in _DIFFERENT}
    if seconds == (None, None):
        static.update(eta=None, expires=None)
    serializer = first.options.get("serializer") or serializer
    embed = first.body[2]
    content_type, encoding, empty = _encode(((), {}, embed), serializer=serializer)
    own_root = first.headers["root_id"] == outlet.run_id
    if not own_root:
        static["root_id"] = first.headers["root_id"]
    return Likeness(
        outlet.shape(static, content_type, encoding),
        embed,
        serializer,
        encoding,
        _as_bytes(empty, encoding),
        own_root,
        (options.get("argsrepr"), options.get("kwargsrepr")),
        seconds,
        queue,
        check,
    )


def _is_common(first: First, run_id: str, options: Mapping[str, Any]) -> bool:
    expires, countdown = options.get("expires"), options.get("countdown")
    return (
        isinstance(first.body, tuple)
        and first.headers.get("id") == run_id
        and first.options.get("correlation_id") == run_id
        and not first.options.get("compression")
        and not first.headers.get("stamped_headers")
        and options.get("eta") is None
        and (expires is None or (type(expires) in (int, float) and expires >= 0))
        and (countdown is None or type(countdown) in (int, float))
    )


class Sitting:
    """One batch: its instants are counted from the same moment."""

    def __init__(self, app: Any) -> None:
        self._amqp = app.amqp
        levels = app.conf.get("task_repr_maxlevels")
        self._levels = {} if levels is None else {"maxlevels": levels}
        self._instants: dict[tuple[float | None, float | None], tuple[str | None, str | None]] = {}

    def instants(self, seconds: tuple[float | None, float | None]) -> tuple[str | None, str | None]:
        """The headers eta and expires, as Celery writes them."""
        if seconds not in self._instants:
            headers = self._amqp.as_task_v2("", "", countdown=seconds[0], expires=seconds[1]).headers
            self._instants[seconds] = headers["eta"], headers["expires"]
        return self._instants[seconds]

    def _repr(self, value: Any, items: Iterable[Any], longest: int) -> str:
        """What Celery shows for arguments; the same as `repr`, and that is much faster, where they are simple."""
        if all(type(item) in _PLAIN for item in items):
            text = repr(value)
            if len(text) < longest:
                return text
        shown: str = saferepr(value, longest, **self._levels)
        return shown

    def post(
        self,
        outlet: Outlet,
        like: Likeness,
        claim: Claim,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        own: dict[str, Any],
        label: str,
    ) -> None:
        """Publish the message of a claim as the likeness of the first of its kind."""
        if like.check is not None:
            like.check(*args, **kwargs)
        shown, shown_kwargs = like.reprs
        if shown is None:
            shown = self._repr(args, args, self._amqp.argsrepr_maxsize) if args else "()"
        if shown_kwargs is None:
            shown_kwargs = self._repr(kwargs, kwargs.values(), self._amqp.kwargsrepr_maxsize) if kwargs else "{}"
        body = like.empty
        if args or kwargs:
            body = _as_bytes(_encode((args or (), kwargs, like.embed), serializer=like.serializer)[2], like.encoding)
        headers = {
            "id": claim.run_id,
            "argsrepr": shown + label,
            "kwargsrepr": shown_kwargs,
            "periodic_task_name": claim.job_name,
            **({HEADER: own[HEADER]} if HEADER in own else {}),
        }
        if like.own_root:
            headers["root_id"] = claim.run_id
        if like.seconds != (None, None):
            headers["eta"], headers["expires"] = self.instants(like.seconds)
        outlet.begin(claim.run_id, label)
        outlet.post(like.shape, headers, body)


def _as_bytes(body: Any, encoding: str) -> Any:
    return body.encode(encoding) if isinstance(body, str) else body
