"""Schedules of kinds that others have added: they only know the next instant after another.

What else is asked of a schedule is found with that, in bounded work.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Protocol

from celery_sqlbeat.config.plugins import SCHEDULES, CannotLoad
from celery_sqlbeat.errors import FieldError, ScheduleError
from celery_sqlbeat.schedule.zone import TICK, within

MOST_COUNTED = 10_000  # missed slots of one gap; more are told as so many


class Instants(Protocol):
    """What the function of a kind returns: a pure schedule."""

    def next_after(self, instant: datetime, zone: tzinfo) -> datetime | None:
        """Return the first instant later than this one, both in UTC; None where there is none."""


@dataclass(frozen=True, slots=True)
class Custom:
    """A schedule of another package's kind, equal to those with the same text."""

    text: str
    instants: Any = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def next_after(self, instant: datetime, zone: tzinfo) -> datetime | None:
        """Return the first instant later than this one; ScheduleError where its code fails."""
        try:
            answer = self.instants.next_after(instant, zone)
        except Exception as error:  # whatever it raises
            raise ScheduleError(self.text, f"its kind of schedule failed: {_one_line(error)}") from error
        if answer is None:
            return None
        if not isinstance(answer, datetime) or answer.tzinfo is None or answer <= instant:
            raise ScheduleError(
                self.text,
                f"after {instant.isoformat()} its kind of schedule answered {str(answer)[:100]!r}: let it return an "
                "instant with a time zone that is later, or None",
            )
        return within(answer.astimezone(timezone.utc))

    def latest_at(self, after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
        """Return the last instant in (`after`, `until`]."""
        slot = self._next_until(after, until, zone)
        if slot is None:
            return None
        back, low, high = timedelta(seconds=1), slot, until
        while back < until - slot:
            if self._next_until(until - back, until, zone) is not None:
                low = until - back
                break
            back, high = 2 * back, until - back
        while True:  # after `low` there may be one more, after `high` there is none
            following = self._next_until(low, until, zone)
            if following is None:
                return slot
            slot = following
            middle = slot + (high - slot) / 2
            if middle <= slot:
                low = slot
            elif self._next_until(middle, until, zone) is None:
                low, high = slot, middle
            else:
                low = middle

    def count_between(self, first: datetime, last: datetime, zone: tzinfo, most: int = MOST_COUNTED) -> int:
        """Count the instants in [`first`, `last`], up to `most`."""
        count, at = 0, self._next_until(first - TICK, last, zone)
        while at is not None and count < most:
            count, at = count + 1, self._next_until(at, last, zone)
        return count

    def _next_until(self, after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
        at = self.next_after(after, zone)
        return None if at is None or at > until else at


def read_custom(kind: str, rest: str) -> Custom | None:
    """Return the schedule of a kind that others have added; None where nobody has."""
    if not SCHEDULES.knows(kind):
        return None
    text = f"{kind} {rest}".rstrip()
    try:
        read: Callable[[str], Any] = SCHEDULES.load(kind)
        instants = read(rest)
    except CannotLoad as error:
        raise ScheduleError(text, f"{error}: install it where this runs, too, or correct sqlbeat_schedules") from error
    except FieldError as error:
        raise ScheduleError(text, error.remedy) from error
    except Exception as error:  # whatever it raises
        raise ScheduleError(text, f"its kind of schedule cannot read it: {_one_line(error)}") from error
    if not callable(getattr(instants, "next_after", None)):
        raise ScheduleError(text, f"{kind} gives a {type(instants).__name__}, which has no method next_after")
    return Custom(text, instants)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}")[:200]
