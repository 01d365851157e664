"""The field language of crontabs: `*`, numbers, names, ranges, steps and lists.

The same language as celery.schedules.crontab, except that what Celery silently ignores (`1-5-7`, `*/5x`) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from celery_sqlbeat.errors import ScheduleError

_PART = re.compile(r"(?:(\*)|([a-z]+|\d{1,9})-([a-z]+|\d{1,9}))(?:/(\d{1,9}))?|([a-z]+|\d{1,9})", re.ASCII)


class Field(NamedTuple):
    """One of the five fields: its name, its range, and the names its values may go by."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        names = f" or {self.names[0][:3]}-{self.names[-1][:3]}" if self.names else ""
        return (
            f"the {self.name} is {self.low}-{self.high}{names}, with *, ranges a-b, steps */n or a-b/n, and lists a,b"
        )


MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY_OF_MONTH = Field("day of month", 1, 31)
MONTH_OF_YEAR = Field(
    "month", 1, 12,
    ("january", "february", "march", "april", "may", "june",
     "july", "august", "september", "october", "november", "december"),
)  # fmt: skip
DAY_OF_WEEK = Field("day of week", 0, 6, ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"))
FIELDS = (MINUTE, HOUR, DAY_OF_MONTH, MONTH_OF_YEAR, DAY_OF_WEEK)


def read_field(field: Field, text: str) -> tuple[int, bool]:
    """The values of a field as bits, and whether it is a wildcard (`*`, `*/n`, or everything)."""
    bits = 0
    wildcard = False
    for part in text.split(","):
        values = _values(field, part)
        for value in values:
            bits |= 1 << value
        wildcard = wildcard or part.startswith("*") or len(values) == field.high - field.low + 1
    return bits, wildcard


def write_field(field: Field, values: Iterable[int]) -> str:
    """The shortest list of numbers and ranges for these values."""
    wanted = sorted(set(values))
    if wanted == list(range(field.low, field.high + 1)):
        return "*"
    runs: list[list[int]] = []
    for value in wanted:
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in runs)


def _values(field: Field, part: str) -> list[int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise ScheduleError(part, field.allowed)
    star, first, last, every, single = match.groups()
    if single is not None:
        return [_number(field, single)]
    values = list(range(field.low, field.high + 1))
    if star is None:
        low, high = _number(field, first) - field.low, _number(field, last) - field.low
        # A range may run past the end, as 22-2 does through midnight.
        values = values[low : high + 1] if low <= high else values[low:] + values[: high + 1]
    if every is not None and int(every) == 0:
        raise ScheduleError(part, "a step is at least 1")
    return values[:: int(every or 1)]


def _number(field: Field, word: str) -> int:
    if word.isdigit():
        value = int(word)
        if field.low <= value <= field.high:
            return value
    elif len(word) >= 3:
        for value, name in enumerate(field.names, field.low):
            if name.startswith(word):
                return value
    raise ScheduleError(word, field.allowed)
