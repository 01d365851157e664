"""Check a definition of a job field by field, and write it as the columns of a row. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from celery import Signature

from celery_sqlbeat.celery_bridge.schedules import from_celery, zone_of
from celery_sqlbeat.config.policy import policy_fields, row_error
from celery_sqlbeat.config.validation import shown, storable
from celery_sqlbeat.errors import FieldError, ScheduleError
from celery_sqlbeat.model import JobDraft
from celery_sqlbeat.model.beat_schedule import as_json
from celery_sqlbeat.model.definition import Definition, Rules, is_sensitive, read_definition
from celery_sqlbeat.schedule import zone_named
from celery_sqlbeat.schedule.zone import BOUNDS, within

LONGEST_NAME = LONGEST_REASON = 200  # characters, as wide as the columns on every database
# A worker cannot run these: Celery has tasks of these names, and they raise.
_NO_TASKS = {"celery.chain": "a chain", "celery.group": "a group"}
# Celery sends the arguments of these as plain mappings.
_OF_TASKS = ("celery.chord", "celery.map", "celery.starmap", "celery.chunks")


class SignatureParts(NamedTuple):
    """A task and the contents of its message, by the columns of a job."""

    task: object
    args: object
    kwargs: object
    options: object


def unpack_signature(task: object, args: object, kwargs: object, options: object) -> SignatureParts:
    """Unpack a signature into name, arguments and options; anything else stays as it was given.

    Raises a FieldError where both say something different.
    """
    if not isinstance(task, Signature):
        return SignatureParts(getattr(task, "name", task), args, kwargs, options)
    signature: Any = task
    name = signature.name
    if name in _NO_TASKS:
        raise FieldError(
            "TaskName",
            shown(task),
            f"{_NO_TASKS[name]} is no task that a worker could run: write a task that starts it, and schedule that one",
        )
    own = signature.kwargs
    return SignatureParts(
        name,
        _one_source("Args", args, signature.args, signature.immutable),
        _one_source("Kwargs", kwargs, _as_sent(own) if name in _OF_TASKS else own, signature.immutable),
        _merged_options(options, signature.options),
    )


def _one_source(field: str, given: Any, own: Any, immutable: bool) -> Any:
    if given is None or given in ((), [], {}):
        return _plain(own)
    if own:
        raise FieldError(field, shown(given), "the signature has some already: write them in one place")
    if immutable:
        raise FieldError(field, shown(given), "the signature is immutable: write them into it, as in task.si(1, 2)")
    return given


def _merged_options(given: Any, own: Mapping[str, Any]) -> Any:
    if not own:
        return given
    if given is not None and not isinstance(given, Mapping):
        return given  # refused for that
    for key, value in (given or {}).items():
        if key in own and own[key] != value:
            raise FieldError(f"Options.{key}", value, f"the signature says {own[key]!r}: write it in one place")
    return {**_plain(own), **(given or {})}


def _plain(value: Any) -> Any:
    """Convert nested signatures to the mappings that Celery sends."""
    if isinstance(value, Signature):
        return _as_sent(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value


def _as_sent(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_sent(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_sent(item) for item in value]
    return value


class JobText(NamedTuple):
    """The columns of a job that people write, in the form that `read_definition` reads."""

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


class JobSpec(NamedTuple):
    """A whole definition, checked."""

    text: JobText
    definition: Definition
    start_at: datetime | None
    enabled: bool | None
    """None: unchanged, and a new job is enabled."""


def job_spec(
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
) -> JobSpec:
    """Check a definition; raises a FieldError for the first field that cannot work."""
    job_name, own = _name("JobName", name, "a job"), given_policies(policies)
    try:
        task_name, args, kwargs, options = task_parts(task, args, kwargs, options)
        text = JobText(
            job_name,
            task_name,
            _schedule(schedule),
            None,
            own.pop("timezone", None) or _zone(schedule),
            *call_text(args, kwargs, options),
            policies_text(own),
            None,
        )
    except FieldError as error:
        is_hidden = rules.payload_key is not None or is_sensitive(job_name, policies_text(own), rules.policies)
        raise (error.hidden() if is_hidden else error) from None
    return JobSpec(text, read_definition(text, rules), instant("StartAt", start), flag("Enabled", enabled))


def task_parts(task: object, args: object, kwargs: object, options: object) -> tuple[str, object, object, object]:
    """Return the checked name of a task, and what it is called with, which is not checked yet."""
    task, args, kwargs, options = unpack_signature(task, args, kwargs, options)
    return _name("TaskName", task, "a Celery task"), args, kwargs, options


def call_text(args: object, kwargs: object, options: object) -> tuple[str | None, str | None, str | None]:
    """Return the JSON of a call, as the columns have it."""
    return _args(args), _mapping("Kwargs", kwargs), _mapping("Options", options, storable)


def draft_of(text: JobText, next_run_time: datetime | None, enabled: bool, start_at: datetime | None) -> JobDraft:
    """Make the row of a checked text."""
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
    """Check the policies that were given; None leaves one to its default."""
    given = {key: value for key, value in policies.items() if value is not None}
    return policy_fields(given, row_error)


def policies_text(own: Mapping[str, Any]) -> str | None:
    """Write policies as their column keeps them."""
    return json.dumps(own, sort_keys=True) if own else None


def flag(field: str, value: object) -> bool | None:
    """Check a flag: True, False, or None where it was not given."""
    if value is None or isinstance(value, bool):
        return value
    raise FieldError(field, shown(value), "write True or False, or leave it out")


def instant(field: str, value: object) -> datetime | None:
    """Read an instant in UTC; a text is ISO 8601. None where it was not given."""
    at = value
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value[:-1] + "+00:00" if value[-1:] in "Zz" else value)
        except ValueError:
            at = None
    if at is None and value is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise FieldError(field, shown(value), "write an instant with its time zone, such as 2027-01-31T09:00:00Z")
    try:
        bounded = within(at.astimezone(timezone.utc))
    except OverflowError:
        bounded = None
    if bounded is None:
        raise FieldError(field, shown(value), BOUNDS)
    return bounded


def _name(field: str, value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or value != value.strip():
        raise FieldError(field, shown(value), f"write the name of {what}: printable text with no blank at its ends")
    if len(value.encode("utf-16-le", "replace")) > 2 * LONGEST_NAME:
        raise FieldError(field, shown(value), f"a name has at most {LONGEST_NAME} characters")
    return value


def _schedule(value: object) -> str:
    if value is None:
        raise ScheduleError(value, "say when the job runs: every 5m, cron 0 3 * * *, a number of seconds, a timedelta")
    schedule = from_celery(value)
    if schedule is None:
        raise ScheduleError(
            shown(value), "a schedule class of your own cannot be written as text: define this job in beat_schedule"
        )
    return str(schedule)


def _zone(schedule: object) -> str | None:
    """Return the time zone of a crontab of Celery."""
    named = zone_of(schedule)
    return None if named is None else zone_named(named).key


def _args(value: object) -> str | None:
    if value is None or value in ((), []):
        return None
    if not isinstance(value, (list, tuple)):
        raise FieldError("Args", shown(value), "write a list, such as [1, 2]")
    return _json("Args", list(value))


def _mapping(field: str, value: object, clean: Callable[[str, Any], Any] = lambda _, item: item) -> str | None:
    if value is None or value == {}:
        return None
    if not isinstance(value, Mapping):
        raise FieldError(field, shown(value), 'write a mapping, such as {"id": 1}')
    return _json(field, {key: clean(key, item) for key, item in value.items()})


def _json(field: str, value: object) -> str:
    text = as_json(value)
    if text is None:
        raise FieldError(
            field, shown(value), "write what JSON keeps as it is: text, numbers, True, False, None, lists, mappings"
        )
    return text
