"""Named locks: what a store keeps of them, and what may be asked. Pure."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery_sqlbeat.config.validation import is_text
from celery_sqlbeat.errors import FieldError

LONGEST_KEY = 255  # characters, as wide as the column
LONGEST_HOLDER = 400
LEAST_EXPIRY, _LONGEST_EXPIRY = 0.5, 86400.0 * 365  # seconds


class HeldLock(NamedTuple):
    """A lock that this process holds, and for how many seconds from now it is to stay so."""

    key: str
    token: str
    """Random, and new for each time that somebody asks for the lock."""
    fence: int
    lease_seconds: float


class LockRecord(NamedTuple):
    """A lock that somebody holds."""

    key: str
    token: str
    holder: str
    """Who holds it, in words."""
    fence: int
    taken_at: datetime
    lease_ends_at: datetime
    now: datetime
    """The server's clock when it was read."""

    def held_and_left(self) -> tuple[float, float]:
        """Return for how many seconds it has been held, and in how many its lease ends."""
        return (self.now - self.taken_at).total_seconds(), (self.lease_ends_at - self.now).total_seconds()


def checked_key(key: Any) -> str:
    """Return the key of a lock, or raise a FieldError."""
    if not isinstance(key, str) or not key or len(key) > LONGEST_KEY or not is_text(key):
        raise FieldError("key", key, f"write a text of 1 to {LONGEST_KEY} characters, without NUL")
    return key


def seconds_of(field: str, value: float | timedelta, least: float = 0.0) -> float:
    """Return a duration in seconds, or raise a FieldError."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not least <= seconds <= _LONGEST_EXPIRY:
        raise FieldError(field, value, f"write {least:g} to {_LONGEST_EXPIRY:g} seconds, or a timedelta")
    return float(seconds)
