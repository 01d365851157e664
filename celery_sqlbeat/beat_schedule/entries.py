"""Read a `beat_schedule`: each entry becomes a definition that the table can keep.

What no text can hold is marked with a code key, and is claimed only by beats that have the entry. A
wrong entry is reported by name and stops no other. No database is read here.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.app import app_zone, configured_from
from celery_sqlbeat.celery_bridge.schedules import (
    digest,
    from_celery,
    has_own_clock,
    is_in_app_zone,
    is_schedule,
    schedule_entry,
    shown_time,
    to_celery,
    zone_of,
)
from celery_sqlbeat.config.policy import Policies, policy_for
from celery_sqlbeat.config.validation import storable
from celery_sqlbeat.errors import FieldError, SqlbeatError
from celery_sqlbeat.model import CODE_SCHEDULE, Claim, CodeDefinition
from celery_sqlbeat.model.beat_schedule import as_json
from celery_sqlbeat.schedule import Timeline, parse, zone_named

LONGEST_NAME = 200  # characters, as wide as the columns
NAMELESS = "celery"  # the owner of an app of which nothing is known
_NO_HOME = ("celery", "celery_sqlbeat")  # packages that hold apps of others
_MARK = 12  # characters of a digest
_GROUP = "~"
_FIELDS = ("task", "schedule", "args", "kwargs", "options", "relative", "last_run_at", "total_run_count")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in the name that Celery makes of a signature's repr
_CLOCK_SECONDS = 5.0  # an entry's own clock that differs by less shows the time of day, in some zone


class CodeEntry(NamedTuple):
    """An entry, with what the table keeps of it."""

    definition: CodeDefinition
    entry: Any
    has_own_zone: bool
    """Whether its schedule has a time zone, which then counts before all others."""


class EntryProblem(NamedTuple):
    """An entry that cannot run as it was written."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class CodeSchedule:
    """A whole `beat_schedule`."""

    owner: str
    release: str
    entries: Mapping[str, CodeEntry]
    """By job name, which is the entry's name unless that is too long for its column."""
    problems: list[EntryProblem]
    wrong: frozenset[str]
    """The job names of entries with a problem: they did not leave the code."""
    is_named: bool
    """Whether the owner is named by the app itself, not by the module that has it."""

    def told(self) -> dict[str, str]:
        """Return a digest of each entry by job name, for other beats; empty for wrong entries."""
        marks = {name: digest(tuple(entry.definition))[:_MARK] for name, entry in self.entries.items()}
        return marks | dict.fromkeys(self.wrong, "")

    def with_task_id(self) -> list[str]:
        """Return the entries whose options have a `task_id`; the run's id replaces it."""
        return [name for name, entry in self.entries.items() if (entry.entry.options or {}).get("task_id")]

    def by_key(self) -> dict[str, CodeEntry]:
        """Return the entries that only a beat that has them may claim, by code key."""
        return {
            entry.definition.code_key: entry for entry in self.entries.values() if entry.definition.code_key is not None
        }


def read_entries(
    app: Any,
    schedule: Mapping[Any, Any],
    release: str | None = None,
    policies: Policies | None = None,
) -> CodeSchedule:
    """Read entries: mappings as in `beat_schedule`, or entry objects of Celery.

    `release` is the one of the settings.
    """
    owner, zone = owner_of(app), app_zone(app)
    entries: dict[str, CodeEntry] = {}
    problems: list[EntryProblem] = []
    wrong: set[str] = set()
    for name, value in schedule.items():
        job_name = job_name_of(name)
        try:
            if not job_name:
                raise FieldError("JobName", name, "give the entry a name")
            if job_name in entries:
                raise FieldError("JobName", name, "another entry has this name already")
            entry = _entry(app, name, value)
            zone_by_policy = policy_for(job_name, policies).timezone if policies else None
            entries[job_name] = _read(entry, owner, job_name, zone_by_policy or zone)
        except Exception as error:
            if isinstance(error, FieldError) and policies and policy_for(job_name, policies).sensitive:
                error = error.hidden()
            problems.append(EntryProblem(str(name), _reason(error)))
            wrong.add(job_name)
    if release is None:
        release = digest(owner, [tuple(entries[name].definition) for name in sorted(entries)])
    else:
        # Beats with other groups of entries may have the same release of the shop.
        release += f"{_GROUP}{digest(sorted(entries.keys() | wrong))[:_MARK]}"
    return CodeSchedule(
        owner=owner,
        release=release,
        entries=entries,
        problems=problems,
        wrong=frozenset(wrong - entries.keys()),
        is_named=_named(app) is not None,
    )


def owner_of(app: Any) -> str:
    """Return the owner of an app's entries, among the apps of a namespace.

    It is the app's name (`Celery("shop")`); without one the module or object of its configuration,
    or else the module that has the app.
    """
    return job_name_of(_named(app) or _module_of(app) or NAMELESS)


def _named(app: Any) -> str | None:
    source = configured_from(app)
    named: str | None = app.main or (source if isinstance(source, str) else getattr(source, "__name__", None))
    return named or None


def _module_of(app: Any) -> str | None:
    """Return the first imported module that has a nameless app: `-A` names that one."""
    for name, module in list(sys.modules.items()):
        held = list(getattr(module, "__dict__", {}).values())
        if name.partition(".")[0] in _NO_HOME or not any(value is app for value in held):
            continue
        if name != "__main__":
            return name
        file = getattr(module, "__file__", None)
        return Path(file).stem if file else None
    return None


def shown_release(release: str) -> str:
    """Return a release as its setting names it, or the beginning of its digest."""
    named = named_release(release)
    return named if named != release else release[:_MARK]


def named_release(release: str) -> str:
    """Return a release without the digest of its entries."""
    return release.rpartition(_GROUP)[0] or release


def job_name_of(name: object) -> str:
    """Return the name of an entry as its column takes it: without addresses, and not too long."""
    text = _ADDRESS.sub("", str(name)).replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(text.encode("utf-16-le")) <= 2 * LONGEST_NAME:
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    # A character outside of the basic plane takes two places: half as many characters always fit.
    return f"{text[: LONGEST_NAME // 2 - 18]}~{mark}"


def _entry(app: Any, name: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        if hasattr(value, "task") and hasattr(value, "schedule"):
            return value
        raise FieldError("beat_schedule", value, "an entry is a mapping with task and schedule")
    fields = {key: field for key, field in value.items() if key not in ("name", "app")}
    for key in fields:
        if key not in _FIELDS:
            raise FieldError("beat_schedule", key, f"an entry has any of {', '.join(_FIELDS)}")
    if isinstance(fields.get("schedule"), str):
        fields["schedule"] = to_celery(parse(fields["schedule"]), app)
    if not is_schedule(fields.get("schedule")):
        from_celery(fields.get("schedule"), bool(fields.get("relative")))  # for a better error
    return schedule_entry(**{**fields, "name": name, "app": app})


def _read(entry: Any, owner: str, job_name: str, zone: str) -> CodeEntry:
    task = entry.task
    if not isinstance(task, str) or not task or len(task.encode("utf-16-le")) > 2 * LONGEST_NAME:
        raise FieldError("TaskName", task, f"write the name of a Celery task, of at most {LONGEST_NAME} characters")
    last_run_at = getattr(entry, "last_run_at", None)
    if last_run_at is not None and not isinstance(last_run_at, datetime):
        raise FieldError("last_run_at", last_run_at, "write a datetime, or leave it out")
    schedule, own_zone = _schedule_text(entry)
    args, args_are_text = _args(entry.args)
    kwargs, kwargs_are_text = _mapping("Kwargs", entry.kwargs)
    options, options_are_text = _mapping("Options", entry.options, storable)
    code_key = None
    if not (args_are_text and kwargs_are_text and options_are_text) or schedule == CODE_SCHEDULE:
        code_key = digest(owner, job_name, task, entry.schedule, entry.args, entry.kwargs, entry.options)
    definition = CodeDefinition(job_name, str(task), schedule, own_zone or zone, args, kwargs, options, code_key)
    return CodeEntry(definition, entry, own_zone is not None)


def _schedule_text(entry: Any) -> tuple[str, str | None]:
    """Return the schedule as text, and its own time zone."""
    schedule = entry.schedule
    read = from_celery(schedule)
    if read is None or not _shows_the_time(schedule):
        return CODE_SCHEDULE, None
    text = str(read)
    parse(text)  # every beat must be able to read what is written
    try:
        zone = zone_of(schedule)
        return text, zone_named(zone).key if zone is not None else None
    except FieldError:
        # A zone without a name. It may be the app's, which Celery keeps in a schedule that used it.
        return (text, None) if is_in_app_zone(schedule) else (CODE_SCHEDULE, None)


def _shows_the_time(schedule: Any) -> bool:
    """Return whether the schedule counts by the time of day; its own clock may show anything."""
    if not has_own_clock(schedule):
        return True
    try:
        off = shown_time(schedule) - environment.now()
    except Exception:  # foreign code
        return False
    return abs(off.total_seconds()) < _CLOCK_SECONDS


def _args(value: Any) -> tuple[str | None, bool]:
    if not value:
        return None, True
    if not isinstance(value, list | tuple):
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
            raise FieldError("Args", value, "write a list or a tuple")
        return None, False
    text = as_json(list(value))
    return text, text is not None


def _mapping(
    field: str, value: Any, clean: Callable[[str, Any], Any] = lambda _, value: value
) -> tuple[str | None, bool]:
    if not value:
        return None, True
    if not isinstance(value, Mapping):
        raise FieldError(field, value, "write a dict")
    text = as_json({key: clean(key, item) for key, item in value.items()})
    return text, text is not None


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, SqlbeatError) else f"{type(error).__name__}: {error}"


def entry_of(app: Any, entries: Mapping[Any, Any], claim: Claim) -> Any:
    """Return the entry that stock beat would pass to `apply_entry`, with its job's schedule."""
    return schedule_entry(
        name=claim.job_name,
        task=claim.task_name,
        schedule=_schedule_of(app, entries, claim),
        args=claim.args,
        kwargs=dict(claim.kwargs),
        options=dict(claim.options),
        app=app,
    )


def _schedule_of(app: Any, entries: Mapping[Any, Any], claim: Claim) -> Any:
    timeline = claim.timeline
    if isinstance(timeline, Timeline):
        return to_celery(timeline.schedule, app, timeline.zone)
    # A custom schedule class; or a republished message, for which the row was not read.
    return getattr(entries.get(claim.job_name), "schedule", 0)
