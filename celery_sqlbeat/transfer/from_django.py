"""Read the periodic tasks of django-celery-beat, through the project's own models."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import schedules

from celery_sqlbeat import environment
from celery_sqlbeat.beat_schedule.entries import job_name_of
from celery_sqlbeat.beat_schedule.plan import StockRun
from celery_sqlbeat.celery_bridge.schedules import from_celery
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.errors import FieldError, SourceUnreadable
from celery_sqlbeat.schedule import Once, Timeline, parse, zone_named
from celery_sqlbeat.transfer.from_entries import from_beat_schedule
from celery_sqlbeat.transfer.jsonl import ImportedJob, SourceJobs, utc

_DISABLED = "disabled in django-celery-beat"
_OPTIONS = ("queue", "exchange", "routing_key", "priority")


def from_django(app: Any, settings: Settings) -> SourceJobs:
    """Read all periodic tasks, with their last runs; Django's database is not changed."""
    periodic_task = _model()
    source_jobs = from_beat_schedule(app, settings)
    related = periodic_task.objects.select_related("interval", "crontab", "solar", "clocked")
    now = environment.now()  # this machine's clock, only to tell what has ended
    try:
        for task in related.order_by("name").iterator(chunk_size=500):
            _take(source_jobs, task, now)
    except Exception as error:
        from django.db import Error

        if isinstance(error, Error):
            raise SourceUnreadable(f"Django's database cannot be read: {' '.join(str(error).split())}") from error
        raise
    return source_jobs


def _model() -> Any:
    if not environment.variables().get("DJANGO_SETTINGS_MODULE"):
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


def _take(source_jobs: SourceJobs, task: Any, now: datetime) -> None:
    name = job_name_of(task.name)
    last = utc(task.last_run_at)
    since = last or utc(task.date_changed)  # one that never ran counts from there
    if source_jobs.belongs_to_code(name, None if since is None else StockRun(since, last is not None), task.enabled):
        return
    ended = _why_ended(task, now)
    if ended is not None:
        source_jobs.leave_out(name, ended)
        return
    try:
        source_jobs.jobs.append(_arrival(name, task, now))
    except (FieldError, ValueError) as error:
        source_jobs.leave_out(name, str(error))


def _why_ended(task: Any, now: datetime) -> str | None:
    """Tell why a task will never run again; Django keeps its row."""
    if task.one_off and task.enabled and task.total_run_count > 0:
        return "it was to run once, and has run"
    if task.clocked is not None and not task.enabled and _instant(task.clocked.clocked_time) <= now:
        return "its instant has passed"
    return None


def _arrival(name: str, task: Any, now: datetime) -> ImportedJob:
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
    return ImportedJob(name, fields, last, counts_from, None, reason, remarks=tuple(remarks))


def _schedule(task: Any) -> tuple[str, str | None]:
    """Return the schedule as text, and its time zone.

    The columns are read: Django's own schedule objects depend on a clock.
    """
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
    """Return the time zone of a crontab; None where the project has turned time zones off."""
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
    """Return an instant of a row in UTC.

    A naive one is UTC, as in django-celery-beat, whatever TIME_ZONE says.
    """
    return at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)
