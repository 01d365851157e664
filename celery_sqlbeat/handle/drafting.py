"""What somebody wants a job to be, checked field by field and put as the table keeps it. Asks no database."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from celery_sqlbeat.beat.written import as_json
from celery_sqlbeat.checks import shown
from celery_sqlbeat.definition import Definition, Rules, read_definition
from celery_sqlbeat.errors import FieldError, ScheduleError
from celery_sqlbeat.handle.signatures import unpacked
from celery_sqlbeat.model import JobDraft
from celery_sqlbeat.options import storable
from celery_sqlbeat.policy import policy_fields, row_error
from celery_sqlbeat.schedule import zone_named
from celery_sqlbeat.schedule.edges import BOUNDS, within
from celery_sqlbeat.schedule.stock import from_celery, zone_of

LONGEST_NAME = LONGEST_REASON = 200  # characters, as wide as the columns on every database


class Text(NamedTuple):
    """The columns of a job that people write, as the reader of definitions takes them."""

    job_name: str
    task_name: str | None
    schedule: str | None
    interval_minutes: int | None
    time_zone: str | None
    args: str | None
    kwargs: str | None
    options: str | None
    policies: str | None
    lock_timeout_minutes: int | None


class Wish(NamedTuple):
    """A whole definition, checked."""

    text: Text
    definition: Definition
    start_at: datetime | None
    enabled: bool | None
    """None: as it is, and a new job is enabled."""


def wish(
    rules: Rules,
    name: object,
    task: object,
    schedule: object,
    args: object = None,
    kwargs: object = None,
    options: object = None,
    enabled: object = None,
    start: object = None,
    **policies: object,
) -> Wish:
    """Check a definition; raises a FieldError for the first field that cannot work."""
    job_name = _name("JobName", name, "a job")
    task, args, kwargs, options = unpacked(task, args, kwargs, options)
    task_name = _name("TaskName", task, "a Celery task")
    own = given_policies(policies)
    text = Text(
        job_name,
        task_name,
        _schedule(schedule),
        None,
        own.pop("timezone", None) or _zone(schedule),
        _args(args),
        _mapping("Kwargs", kwargs),
        _mapping("Options", options, storable),
        policies_text(own),
        None,
    )
    return Wish(text, read_definition(text, rules), instant("StartAt", start), flag("Enabled", enabled))


def draft_of(text: Text, next_run_time: datetime | None, enabled: bool, start_at: datetime | None) -> JobDraft:
    """The row that a checked text becomes."""
    return JobDraft(
        text.job_name,
        text.task_name or "",
        text.schedule,
        text.time_zone,
        text.args,
        text.kwargs,
        text.options,
        text.policies,
        enabled,
        start_at,
        next_run_time,
        text.lock_timeout_minutes,
    )


def given_policies(policies: Mapping[str, object]) -> dict[str, Any]:
    """The policies that were given, checked; None leaves one to what is less specific."""
    given = {key: value for key, value in policies.items() if value is not None}
    return policy_fields(given, row_error)


def policies_text(own: Mapping[str, Any]) -> str | None:
    """Policies as their column keeps them."""
    return json.dumps(own, sort_keys=True) if own else None


def flag(field: str, value: object) -> bool | None:
    """True, False, or None where nothing was said."""
    if value is None or isinstance(value, bool):
        return value
    raise FieldError(field, shown(value), "write True or False, or leave it out")


def instant(field: str, value: object) -> datetime | None:
    """An instant in UTC; a text is ISO 8601. None where nothing was said."""
    found = value
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value[:-1] + "+00:00" if value[-1:] in "Zz" else value)
        except ValueError:
            found = None
    if found is None and value is None:
        return None
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise FieldError(field, shown(value), "write an instant with its time zone, such as 2027-01-31T09:00:00Z")
    try:
        at = within(found.astimezone(timezone.utc))
    except OverflowError:
        at = None
    if at is None:
        raise FieldError(field, shown(value), BOUNDS)
    return at


def _name(field: str, value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or value != value.strip():
        raise FieldError(field, shown(value), f"write the name of {what}: printable text with no blank at its ends")
    if len(value.encode("utf-16-le", "replace")) > 2 * LONGEST_NAME:
        raise FieldError(field, shown(value), f"a name has at most {LONGEST_NAME} characters")
    return value


def _schedule(value: object) -> str:
    if value is None:
        raise ScheduleError(value, "say when the job runs: every 5m, cron 0 3 * * *, a number of seconds, a timedelta")
    found = from_celery(value)
    if found is None:
        raise ScheduleError(
            shown(value), "a schedule class of your own cannot be written as text: define this job in beat_schedule"
        )
    return str(found)


def _zone(schedule: object) -> str | None:
    """The time zone that a crontab of Celery brings along."""
    named = zone_of(schedule)
    return None if named is None else zone_named(named).key


def _args(value: object) -> str | None:
    if value is None or value in ((), []):
        return None
    if not isinstance(value, (list, tuple)):
        raise FieldError("Args", shown(value), "write a list, such as [1, 2]")
    return _json("Args", list(value))


def _mapping(field: str, value: object, clean: Callable[[str, Any], Any] = lambda _, one: one) -> str | None:
    if value is None or value == {}:
        return None
    if not isinstance(value, Mapping):
        raise FieldError(field, shown(value), 'write a mapping, such as {"id": 1}')
    return _json(field, {key: clean(key, one) for key, one in value.items()})


def _json(field: str, value: object) -> str:
    text = as_json(value)
    if text is None:
        raise FieldError(
            field, shown(value), "write what JSON keeps as it is: text, numbers, True, False, None, lists, mappings"
        )
    return text
