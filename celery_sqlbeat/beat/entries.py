"""Reads a `beat_schedule`: each entry becomes a definition that the table can keep. Knows no database.

What cannot be written as text is marked with a code key and stays with the beats that have the entry. A wrong entry is
reported with its name and stops no other. The owner of a `beat_schedule` is the app's name (`Celery("shop")`); where it
has none, the module or object that its configuration came from, or else the module that has the app.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import BaseSchedule

from celery_sqlbeat.beat.written import as_json, digest
from celery_sqlbeat.beat.zone import app_zone
from celery_sqlbeat.errors import FieldError, SqlbeatError
from celery_sqlbeat.model import CODE_SCHEDULE, CodeDefinition
from celery_sqlbeat.options import storable
from celery_sqlbeat.policy import Policies, policy_for
from celery_sqlbeat.schedule import parse, zone_named
from celery_sqlbeat.schedule.stock import from_celery, to_celery, zone_of

LONGEST_NAME = 200  # characters, as wide as the columns
NAMELESS = "celery"  # the owner of an app of which nothing is known
_NO_HOME = ("celery", "celery_sqlbeat")  # keep apps of others
_MARK = 12  # characters of a digest
_GROUP = "~"
_FIELDS = ("task", "schedule", "args", "kwargs", "options", "relative", "last_run_at", "total_run_count")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in the name that Celery makes of a signature's repr
_CLOCK_SECONDS = 5.0  # a clock of the entry's own that differs by less shows the time of day, in some zone

MakeEntry = Callable[[str, Mapping[str, Any]], Any]


class CodeEntry(NamedTuple):
    """An entry: what the table keeps of it, and the entry itself, which alone can build what is not text."""

    definition: CodeDefinition
    entry: Any
    has_own_zone: bool
    """Whether its schedule brings a time zone along, which then counts before all others."""


class EntryProblem(NamedTuple):
    """An entry that cannot run as it is written."""

    name: str
    reason: str


class CodeSchedule(NamedTuple):
    """A whole `beat_schedule`."""

    owner: str
    release: str
    entries: Mapping[str, CodeEntry]
    """By job name, which is the entry's name unless that is too long for its column."""
    problems: list[EntryProblem]
    wrong: frozenset[str]
    """Job names of the entries that have a problem: they did not leave the code."""
    is_named: bool = True
    """Whether the app itself says whose this is, and not the module that has it."""

    def told(self) -> dict[str, str]:
        """A digest of each entry by job name, for the other beats; those with a problem did not leave the code."""
        marks = {name: digest(tuple(one.definition))[:_MARK] for name, one in self.entries.items()}
        return marks | dict.fromkeys(self.wrong, "")

    def with_task_id(self) -> list[str]:
        """The entries whose options give their messages an id; it is replaced by that of the run."""
        return [name for name, one in self.entries.items() if (one.entry.options or {}).get("task_id")]

    def by_key(self) -> dict[str, CodeEntry]:
        """The entries that only a beat that has them may claim, by code key."""
        return {one.definition.code_key: one for one in self.entries.values() if one.definition.code_key is not None}


def read_entries(
    app: Any,
    schedule: Mapping[Any, Any],
    release: str | None = None,
    policies: Policies | None = None,
    make_entry: MakeEntry | None = None,
) -> CodeSchedule:
    """Read entries: mappings as in `beat_schedule`, or Celery's entry objects. `release` is the setting's."""
    owner, zone = owner_of(app), app_zone(app)
    make = make_entry or (lambda name, fields: ScheduleEntry(**{**fields, "name": name, "app": app}))
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
            entry = _entry(app, name, value, make)
            zone_by_policy = policy_for(job_name, policies).timezone if policies else None
            entries[job_name] = _read(entry, owner, job_name, zone_by_policy or zone)
        except Exception as error:
            problems.append(EntryProblem(str(name), _reason(error)))
            wrong.add(job_name)
    if release is None:
        release = digest(owner, [tuple(entries[name].definition) for name in sorted(entries)])
    else:
        # Beats with other groups of entries may have the same release of the shop.
        release += f"{_GROUP}{digest(sorted(entries.keys() | wrong))[:_MARK]}"
    return CodeSchedule(owner, release, entries, problems, frozenset(wrong - entries.keys()), _named(app) is not None)


def default_entries(app: Any, names: Mapping[Any, Any]) -> dict[str, Any]:
    """The entries that Celery itself adds to a schedule of these names, such as celery.backend_cleanup."""
    scheduler = Scheduler(app, schedule={}, lazy=True)
    scheduler.install_default_entries(names)
    return dict(scheduler.schedule)


def owner_of(app: Any) -> str:
    """Whose entries these are, among the apps of a namespace."""
    return job_name_of(_named(app) or _module_of(app) or NAMELESS)


def _named(app: Any) -> str | None:
    source = getattr(app, "_config_source", None)
    named: str | None = app.main or (source if isinstance(source, str) else getattr(source, "__name__", None))
    return named or None


def _module_of(app: Any) -> str | None:
    """The module that has an app without a name: the first of those, as the one that `-A` names is imported first."""
    for name, module in list(sys.modules.items()):
        held = list(getattr(module, "__dict__", {}).values())
        if name.partition(".")[0] in _NO_HOME or not any(one is app for one in held):
            continue
        if name != "__main__":
            return name
        file = getattr(module, "__file__", None)
        return Path(file).stem if file else None
    return None


def shown_release(release: str) -> str:
    """A release as people named it, or the beginning of its digest."""
    named = named_release(release)
    return named if named != release else release[:_MARK]


def named_release(release: str) -> str:
    """A release as its setting names it, where it has one."""
    return release.rpartition(_GROUP)[0] or release


def job_name_of(name: object) -> str:
    """The name of an entry as its column takes it: no address of an object, and not too long."""
    text = _ADDRESS.sub("", str(name)).replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(text.encode("utf-16-le")) <= 2 * LONGEST_NAME:
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    # A character outside the basic plane takes two places, so that half as many always fit.
    return f"{text[: LONGEST_NAME // 2 - 18]}~{mark}"


def _entry(app: Any, name: Any, value: Any, make: MakeEntry) -> Any:
    if not isinstance(value, Mapping):
        if hasattr(value, "task") and hasattr(value, "schedule"):
            return value
        raise FieldError("beat_schedule", value, "an entry is a mapping with task and schedule")
    fields = {key: one for key, one in value.items() if key not in ("name", "app")}
    for key in fields:
        if key not in _FIELDS:
            raise FieldError("beat_schedule", key, f"an entry has any of {', '.join(_FIELDS)}")
    if isinstance(fields.get("schedule"), str):
        fields["schedule"] = to_celery(parse(fields["schedule"]), app)
    if not isinstance(fields.get("schedule"), BaseSchedule):
        from_celery(fields.get("schedule"), bool(fields.get("relative")))  # a better error than Celery's own
    return make(name, fields)


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
    """The schedule as text, and the time zone that it brings along."""
    schedule = entry.schedule
    read = from_celery(schedule)
    if read is None or not _shows_the_time(schedule):
        return CODE_SCHEDULE, None
    text = str(read)
    parse(text)  # what is written must also be read again, by every beat
    try:
        zone = zone_of(schedule)
        return text, zone_named(zone).key if zone is not None else None
    except FieldError:
        # A zone without a name. It may be the app's own, which Celery keeps in the schedule once it was asked for.
        is_the_apps = schedule.nowfun is None and schedule.tz == schedule.app.timezone
        return (text, None) if is_the_apps else (CODE_SCHEDULE, None)


def _shows_the_time(schedule: Any) -> bool:
    """Whether the schedule counts by the time of day; one with a clock of its own may count by anything."""
    if getattr(schedule, "nowfun", None) is None:
        return True
    try:
        shown = schedule.maybe_make_aware(schedule.now())
        off: timedelta = shown - datetime.now(timezone.utc)
    except Exception:  # what it does when asked for the time is its own affair
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


def _mapping(field: str, value: Any, clean: Callable[[str, Any], Any] = lambda _, one: one) -> tuple[str | None, bool]:
    if not value:
        return None, True
    if not isinstance(value, Mapping):
        raise FieldError(field, value, "write a dict")
    text = as_json({key: clean(key, one) for key, one in value.items()})
    return text, text is not None


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, SqlbeatError) else f"{type(error).__name__}: {error}"
