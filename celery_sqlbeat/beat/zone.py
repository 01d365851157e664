"""The name of the time zone in which an app's crontabs are read."""

import logging
import os
from datetime import timezone
from typing import Any

from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.schedule import zone_named

logger = logging.getLogger(__name__)

_FOLDER = "zoneinfo/"


def app_zone(app: Any) -> str:
    """The time zone of an app, by a name that every host knows."""
    zone = app.timezone
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if isinstance(name, str):
        return name
    if zone == timezone.utc:
        return "UTC"
    for guess in (app.conf.timezone, *_local_names()):
        try:
            return zone_named(guess).key
        except FieldError:
            continue
    logger.warning("the time zone of this host has no name that other hosts know; crontabs are read in UTC")
    return "UTC"


def _local_names() -> tuple[str, ...]:
    """What this host calls its own time zone, which Celery takes where `enable_utc` is off and none is set."""
    return os.environ.get("TZ", "").lstrip(":"), os.path.realpath("/etc/localtime").rpartition(_FOLDER)[2]
