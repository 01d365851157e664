"""`--from django-celery-beat`: the periodic tasks of a Django project, through its own models and database."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import schedules

from celery_sqlbeat.beat.code import StockRun
from celery_sqlbeat.beat.entries import job_name_of
from celery_sqlbeat.config import Settings
from celery_sqlbeat.errors import FieldError, SourceUnreadable
from celery_sqlbeat.schedule import Once, Timeline, parse, zone_named
from celery_sqlbeat.schedule.stock import from_celery
from celery_sqlbeat.transfer.arrivals import Arrival, Shop, utc
from celery_sqlbeat.transfer.from_code import from_beat_schedule

_DISABLED = "disabled in django-celery-beat"
_OPTIONS = ("queue", "exchange", "routing_key", "priority")


def from_django(app: Any, settings: Settings) -> Shop:
    """All periodic tasks, with their last runs; nothing in Django's database is changed."""
    periodic_task = _model()
    shop = from_beat_schedule(app, settings)
    related = periodic_task.objects.select_related("interval", "crontab", "solar", "clocked")
    now = datetime.now(timezone.utc)  # of this machine; only to tell what is over
    try:
        for task in related.order_by("name").iterator(chunk_size=500):
            _take(shop, task, now)
    except Exception as error:
        from django.db import Error

        if isinstance(error, Error):
            raise SourceUnreadable(f"Django's database cannot be read: {' '.join(str(error).split())}") from error
        raise
    return shop


def _model() -> Any:
    if not os.environ.get("DJANGO_SETTINGS_MODULE"):
        raise SourceUnreadable("DJANGO_SETTINGS_MODULE is not set: run this where the old beat ran")
    try:
        import django
        from django.apps import apps
        from django.core.exceptions import ImproperlyConfigured

        if not apps.ready:
            django.setup()
        return apps.get_model("django_celery_beat", "PeriodicTask")
    except ImportError as error:
        raise SourceUnreadable(
            f"{error.name} cannot be imported: run this in the environment of the old beat"
        ) from error
    except LookupError as error:
        raise SourceUnreadable("django_celery_beat is not among Django's INSTALLED_APPS") from error
    except ImproperlyConfigured as error:
        raise SourceUnreadable(f"Django's settings do not load: {' '.join(str(error).split())}") from error


def _take(shop: Shop, task: Any, now: datetime) -> None:
    name = job_name_of(task.name)
    last = utc(task.last_run_at)
    since = last or utc(task.date_changed)  # one that never ran counts from there
    if shop.is_of_the_code(name, None if since is None else StockRun(since, last is not None), task.enabled):
        return
    over = _over(task, now)
    if over is not None:
        shop.leave(name, over)
        return
    try:
        shop.arrivals.append(_arrival(name, task, now))
    except (FieldError, ValueError) as error:
        shop.leave(name, str(error))


def _over(task: Any, now: datetime) -> str | None:
    """Why a task will never run again; its row stays in Django's table only for the eye."""
    if task.one_off and task.enabled and task.total_run_count > 0:
        return "it was to run once, and has run"
    if task.clocked is not None and not task.enabled and _instant(task.clocked.clocked_time) <= now:
        return "its instant has passed"
    return None


def _arrival(name: str, task: Any, now: datetime) -> Arrival:
    text, zone = _schedule(task)
    last = utc(task.last_run_at)
    start = None if task.start_time is None else _instant(task.start_time)
    counts_from = last or utc(task.date_changed) or now
    if last is None and start is not None:
        counts_from = min(counts_from, start)  # its first run is at its start, even if that has passed
    remarks = ["its description is lost"] if task.description else []
    if task.one_off and task.clocked is None:
        text, zone = _only_once(text, zone, counts_from, None if last else start), None
        remarks.append("it runs once, at that instant")
    options = {key: getattr(task, key) for key in _OPTIONS if getattr(task, key) is not None}
    headers = _json("headers", task.headers or "{}")
    if headers:
        options["headers"] = headers
    enabled, reason = bool(task.enabled), None if task.enabled else _DISABLED
    if task.expires is not None:
        end = _instant(task.expires)
        options["expires"] = end.isoformat()
        remarks.append(f"after {end:%Y-%m-%d %H:%M} UTC its slots are skipped (expired), but it is not disabled")
        if end <= now and enabled:
            enabled, reason = False, f"expired in django-celery-beat at {end:%Y-%m-%d %H:%M} UTC"
    elif task.expire_seconds is not None:
        options["expires"] = task.expire_seconds
    fields = {
        "task": task.task,
        "schedule": text,
        "timezone": zone,
        "args": _json("args", task.args or "[]"),
        "kwargs": _json("kwargs", task.kwargs or "{}"),
        "options": options,
        "enabled": enabled,
        "start": None if last else start,
    }
    return Arrival(name, fields, last, counts_from, None, reason, remarks=tuple(remarks))


def _schedule(task: Any) -> tuple[str, str | None]:
    """The schedule as text, and its time zone; Django's own schedule objects bring a clock along, and are not asked."""
    if task.interval is not None:
        return str(from_celery(timedelta(**{task.interval.period: task.interval.every}))), None
    if task.crontab is not None:
        row = task.crontab
        stock = schedules.crontab(
            row.minute,
            row.hour,
            day_of_week=row.day_of_week,
            day_of_month=row.day_of_month,
            month_of_year=row.month_of_year,
        )
        return str(from_celery(stock)), _zone(row.timezone)
    if task.solar is not None:
        return str(parse(f"solar {task.solar.event} {task.solar.latitude} {task.solar.longitude}")), None
    if task.clocked is not None:
        return str(Once(_instant(task.clocked.clocked_time))), None
    raise FieldError("schedule", None, "it has none")


def _zone(zone: Any) -> str | None:
    """The time zone of a crontab; where the project has turned that off, crontabs count in the app's."""
    from django.conf import settings

    return str(zone) if getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True) else None


def _only_once(text: str, zone: str | None, since: datetime, start: datetime | None) -> str:
    first = Timeline(parse(text), zone_named(zone or "UTC")).first_slot(since, start)
    if first is None:
        raise FieldError("schedule", text, "it never comes")
    return str(Once(first))


def _json(field: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise FieldError(field, text, "it is not JSON; django-celery-beat would disable it, too") from None


def _instant(at: datetime) -> datetime:
    """An instant of a row; without a time zone it is UTC, as django-celery-beat takes it, whatever TIME_ZONE says."""
    return at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)
