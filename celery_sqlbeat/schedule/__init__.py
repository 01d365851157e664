"""Compute slots from the text of a schedule: misfires, cadences, jitter, daylight saving time.

Pure: no driver, no clock, no Celery. All instants are aware datetimes in UTC.
"""

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.custom import Custom
from celery_sqlbeat.schedule.grid import count_between, latest_at, next_after
from celery_sqlbeat.schedule.solar import Solar
from celery_sqlbeat.schedule.text import Every, Once, Schedule, parse
from celery_sqlbeat.schedule.timeline import COALESCE, OVERLAP, Fire, Gap, Misfire, Skip, Timeline
from celery_sqlbeat.schedule.zone import zone_named

__all__ = [
    "COALESCE",
    "OVERLAP",
    "Cron",
    "Custom",
    "Every",
    "Fire",
    "Gap",
    "Misfire",
    "Once",
    "Schedule",
    "Skip",
    "Solar",
    "Timeline",
    "count_between",
    "latest_at",
    "next_after",
    "parse",
    "zone_named",
]
