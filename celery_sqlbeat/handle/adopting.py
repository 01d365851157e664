"""Makes the jobs of an app that was renamed those of this one."""

from __future__ import annotations

from typing import Any

from celery_sqlbeat.beat.entries import owner_of
from celery_sqlbeat.config import Settings
from celery_sqlbeat.errors import AppIsAlive, NoJobsOf
from celery_sqlbeat.store import Store


def adopt_jobs(app: Any, store: Store, settings: Settings, owner: str) -> list[str]:
    """Adopt all jobs of an app, enabled or not; its beats must have stopped, or this app's would lose them again."""
    code, own = store.for_code(), owner_of(app)
    if owner == own:
        return []
    for one in code.living(settings.beat_alive):
        if one.owner == owner:
            raise AppIsAlive(owner, one.beat)
    adopted = code.adopt(own, owner)
    if not adopted:
        raise NoJobsOf(owner, settings.namespace, code.owners())
    return adopted
