"""Check one value from outside, and say what is allowed, never where the value came from.

Options of `apply_async` that no broker would take are found when the row is read, not at each
attempt to publish.
"""

from __future__ import annotations

import json
import zoneinfo
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_sqlbeat.errors import FieldError

LONGEST = 366 * 86400.0  # seconds; SQL Server's DATEADD counts in an int, and no lease or grace means more than a year

LONGEST_WAIT = 2.0**31 - 2 * LONGEST  # seconds, 66 years: an eta that is further away ends a wait there


class NotAllowed(Exception):  # not an error of its own: the caller raises one that names the place
    """The value is not what its kind allows."""

    def __init__(self, allowed: str) -> None:
        super().__init__(allowed)
        self.allowed = allowed


@dataclass(frozen=True)
class Kind:
    """A kind of value: what is allowed, how it is checked, and its form in the environment."""

    allowed: str
    check: Callable[[object], Any]  # the clean value, or ValueError
    from_text: Callable[[str], object] = str  # the value that a text stands for, or ValueError

    def read(self, value: object) -> Any:
        """Return the clean value, or raise `NotAllowed`."""
        try:
            return self.check(value)
        except ValueError:
            raise NotAllowed(self.allowed) from None

    def read_text(self, text: str) -> Any:
        """Return the clean value that an environment variable stands for, or raise `NotAllowed`."""
        try:
            value = self.from_text(text.strip())
        except ValueError:
            raise NotAllowed(self.allowed) from None
        return self.read(value)


def number(least: float, most: float, *, above: bool = False, unit: str = "") -> Kind:
    """Read a number, whole or not, from `least` (or only above it) to `most`."""

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        # Compared before it is converted: an int may be too large for a float, and NaN fails every
        # comparison.
        if not (least <= value <= most) or (above and value == least):
            raise ValueError
        return float(value)

    start = f"above {least:.10g}" if above else f"of at least {least:.10g}"
    return Kind(f"a number{unit} {start} and at most {most:.10g}", check, float)


def seconds(least: float, *, above: bool = False) -> Kind:
    """Read a duration, a number of seconds or a timedelta, as seconds."""
    plain = number(least, LONGEST, above=above, unit=" of seconds (or a timedelta)")

    def check(value: object) -> object:
        return plain.check(value.total_seconds() if isinstance(value, timedelta) else value)

    return Kind(plain.allowed, check, float)


def whole(least: int, most: int) -> Kind:
    """Read a whole number from `least` to `most`."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError
        return value

    return Kind(f"a whole number from {least} to {most}", check, _int_from_text)


def _int_from_text(text: str) -> int:
    if len(text) > 20:  # digits; int() is slow for huge texts, and refuses them with an error of its own
        raise ValueError
    return int(text)


def one_of(*names: str) -> Kind:
    """Return the kind of a value that is one of a few words."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return value

    return Kind("one of " + ", ".join(repr(name) for name in names), check)


def name(longest: int) -> Kind:
    """Read a short text that fits its column and can be printed on one line."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= longest:
            raise ValueError
        if not value.isprintable() or value != value.strip():
            raise ValueError
        return value

    return Kind(f"a printable text of 1 to {longest} characters, with no blank at its ends", check)


def time_zone() -> Kind:
    """Read the IANA name of a time zone that this machine knows."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError
        try:
            zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, OSError):  # "America" is a folder
            raise ValueError from None
        return value

    return Kind("an IANA time zone, like 'Europe/Berlin' or 'UTC'", check)


_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def flag() -> Kind:
    """Read True or False."""

    def check(value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    return Kind("True or False (in the environment 1, true, yes, on, 0, false, no or off)", check, _flag_from_text)


def _flag_from_text(text: str) -> bool:
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise ValueError from None


def from_json(text: str) -> object:
    """Return the value that a JSON text stands for, or raise ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("too deep") from None


def optional(kind: Kind, absent: str) -> Kind:
    """Accept the kind, or None, which means what `absent` says."""
    return Kind(
        f"{kind.allowed}, or None: {absent}",
        lambda value: None if value is None else kind.check(value),
        kind.from_text,
    )


def shown(value: object) -> object:
    """Show a value in an error: of bounded length, also where its repr fails."""
    try:
        text = repr(value)
    except Exception:  # a foreign object, or an int of thousands of digits
        return f"<{type(value).__name__}>"
    return value if len(text) <= 200 else text[:197] + "..."


def is_text(value: object) -> bool:
    """Return whether every database can hold this.

    The name of a file, or a word from a shell, may have bytes that are no text.
    """
    return isinstance(value, str) and "\0" not in value and is_encodable(value)


def is_encodable(text: str) -> bool:
    """Return whether this has no half a character in it, as a file's name may that is no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
    """Turn an instant or a duration into a form that Celery and JSON take.

    Any other value is returned unchanged.
    """
    if name in ("eta", "expires") and isinstance(value, datetime):
        return value.isoformat()
    if name in ("countdown", "expires") and isinstance(value, timedelta):
        return value.total_seconds()
    return value


def check_options(options: Mapping[str, Any]) -> None:
    """Raise a FieldError for the first option that cannot work.

    Null leaves an option to Celery.
    """
    for name, value in options.items():
        kind = _KINDS.get(name)
        if kind is not None and value is not None:
            try:
                kind.read(value)
            except NotAllowed as refusal:
                raise FieldError(f"Options.{name}", value, f"write {refusal.allowed}, or null") from None


def span(seconds: float | None) -> str:
    """Show a duration to people: 0.4 s, 12 s, 3 min, 5 h, 2 d."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if abs(seconds) >= 10 else f"{seconds:.1f} s"
