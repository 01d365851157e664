"""What a message says of its claim: headers, check-ins of monitors, and templates for one kind.

A kind is a task with the same options. What Celery made of its first message becomes the template
of the next ones; what may come out differently for another message is not kept.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kombu import serialization

from celery_sqlbeat.celery_bridge.app import Routed
from celery_sqlbeat.celery_bridge.message_header import HIDDEN_ARGUMENTS
from celery_sqlbeat.celery_bridge.symbols import optional
from celery_sqlbeat.model import Claim
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.publish.transports import First, MessageTransport, Shape
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import RunQuery

HEADER = "sqlbeat"
VERSION = 1  # of the header; a worker leaves a message alone whose version it does not know
LONGEST_NAME = 200  # characters of a job's name in argsrepr, which Celery keeps below a thousand
LONGEST_LIFE = 30.0  # seconds of a template; routes and tasks may change in the running process
MOST_KINDS = 2000  # templates kept at a time, a few kilobytes each

# Sentry's SDK sends `in_progress` from `apply_entry` and puts the check-in's id into the headers.
# Another attempt, or a copy of a message, would open a second check-in, and the first would stay
# open until it is late.
_PREFIX = "sentry-monitor-"
_NEW_EACH_TIME = "sentry-monitor-start-timestamp-s"

_PLAIN = frozenset({int, float, bool, type(None)})
_DIFFERENT = frozenset(  # headers
    {"id", "root_id", "argsrepr", "kwargsrepr", "eta", "expires", "periodic_task_name", HEADER}
)

Key = tuple[str, str]
MapRoute = optional("celery.app.routes:MapRoute")
saferepr = optional("celery.utils.saferepr:saferepr")
_encode: Any = serialization.dumps  # kombu leaves it without types


def check_in_of(headers: Any) -> str | None:
    """Return the check-in in these headers, as text; None where there is none."""
    if not isinstance(headers, Mapping):
        return None
    check_in = {
        name: value
        for name, value in headers.items()
        if isinstance(name, str) and name.startswith(_PREFIX) and name != _NEW_EACH_TIME
    }
    return json.dumps(check_in, default=str) if check_in else None


def headers_of(check_in: str | None) -> dict[str, Any]:
    """Return the headers that carry a check-in on."""
    headers = json.loads(check_in) if check_in else {}
    return headers if isinstance(headers, dict) else {}


def carried(store: Store, claims: Sequence[Claim], are_copies: bool = False) -> Sequence[Claim]:
    """Add to the claims the check-ins that earlier messages of their slots have opened."""
    before = {claim.run_id: claim.run_id if are_copies else claim.slot.continues for claim in claims}
    wanted = {run_id for run_id in before.values() if run_id is not None}
    earlier = store.runs(RunQuery(run_ids=wanted)) if wanted else []
    known = {run.run_id: run.check_in for run in earlier if run.check_in is not None}
    if not known:
        return claims
    return [claim._replace(check_in=known.get(before[claim.run_id] or "")) for claim in claims]


def header(claim: Claim, store_id: str, namespace: str) -> dict[str, Any]:
    """Return the headers of a leased message: the claim for the worker, the job for monitors.

    The claim id stands here alone. `say_how` changes the headers of a message without a lease.
    """
    own = {
        HEADER: {
            "v": VERSION,
            "store": store_id,
            "namespace": namespace,
            "run": claim.run_id,
            "claim": claim.claim_id,
            "fence": claim.fence,
            "lease": claim.lease_seconds,
            **_rule(claim),
            **({} if claim.pool is None else {"pool": claim.pool}),
        },
        "celery_beat_task": True,
    }
    return own if is_one_off(claim) else {**own, "periodic_task_name": claim.job_name}


def _rule(claim: Claim) -> dict[str, Any]:
    """Return what the worker must know of the job's retries; nothing where it has no rule."""
    if claim.retry is None:
        return {}
    return {"retry": {name: value for name, value in claim.retry._asdict().items() if value is not None}}


def is_one_off(claim: Claim) -> bool:
    """Return whether no job stands behind it, so that it has no name to tell."""
    return claim.slot.kind == ONE_OFF


def say_how(headers: dict[str, Any], is_leased: bool, to_one_queue: bool) -> None:
    """Mark a message that is fired and forgotten: workers of any store run it as a plain one.

    Copies in several queues all run: a worker that knew the run would drop all but one.
    """
    own = headers.get(HEADER)
    if own is None or is_leased:
        return
    if to_one_queue:
        headers[HEADER] = {**own, "forgotten": True}
    else:
        del headers[HEADER]


def options(claim: Claim, store_id: str, namespace: str) -> dict[str, Any]:
    """Return the options of `apply_async`: the run is the task's id, the headers have the claim."""
    own = header(claim, store_id, namespace)
    headers = {**(claim.options.get("headers") or {}), **headers_of(claim.check_in), **own}
    hidden = HIDDEN_ARGUMENTS if claim.is_sensitive else {}
    return {**claim.options, **hidden, "task_id": claim.run_id, "headers": headers}


def label(claim: Claim) -> str:
    """Return a comment that follows the arguments in argsrepr, which still reads as Python."""
    name = "one-off" if is_one_off(claim) else " ".join(claim.job_name.split())[:LONGEST_NAME]
    return f"  # {name}, attempt {claim.slot.attempt}"


class MessageTemplate(NamedTuple):
    """What the messages of one kind have in common."""

    shape: Shape
    embed: Any
    serializer: str
    encoding: str
    empty: Any
    """The body of a message without arguments."""
    seconds: tuple[float | None, float | None]
    """The countdown, and the time until it expires."""
    queue: str | None
    check: Callable[..., Any] | None
    """Raises where the task does not take the arguments."""


def key_of(call: Routed) -> Key | None:
    """Return the kind of a message; None where the options have no text."""
    if not call.options:
        return call.task_name, ""
    try:
        return call.task_name, json.dumps(call.options)
    except (TypeError, ValueError):
        return None


def routes_by_name_alone(app: Any) -> bool:
    """Return whether every router decides by the name of the task alone."""
    return all(type(route) is MapRoute for route in app.amqp.routes)


def template_of(
    transport: MessageTransport,
    options: Mapping[str, Any],
    check: Callable[..., Any] | None,
    serializer: str,
    queue: str | None,
) -> MessageTemplate | None:
    """Make a template of the message just published with these options; None where none may be."""
    first = transport.first
    if first is None or not _is_common(first, transport.run_id, options):
        return None
    static = {name: value for name, value in first.headers.items() if name not in _DIFFERENT}
    seconds = options.get("countdown"), options.get("expires")
    if seconds == (None, None):
        static.update(eta=None, expires=None)
    serializer = first.options.get("serializer") or serializer
    embed = first.body[2]
    content_type, encoding, empty = _encode(((), {}, embed), serializer=serializer)
    shape = transport.shape(static, content_type, encoding)
    return MessageTemplate(shape, embed, serializer, encoding, _as_bytes(empty, encoding), seconds, queue, check)


def _is_common(first: First, run_id: str, options: Mapping[str, Any]) -> bool:
    expires, countdown = options.get("expires"), options.get("countdown")
    return (
        isinstance(first.body, tuple)
        and first.headers.get("id") == first.headers.get("root_id") == run_id
        and first.options.get("correlation_id") == run_id
        and not first.options.get("compression")
        and not first.headers.get("stamped_headers")
        and options.keys().isdisjoint(("argsrepr", "kwargsrepr"))
        and options.get("eta") is None
        and (expires is None or (type(expires) in (int, float) and expires >= 0))
        and (countdown is None or type(countdown) in (int, float))
    )


class TemplateCache:
    """Posts messages from templates for one batch: its instants are counted from one moment."""

    def __init__(self, app: Any) -> None:
        self._amqp = app.amqp
        levels = app.conf.get("task_repr_maxlevels")
        self._levels = {} if levels is None else {"maxlevels": levels}
        self._instants: dict[tuple[float | None, float | None], dict[str, str | None]] = {}

    def _instants_of(self, seconds: tuple[float | None, float | None]) -> dict[str, str | None]:
        """Return the headers eta and expires, as Celery writes them."""
        if seconds not in self._instants:
            countdown, expires = seconds
            made = self._amqp.as_task_v2("", "", countdown=countdown, expires=expires).headers
            self._instants[seconds] = {name: made[name] for name in ("eta", "expires")}
        return self._instants[seconds]

    def _repr(self, value: Any, items: Iterable[Any], longest: int) -> str:
        """Show arguments as Celery does: by `repr` where they are simple, which is much faster."""
        if all(type(item) in _PLAIN for item in items):
            text = repr(value)
            if len(text) < longest:
                return text
        shown: str = saferepr(value, longest, **self._levels)
        return shown

    def post(
        self,
        transport: MessageTransport,
        template: MessageTemplate,
        claim: Claim,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        own: dict[str, Any],
        label: str,
    ) -> None:
        """Publish the message of a claim from the template of its kind."""
        if template.check is not None:
            template.check(*args, **kwargs)
        amqp = self._amqp
        shown = self._repr(args, args, amqp.argsrepr_maxsize) if args else "()"
        headers: dict[str, Any] = {
            "id": claim.run_id,
            "root_id": claim.run_id,
            "argsrepr": shown + label,
            "kwargsrepr": self._repr(kwargs, kwargs.values(), amqp.kwargsrepr_maxsize) if kwargs else "{}",
        }
        if claim.is_sensitive:
            headers.update(HIDDEN_ARGUMENTS, argsrepr=HIDDEN_ARGUMENTS["argsrepr"] + label)
        if not is_one_off(claim):
            headers["periodic_task_name"] = claim.job_name
        if HEADER in own:
            headers[HEADER] = own[HEADER]
        if template.seconds != (None, None):
            headers.update(self._instants_of(template.seconds))
        body = template.empty
        if args or kwargs:
            _, _, text = _encode((args or (), kwargs, template.embed), serializer=template.serializer)
            body = _as_bytes(text, template.encoding)
        transport.begin(claim.run_id, label)
        transport.post(template.shape, headers, body)


def _as_bytes(body: Any, encoding: str) -> Any:
    return body.encode(encoding) if isinstance(body, str) else body
