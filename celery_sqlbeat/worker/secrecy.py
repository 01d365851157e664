"""Keeps the claim id out of what others print: Celery shows headers at DEBUG, and of messages it cannot run."""

from collections.abc import Callable, MutableMapping
from typing import Any

from celery_sqlbeat.worker.header import HEADER

_SHOW_HEADERS = {"on_unknown_message": 1, "on_unknown_task": 1, "on_invalid_task": 1, "on_decode_error": 0}
"""Methods of Celery's consumer that log a message, and at which place they are given it."""


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


def hide_from_logs(consumer: Any) -> None:
    """The same for messages that Celery's consumer complains about before anybody looks at their headers."""
    for name, place in _SHOW_HEADERS.items():
        setattr(consumer, name, _hiding(getattr(consumer, name), place))


def _hiding(complain: Callable[..., Any], place: int) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        headers = getattr(args[place], "headers", None) if len(args) > place else None
        if isinstance(headers, dict):
            hide_claim(headers)
        return complain(*args, **kwargs)

    return call
