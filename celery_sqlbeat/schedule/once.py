"""A single instant: `once 2027-01-31T09:00:00Z`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from celery_sqlbeat.errors import ScheduleError
from celery_sqlbeat.schedule.edges import BOUNDS, within

ALLOWED = "an instant is written like once 2027-01-31T09:00:00Z, or with an offset as in once 2027-01-31T10:00:00+01:00"

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[t ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?\s?(?:z|([+-])(\d\d):?(\d\d)?)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Once:
    """Fires a single time."""

    at: datetime

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ScheduleError(
                f"once {self.at.isoformat()}", "say the time zone: add Z for UTC, or an offset as in +01:00"
            )
        try:
            at = within(self.at.astimezone(timezone.utc))
        except OverflowError:
            at = None
        if at is None:
            raise ScheduleError(f"once {self.at.isoformat()}", f"{BOUNDS}; disable a job that is never to run")
        object.__setattr__(self, "at", at)

    def __str__(self) -> str:
        return f"once {self.at.replace(tzinfo=None).isoformat()}Z"


def read_once(words: list[str], text: str) -> Once:
    """The instant that these words (all after `once`) name."""
    match = _ISO.fullmatch(" ".join(words))
    if match is None:
        raise ScheduleError(text, ALLOWED)
    *date, second, fraction, sign, hours, minutes = match.groups(default="0")
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    try:
        zone = timezone(-offset if sign == "-" else offset)
        numbers = [int(part) for part in (*date, second, fraction.ljust(6, "0"))]
        return Once(datetime(*numbers, tzinfo=zone))  # type: ignore[arg-type,misc]  # mypy counts the zone among the numbers
    except ValueError as error:
        raise ScheduleError(text, f"no such instant ({error})") from None
