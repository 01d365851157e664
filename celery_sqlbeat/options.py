"""What the column `Options` may hold: the options of `apply_async` as JSON. Unknown ones are Celery's to judge.

A value that no broker would take is found here, when its row is read, and not at each attempt to publish it.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery_sqlbeat.checks import Kind, NotAllowed, seconds, whole
from celery_sqlbeat.errors import FieldError

_HIGHEST_PRIORITY = 255  # of AMQP; Redis has ten levels and takes the nearest


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError
    return value


def _instant(value: object) -> str:
    text = _text(value)
    datetime.fromisoformat(text[:-1] + "+00:00" if text[-1] in "Zz" else text)
    return text


def _expires(value: object) -> object:
    if isinstance(value, str):
        return _instant(value)
    return seconds(0).check(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _name_of_exchange(value: object) -> str:
    return value if value == "" else _text(value)


_SECONDS = seconds(0)
_KINDS: Mapping[str, Kind] = {
    "queue": Kind("text", _text),
    "exchange": Kind("text", _name_of_exchange),
    "routing_key": Kind("text", _name_of_exchange),
    "serializer": Kind("text", _text),
    "compression": Kind("text", _text),
    "shadow": Kind("text", _text),
    "priority": whole(0, _HIGHEST_PRIORITY),
    "countdown": _SECONDS,
    "time_limit": _SECONDS,
    "soft_time_limit": _SECONDS,
    "expires": Kind("seconds, or an instant such as 2027-01-31T09:00:00Z", _expires),
    "eta": Kind("an instant such as 2027-01-31T09:00:00Z", _instant),
    "headers": Kind("a JSON object", _mapping),
    "ignore_result": Kind("true or false", _flag),
    "retry": Kind("true or false", _flag),
}


def storable(name: str, value: Any) -> Any:
    """An instant or a duration in a form that Celery takes as well, and JSON too; any other value as it is."""
    if name in ("eta", "expires") and isinstance(value, datetime):
        return value.isoformat()
    if name in ("countdown", "expires") and isinstance(value, timedelta):
        return value.total_seconds()
    return value


def check_options(options: Mapping[str, Any]) -> None:
    """Raise a FieldError for the first option that cannot work; null leaves any of them to Celery."""
    for name, value in options.items():
        kind = _KINDS.get(name)
        if kind is not None and value is not None:
            try:
                kind.read(value)
            except NotAllowed as refusal:
                raise FieldError(f"Options.{name}", value, f"write {refusal.allowed}, or null") from None
