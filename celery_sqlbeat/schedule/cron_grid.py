"""The instants at which a crontab fires in a time zone, daylight saving included.

All datetimes here are naive: UTC, or wall clock where the name says so.
"""

from __future__ import annotations

from datetime import datetime, tzinfo

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.walls import count_walls, last_wall, next_wall
from celery_sqlbeat.schedule.zone import TICK, Period, periods_from, periods_until

# When clocks change (the reasons are in docs/design/daylight-saving.md):
#
# - A time that they skip: a crontab with a fixed hour and minute fires once, at the instant the gap ends. With a
#   wildcard (`*`, `*/n`) in the hour or the minute the skipped times are simply not there.
# - A time that they show twice: a crontab with a fixed hour fires at the first of the two. With a wildcard in the
#   hour it fires through both, in the order of elapsed time.
# - Never twice at one instant.


def next_fire(cron: Cron, after: datetime, zone: tzinfo) -> datetime | None:
    """The first instant later than `after`."""
    wall: datetime | None = None
    for period in periods_from(zone, after):
        opens = period.starts + period.offset
        if wall is None:
            wall = next_wall(cron, max(after + period.offset, _opening(cron, period) - TICK))
        elif period.offset < period.before and cron.every_hour:
            wall = next_wall(cron, opens - TICK)
        elif wall < opens:
            if cron.makes_up:
                return period.starts
            wall = next_wall(cron, opens - TICK)
        if wall is None:
            return None
        if wall - period.offset < period.ends:
            return wall - period.offset
    return None


def last_fire(cron: Cron, after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """The last instant later than `after` and not later than `until`."""
    closes = until + TICK
    for period in periods_until(zone, until):
        opening = _opening(cron, period)
        wall = last_wall(cron, closes + period.offset - TICK)
        fire = wall - period.offset if wall and wall >= opening else _made_up(cron, period)
        if fire is not None:
            return fire if fire > after else None
        if period.starts <= after:
            return None
        closes = period.starts
    return None


def count_fires(cron: Cron, first: datetime, last: datetime, zone: tzinfo) -> int:
    """How many instants lie between these two, both included."""
    count = 0
    for period in periods_from(zone, first):
        if period.starts > last:
            break
        opening = max(first + period.offset, _opening(cron, period))
        if first <= period.starts and _made_up(cron, period) is not None:
            count += 1
            opening += TICK  # the gap's end may match by itself, and fires once
        count += count_walls(cron, opening, min(last + TICK, period.ends) + period.offset)
    return count


def _opening(cron: Cron, period: Period) -> datetime:
    """The first wall-clock time of a period that counts: a fixed hour does not fire in its second pass."""
    offset = period.offset if cron.every_hour else max(period.offset, period.before)
    return period.starts + offset


def _made_up(cron: Cron, period: Period) -> datetime | None:
    """The end of the gap that a period begins with, if the gap swallowed a time that is made up for."""
    if not cron.makes_up or period.offset <= period.before:
        return None
    skipped = next_wall(cron, period.starts + period.before - TICK)
    return period.starts if skipped is not None and skipped < period.starts + period.offset else None
