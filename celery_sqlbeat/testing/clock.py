"""The clock of a store under test: one that the test sets, or the server's own.

Without a settable clock a test really waits, for a short time; one that needs a long time, or a
certain instant, is skipped with that reason.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
LONGEST_WAIT = 2.0  # seconds that a test really waits
TOLERANCE = timedelta(seconds=25)  # of instants that the server's own clock has made
_POLL_SECONDS = 0.02

SetClock = Callable[[datetime], None]


class Near:
    """An instant that equals every other one within a tolerance."""

    def __init__(self, instant: datetime, tolerance: timedelta) -> None:
        self._instant, self._tolerance = instant, tolerance

    def __eq__(self, other: object) -> bool:
        return isinstance(other, datetime) and abs(other - self._instant) <= self._tolerance

    __hash__ = None  # type: ignore[assignment]  # what is only near has no hash

    def __repr__(self) -> str:
        return f"{self._instant} +- {self._tolerance}" if self._tolerance else str(self._instant)


class Clock:
    """The clock of the server, as a test sees it."""

    def __init__(self, read: Callable[[], datetime], set_clock: SetClock | None) -> None:
        """Set the clock to noon, where it can be set. `read`: asks the store."""
        self._read, self._set = read, set_clock
        self._now = NOON
        if set_clock is not None:
            set_clock(NOON)
        self.began_at = self.now

    @property
    def is_settable(self) -> bool:
        """Whether the test decides what time it is."""
        return self._set is not None

    @property
    def now(self) -> datetime:
        """The time by the server's clock."""
        return self._now if self._set is not None else self._read()

    def at(self, instant: datetime) -> None:
        """Set the clock."""
        if self._set is None:
            pytest.skip("it needs a settable clock: it sets a certain instant")
        self._now = instant
        self._set(instant)

    def later(self, seconds: float) -> datetime:
        """Let the clock run on; return the time then."""
        if self._set is not None:
            self.at(self._now + timedelta(seconds=seconds))
            return self._now
        if not 0 <= seconds <= LONGEST_WAIT:
            pytest.skip(f"it needs a settable clock: it lets {seconds:g} s pass")
        until = self._read() + timedelta(seconds=seconds)
        while (now := self._read()) < until:
            time.sleep(_POLL_SECONDS)
        return now

    def near(self, instant: datetime) -> Any:
        """Return what equals an instant of the store's; exactly, under a settable clock."""
        return Near(instant, timedelta(0) if self.is_settable else TOLERANCE)
