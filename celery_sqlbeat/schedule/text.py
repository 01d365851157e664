"""Reading schedules: one text, one of four kinds.

Whatever the text is, the answer is a schedule or a ScheduleError that says what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from celery_sqlbeat.errors import ScheduleError
from celery_sqlbeat.schedule.cron import Cron, read_cron
from celery_sqlbeat.schedule.every import Every, read_every
from celery_sqlbeat.schedule.once import Once, read_once
from celery_sqlbeat.schedule.solar import Solar, read_solar

Schedule = Every | Cron | Solar | Once

LONGEST_TEXT = 1000  # characters; five crontab fields with every value listed take half of it

_READERS: dict[str, Callable[[list[str], str], Schedule]] = {
    "every": read_every,
    "cron": read_cron,
    "solar": read_solar,
    "once": read_once,
}


def parse(text: str) -> Schedule:
    """The schedule that this text stands for; `str(schedule)` gives the text back."""
    if not isinstance(text, str):
        raise ScheduleError(text, "a schedule is text, such as every 5s")
    if len(text) > LONGEST_TEXT:
        raise ScheduleError(text[:100], f"a schedule has at most {LONGEST_TEXT} characters, this one has {len(text)}")
    return _read(text)


@lru_cache(maxsize=16384)
def _read(text: str) -> Schedule:
    kind, *words = text.lower().split() or [""]
    if kind not in _READERS:
        raise ScheduleError(
            text,
            "a schedule is one of: every 1h30m, cron MINUTE HOUR DAY_OF_MONTH MONTH DAY_OF_WEEK, "
            "solar sunset 51.5 -0.12, once 2027-01-31T09:00:00Z",
        )
    try:
        return _READERS[kind](words, text)
    except ScheduleError as error:
        if error.value == text:
            raise
        raise ScheduleError(text, f"{error.value!r}: {error.remedy}") from None
