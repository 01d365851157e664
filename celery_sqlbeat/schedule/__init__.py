"""The schedule calculus: text to schedule to slots, with misfires, cadences, jitter and daylight saving.

Pure: no driver, no clock, no Celery (only stock.py knows Celery). All instants are aware datetimes in UTC.
"""

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.every import Every
from celery_sqlbeat.schedule.grid import count_between, latest_at, next_after
from celery_sqlbeat.schedule.once import Once
from celery_sqlbeat.schedule.plan import COALESCE, OVERLAP, Fire, Gap, Misfire, Skip, Timeline
from celery_sqlbeat.schedule.solar import Solar
from celery_sqlbeat.schedule.text import Schedule, parse
from celery_sqlbeat.schedule.zone import zone_named

__all__ = [
    "COALESCE",
    "OVERLAP",
    "Cron",
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
