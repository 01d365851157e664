"""What holds for every job of an app that does not say otherwise: from our settings, and from Celery's."""

from typing import Any

from celery_sqlbeat.beat.zone import app_zone
from celery_sqlbeat.config import Settings
from celery_sqlbeat.definition import Rules


def rules_of(app: Any, settings: Settings) -> Rules:
    """The rules by which the rows of this app are read."""
    return Rules(
        settings.policies,
        app_zone(app),
        settings.lock_timeout,
        settings.max_retries,
        app.conf.beat_cron_starting_deadline,
    )
