"""The header by which a message names its run, and says which claim it carries.

It comes from outside, and may say anything. A task may send it on with a message of its own, as by
`headers=self.request.headers`: such a copy says nothing of the message that brings it. The claim id
is hidden from all that print messages: Celery does at DEBUG, and tasks print their request.
"""

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from celery_sqlbeat import events
from celery_sqlbeat.config.policy import KINDS, RetryRule
from celery_sqlbeat.config.validation import NotAllowed

_is_uuid = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_LARGEST_FENCE = 2**63 - 1
_MOST_CELERY_RETRIES = 2**31 - 1


def can_be_asked(run_id: Any, claim_id: Any, fence: Any, start_id: Any, celery_retries: Any) -> bool:
    """Return whether each field is written as this package writes it, and fits its column.

    One message from a hostile producer must not become the error of a whole batch.
    """
    return (
        is_id(run_id)
        and is_id(claim_id)
        and is_id(start_id)
        and _is_whole(fence, _LARGEST_FENCE)
        and _is_whole(celery_retries, _MOST_CELERY_RETRIES)
    )


def is_id(value: Any) -> bool:
    """Return whether it is an id as this package writes it."""
    return type(value) is str and _is_uuid(value) is not None


def _is_whole(value: Any, largest: int) -> bool:
    return type(value) is int and 0 <= value <= largest  # not isinstance: True is no fence


HEADER = "sqlbeat"
# Shown for the arguments of a job that is sensitive; Python, as monitors read it.
HIDDEN_ARGUMENTS = {"argsrepr": "('***',)", "kwargsrepr": "{'***': '***'}"}


def is_hidden(request: Mapping[str, Any]) -> bool:
    """Return whether monitors are not to see the arguments of a request."""
    return str(request.get("argsrepr")).startswith(HIDDEN_ARGUMENTS["argsrepr"])


VERSION = 1
_LONGEST_NAME = 100  # characters of a namespace, as the settings have it, or of a store's id
_LONGEST_LEASE = 10.0**9  # seconds
_LONGEST_STRATEGY = 300  # characters of its name or path
_ANY_ID = "00000000-0000-4000-8000-000000000000"


class Header(NamedTuple):
    """A well-formed header; only the database knows whether its claim holds."""

    store: str
    namespace: str
    run: str
    claim: str
    fence: int
    celery_retries: int
    lease_seconds: float | None = None
    """None where the beat that wrote it is an older one."""
    forgotten: bool = False
    """Whether a beat fired and forgot it: workers of other stores run it as plain workers do."""
    retry: RetryRule | None = None
    """What its job says of retries; it names no more than what the worker knows."""
    pool: str | None = None
    """The pool that its run takes a place of; it may say anything."""

    @property
    def delivery(self) -> tuple[str, str, int, int]:
        """What all copies of one message have in common, and nothing else has."""
        return self.run, self.claim, self.fence, self.celery_retries


class Malformed(NamedTuple):
    """A header that no version of this package writes: forged or damaged."""

    reason: str


class Copied(NamedTuple):
    """The header of another message, which a task has sent on with this one."""

    run: str


class Newer(NamedTuple):
    """A header of a version that this worker does not know yet."""

    version: int


def read(raw: Any, request: Mapping[str, Any]) -> Header | Copied | Malformed | Newer:
    """Read the header of a message whose other headers are `request`."""
    if not isinstance(raw, Mapping):
        return Malformed("it is no mapping")
    if is_copied(raw, request):
        return Copied(raw["run"])
    version = raw.get("v")
    if type(version) is not int or version < VERSION:
        return Malformed("it has no version")
    if version > VERSION:
        return Newer(version)
    fields = [raw.get(name) for name in Header._fields[:5]]
    header = Header._make(
        (
            *fields,
            request.get("retries") or 0,
            _seconds(raw.get("lease")),
            raw.get("forgotten") is True,
            _rule(raw.get("retry")),
            raw.get("pool"),
        )
    )
    if not can_be_asked(header.run, header.claim, header.fence, _ANY_ID, header.celery_retries):
        return Malformed("its run, claim or fence is not in the form that beats write")
    if not all(type(name) is str and 0 < len(name) <= _LONGEST_NAME for name in (header.store, header.namespace)):
        return Malformed("its store or namespace is no name")
    return header


def _seconds(raw: Any) -> float | None:
    # Only how often a worker says that it holds the message depends on it.
    is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
    return float(raw) if is_number and 0 < raw < _LONGEST_LEASE else None


def _rule(raw: Any) -> RetryRule | None:
    if not isinstance(raw, Mapping):
        return None
    strategy = raw.get("strategy")
    is_name = isinstance(strategy, str) and len(strategy) <= _LONGEST_STRATEGY
    return RetryRule(strategy if is_name else None, _errors("retry_on", raw), _errors("dead_on", raw))


def _errors(name: str, raw: Mapping[str, Any]) -> Sequence[str] | None:
    try:
        names: Sequence[str] | None = KINDS[name].read(raw.get(name))
    except NotAllowed:
        return None
    return names


def is_copied(raw: Any, request: Mapping[str, Any]) -> bool:
    """Return whether a header names another message than the one that brings it."""
    run = raw.get("run") if isinstance(raw, Mapping) else None
    return run != request.get("id") and is_id(run)


SECOND_COPY = "application_headers"  # where AMQP has the headers, in a message's properties


class Unshown(str):
    """A string whose `repr` hides it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def hide_claim(headers: MutableMapping[str, Any]) -> None:
    """Hide the claim id in these headers from `repr`."""
    raw = headers.get(HEADER)
    if isinstance(raw, dict) and isinstance(raw.get("claim"), str):
        headers[HEADER] = {**raw, "claim": Unshown(raw["claim"])}


def shown(raw: Any) -> Any:
    """Return the header as it came, before its claim was hidden."""
    if isinstance(raw, dict) and isinstance(raw.get("claim"), Unshown):
        return {**raw, "claim": str(raw["claim"])}
    return raw


def hide_in(message: Any) -> None:
    """Hide it in a message, in copies of its headers: its own may go back to the broker."""
    headers, properties = message.headers, message.properties
    if not isinstance(headers, dict) or HEADER not in headers:
        return
    message.headers = headers = dict(headers)
    hide_claim(headers)
    if isinstance(properties, dict) and SECOND_COPY in properties:
        message.properties = {**properties, SECOND_COPY: headers}


def hide_from_all(consumer: Any) -> None:
    """Have this consumer hide the claim of each message before it is used; once for a consumer."""
    create, complain = consumer.create_task_handler, consumer.on_decode_error

    def create_task_handler(*args: Any, **kwargs: Any) -> Any:
        return _hiding(create(*args, **kwargs))

    consumer.create_task_handler = create_task_handler
    consumer.on_decode_error = _hiding(complain)  # kombu calls it without the handler, too


def _hiding(receive: Callable[..., Any]) -> Callable[..., Any]:
    def call(message: Any, *rest: Any) -> Any:
        hide_in(message)
        return receive(message, *rest)

    return call


_told: set[str] = set()  # tasks, each of which is told of once
_FOUND = "sqlbeat_found"  # on a message that was read before


Content = Header | Malformed | Newer | Copied


def find(message: Any, body: Any) -> Content | None:
    """Read the header of a message; None where it has none. Protocol 1 has the id in the body."""
    headers = message.headers
    raw = headers.get(HEADER) if isinstance(headers, dict) else None
    if raw is None:
        return None
    request = headers if "id" in headers else {**(body if isinstance(body, dict) else {}), **headers}
    return read(shown(raw), request)


def note(message: Any, content: Content | None) -> None:
    """Keep what was found in a message for the request that Celery makes of it."""
    setattr(message, _FOUND, content)


def header_of(req: Any) -> Header | Malformed | Newer | None:
    """Return the header of a request; None where it has none, or a copy, which is taken from it."""
    request = req.request_dict
    raw = request.get(HEADER)
    if raw is None:
        return None
    content: Content | None = getattr(req.message, _FOUND, None) or read(shown(raw), request)
    if not isinstance(content, Copied):
        return content
    del request[HEADER]
    properties = request.get("properties")
    if isinstance(properties, dict) and SECOND_COPY in properties:
        rest = {name: value for name, value in properties[SECOND_COPY].items() if name != HEADER}
        request["properties"] = {**properties, SECOND_COPY: rest}
    if req.name not in _told:
        _told.add(req.name)
        events.advice(
            topic="header",
            text=f"task {req.name} came with the sqlbeat header of another message: it runs as an ordinary task, "
            "without a lease",
            remedy="leave that header out where a task sends the headers of its own message on",
        )
    return None
