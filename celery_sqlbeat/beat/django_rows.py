"""Rows of django-celery-beat that nobody fires any more: enabled, not in our table; read through Django's own models.

They are left where a shop has switched without importing them, and where a program goes on to write some.
"""

import logging
import sys
import threading
from typing import Any, NamedTuple

from celery_sqlbeat.beat.entries import job_name_of
from celery_sqlbeat.store import Store

logger = logging.getLogger(__name__)

REMEDY = "bring them in, or disable them there: celery -A app sqlbeat jobs import --from django-celery-beat"
_MOST_ROWS = 1000  # that are looked at
_MOST_NAMES = 10  # in one sentence


class LeftRows(NamedTuple):
    """Some of them, by name; `is_whole` is False where there are more rows than were looked at."""

    names: list[str]
    is_whole: bool

    def __str__(self) -> str:
        shown = ", ".join(self.names[:_MOST_NAMES])
        if len(self.names) > _MOST_NAMES:
            shown += f" and {len(self.names) - _MOST_NAMES} more"
        count = f"{len(self.names)}" if self.is_whole else f"at least {len(self.names)}"
        return (
            f"{count} enabled periodic tasks of django-celery-beat are not in the table, and these beats do not fire "
            f"them: {shown}"
        )


def left_rows(store: Store) -> LeftRows | None:
    """Those that are not in the table; None where there are none, or no such tables can be read.

    Asks Django's database, and closes the connection that it has opened for that.
    """
    found = _enabled()
    if not found:
        return None
    names = found[:_MOST_ROWS]
    there = store.for_admin().jobs([job_name_of(name) for name in names])
    missing = [name for name in names if job_name_of(name) not in there]
    return LeftRows(missing, len(found) <= _MOST_ROWS) if missing else None


def tell_left_rows(store: Store) -> None:
    """Name them in the log. In a thread: Django's database may keep silent, and no job waits for it."""
    if "django" not in sys.modules:
        return

    def tell() -> None:
        try:
            found = left_rows(store)
        except Exception as error:  # ours is away, and then the beat says so itself
            logger.info("nobody could look for periodic tasks of django-celery-beat: %s", error)
            return
        if found is not None:
            logger.warning("%s; %s", found, REMEDY)

    threading.Thread(target=tell, name="sqlbeat-django", daemon=True).start()


def _enabled() -> list[str]:
    """The names of the enabled rows, one more than are looked at; none where this is no such project."""
    model = _model()
    if model is None:
        return []
    from django.db import connections

    rows = model.objects.filter(enabled=True).exclude(one_off=True, total_run_count__gt=0).order_by("name")
    connection = connections[rows.db]
    was_open = connection.connection is not None
    try:
        return list(rows.values_list("name", flat=True)[: _MOST_ROWS + 1])
    except Exception as error:  # its tables are not there, its database is away: whatever its backend raises
        logger.info("the periodic tasks of django-celery-beat cannot be read: %s", " ".join(str(error).split()))
        return []
    finally:
        if not was_open:
            connection.close()


def _model() -> Any:
    """Its model, in a process that has set Django up with it; Celery does so for every app of a Django project."""
    if "django" not in sys.modules:
        return None
    try:
        from django.apps import apps

        is_there = apps.ready and apps.is_installed("django_celery_beat")
        return apps.get_model("django_celery_beat", "PeriodicTask") if is_there else None
    except Exception as error:  # settings that do not load, a model of another release
        logger.info("django-celery-beat is not looked at: %s", " ".join(str(error).split()))
        return None
