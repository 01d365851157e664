"""Asks a custom schedule class when its entry is due; only a beat that has the entry can.

The class is somebody else's code: whatever it does, the answer is an instant.
"""

import logging
import math
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 60.0  # after an answer that is none: long enough not to flood the log
_SOONEST = 0.1  # seconds; a class that says "at once" without being due must not keep beat busy
_LATEST = 366 * 86400.0  # seconds; then it is asked again
_CLOCK_SECONDS = 5.0  # clocks of hosts may differ so far; a greater difference is meant


class Answer(NamedTuple):
    """Whether the entry is due now, and when to ask again."""

    is_due: bool
    next_at: datetime


def ask(entry: Any, last_run_at: datetime | None, now: datetime) -> Answer:
    """Ask an entry whether it is due; `now` is the server's clock, by which the answer counts.

    An entry that never ran counts from now, as in stock beat.
    """
    try:
        entry.last_run_at = _in_its_clock(entry, last_run_at or now)
        due, seconds = entry.is_due()
        wait = float(seconds)
        if math.isnan(wait):
            raise ValueError("is_due() said that the next look is in nan seconds")
    except Exception:
        logger.exception(
            "the schedule of %s cannot say when it is due; asking again in %g s", entry.name, _AGAIN_SECONDS
        )
        return Answer(False, now + timedelta(seconds=_AGAIN_SECONDS))
    return Answer(bool(due), now + timedelta(seconds=min(max(wait, _SOONEST), _LATEST)))


def next_run(entry: Any, last_run_at: datetime | None, now: datetime) -> datetime:
    """The next instant at which this entry may be due."""
    answer = ask(entry, last_run_at, now)
    return now if answer.is_due else answer.next_at


def _in_its_clock(entry: Any, instant: datetime) -> datetime:
    """The instant as the schedule's own clock would have shown it: naive or aware, in its zone, at its pace."""
    shown: datetime = entry.default_now()
    here = datetime.now(timezone.utc)
    if shown.tzinfo is None:
        return shown - (here - instant)
    off = shown - here
    if abs(off.total_seconds()) < _CLOCK_SECONDS:
        off = timedelta()
    return (instant + off).astimezone(shown.tzinfo)
