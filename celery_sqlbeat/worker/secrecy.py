"""Keeps the claim id out of what others print: Celery shows headers at DEBUG, and tasks their whole request."""

from collections.abc import Callable, MutableMapping
from typing import Any

from celery_sqlbeat.worker.header import HEADER

SECOND_COPY = "application_headers"  # where AMQP has the headers, in a message's properties


class Unshown(str):
    """A text that serves as every other, and is not shown by `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def hide_claim(headers: MutableMapping[str, Any]) -> None:
    """Let nobody print the claim id that stands in these headers."""
    raw = headers.get(HEADER)
    if isinstance(raw, dict) and isinstance(raw.get("claim"), str):
        headers[HEADER] = {**raw, "claim": Unshown(raw["claim"])}


def shown(raw: Any) -> Any:
    """The header as it came, before its claim was hidden."""
    if isinstance(raw, dict) and isinstance(raw.get("claim"), Unshown):
        return {**raw, "claim": str(raw["claim"])}
    return raw


def hide_in(message: Any) -> None:
    """The same for a message, in copies: its own headers may go back to the broker."""
    headers, properties = message.headers, message.properties
    if not isinstance(headers, dict) or HEADER not in headers:
        return
    message.headers = headers = dict(headers)
    hide_claim(headers)
    if isinstance(properties, dict) and SECOND_COPY in properties:
        message.properties = {**properties, SECOND_COPY: headers}


def hide_from_all(consumer: Any) -> None:
    """Let this consumer hide the claim of each message before anybody else sees it; set once per consumer."""
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
