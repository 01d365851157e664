"""Read jobs from JSON Lines and write them: what is written reads back the same.

`SourceJobs` holds the jobs of another scheduler, not checked yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple

from celery_sqlbeat.api.job_input import LONGEST_REASON, JobSpec, instant, job_spec
from celery_sqlbeat.api.jobs import job_pages
from celery_sqlbeat.api.records import job_of, plain
from celery_sqlbeat.beat_schedule.entries import CodeSchedule
from celery_sqlbeat.beat_schedule.plan import StockRun
from celery_sqlbeat.config.payload_key import is_sealed
from celery_sqlbeat.config.policy import KINDS
from celery_sqlbeat.config.redaction import HIDDEN
from celery_sqlbeat.config.validation import shown
from celery_sqlbeat.errors import FieldError, LineError, PayloadLocked
from celery_sqlbeat.model import FINISHED, JobRecord
from celery_sqlbeat.model.definition import Call, Definition, Rules, read_definition
from celery_sqlbeat.store import Store

_DEFINITION = ("name", "task", "schedule", "args", "kwargs", "options", "enabled", "start", *KINDS)
_STATE = ("next_run_time", "last_run_time", "disabled_reason")
FIELDS = (*_DEFINITION, *_STATE)
_NAMES = {
    "JobName": "name",
    "TaskName": "task",
    "StartAt": "start",
    "TimeZone": "timezone",
}  # column -> field of a line


@dataclass(frozen=True)
class ImportedJob:
    """A job of another source, with its fields named as the parameters of `jobs.put`."""

    name: str
    fields: Mapping[str, Any]
    last_run_time: datetime | None = None
    """Its last run, which is only recorded."""
    counts_from: datetime | None = None
    """The origin of its next slot: the last run in the old scheduler. None: now."""
    next_run_time: datetime | None = None
    """Its next slot, if the source knows it; takes precedence over `counts_from`."""
    disabled_reason: str | None = None
    finished: bool = False
    """Whether its schedule has no slot left."""
    remarks: tuple[str, ...] = ()
    """What of it the table cannot store."""


class LeftOut(NamedTuple):
    """A job that is not imported, and why."""

    name: str
    reason: str


@dataclass
class SourceJobs:
    """The jobs of another scheduler, and the state that it has of `beat_schedule` entries."""

    code: CodeSchedule
    """The entries, which the code still defines; a beat would import them as well."""
    runs: dict[str, StockRun] = field(default_factory=dict)
    """The last runs of entries, by job name."""
    paused: set[str] = field(default_factory=set)
    """The entries that are disabled in the old scheduler."""
    jobs: list[ImportedJob] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, name: str, reason: str) -> None:
        """Record that a job is not imported."""
        self.left_out.append(LeftOut(name, reason))

    def belongs_to_code(self, name: str, run: StockRun | None, enabled: bool) -> bool:
        """Tell whether the code defines this entry; if so, keep its state."""
        if name in self.code.entries:
            if run is not None:
                self.runs[name] = run
            if not enabled:
                self.paused.add(name)
            return True
        return name in self.code.wrong  # left out already, with its reason


def utc(at: Any) -> datetime | None:
    """Return an instant in UTC; a naive one is UTC, as Celery takes it."""
    if not isinstance(at, datetime):
        return None
    return at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)


class CheckedLine(NamedTuple):
    """A job that was checked, and the line that defines it."""

    line: int
    job: ImportedJob
    spec: JobSpec


def read_lines(
    lines: Iterable[str], rules: Rules, check_call: Callable[[Call], None] = lambda _: None
) -> Iterator[CheckedLine | LineError]:
    """Read the jobs of a file; a line that cannot work yields its error, a blank line nothing.

    `check_call` raises a FieldError for a call that could never be published.
    """
    seen: dict[str, int] = {}
    for number, text in enumerate(lines, 1):
        try:
            fields = _object(number, text.removeprefix("\ufeff") if number == 1 else text)
            if fields is None:
                continue
            line = _read(number, fields, rules, check_call)
            first = seen.setdefault(line.job.name, number)
            if first != number:
                raise LineError(number, "name", line.job.name, f"line {first} has this name already; leave one")
            yield line
        except LineError as error:
            yield error


def line_of(row: JobRecord, rules: Rules, with_state: bool = True, with_secrets: bool = False) -> str:
    """Write the line that reads back as this job; raises a FieldError where there is none.

    Without `with_secrets` arguments are sealed where there is a key, and those of a sensitive job
    are not written without one.
    """
    definition = read_definition(row, rules)
    fields = {key: plain(value) for key, value in _fields_of(row, with_state, rules).items() if value is not None}
    for name in ("args", "kwargs") if not with_secrets else ():
        if name in fields and rules.payload_key is not None:
            fields[name] = rules.payload_key.sealed(json.dumps(fields[name]))
        elif name in fields and definition.policy.sensitive:
            remedy = "the job is sensitive: set sqlbeat_payload_key to have them encrypted, or add --with-secrets"
            raise FieldError(name.title(), HIDDEN, remedy)
    line = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    try:
        back = _read(0, json.loads(line), rules, lambda _: None)
    except LineError as error:  # a row by hand may hold more than a line, such as a name with a blank
        raise FieldError(error.field, error.value, error.remedy) from None
    if _meaning(back.spec.definition) != _meaning(definition):
        raise FieldError("Policies", row.policies, "a line cannot say null: leave out what is to have its default")
    # What a terminal would obey is escaped, and so is a lone surrogate, which UTF-8 cannot encode.
    return line if line.isprintable() else json.dumps(fields, allow_nan=False)


def _fields_of(row: JobRecord, with_state: bool, rules: Rules) -> dict[str, Any]:
    job = job_of(row, rules.policies)
    fields: dict[str, Any] = {"name": job.name, "task": job.task, "schedule": job.schedule}
    fields.update((key, getattr(job, key)) for key in ("args", "kwargs", "options") if getattr(job, key))
    if not job.enabled:
        fields["enabled"] = False
    fields.update(job.policies, start=instant("StartAt", job.start))
    fields["timezone"] = job.timezone or job.policies.get("timezone")
    if with_state:
        fields["next_run_time"] = instant("NextRunTime", job.next_run_time)
        fields["last_run_time"] = instant("LastRunTime", job.last_run_time)
        fields["disabled_reason"] = None if job.enabled else job.disabled_reason
    elif job.disabled_reason == FINISHED:
        del fields["enabled"]  # it has no slot left because of its state
    return fields


def _meaning(definition: Definition) -> tuple[object, ...]:
    """Return what two equal definitions share: an empty list equals none."""
    call, timeline, policy, lease_seconds, max_retries = definition
    sent = (call.task_name, list(call.args), dict(call.kwargs), dict(call.options))
    # A row and a line write the lease and the time zone in different places.
    return sent, timeline, replace(policy, lock_timeout=None, timezone=None), lease_seconds, max_retries


def _object(number: int, text: str) -> dict[str, Any] | None:
    if not text.strip():
        return None
    try:
        fields = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique_keys)
    except _DuplicateKey as duplicate:
        raise LineError(
            number, duplicate.key, shown(duplicate.value), "this field stands there twice; leave one"
        ) from None
    except RecursionError:
        raise LineError(number, "", None, "it is nested too deeply") from None
    except json.JSONDecodeError as error:
        what = f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.colno}"
        raise LineError(number, "", None, f"not JSON ({what}); each line is one object") from None
    except ValueError as error:
        raise LineError(number, "", None, f"not JSON ({error}); each line is one object") from None
    if not isinstance(fields, dict):
        raise LineError(number, "", None, 'write an object, such as {"name": "a", "task": "app.task", "schedule": 60}')
    return fields


def _read(number: int, fields: dict[str, Any], rules: Rules, check_call: Callable[[Call], None]) -> CheckedLine:
    for key, value in fields.items():
        if key not in FIELDS:
            raise LineError(number, key, shown(value), f"no such field; there are {', '.join(FIELDS)}")
    try:
        definition = {key: fields.get(key) for key in _DEFINITION}
        for name in ("args", "kwargs"):
            definition[name] = _opened(name.title(), definition[name], rules)
        spec = job_spec(rules, **definition)
        check_call(spec.definition.call)
        reason = _reason(fields.get("disabled_reason"), spec)
        job = ImportedJob(
            spec.text.job_name,
            definition,
            last_run_time=instant("last_run_time", fields.get("last_run_time")),
            next_run_time=instant("next_run_time", fields.get("next_run_time")),
            disabled_reason=reason,
            finished=reason == FINISHED,
        )
    except FieldError as error:
        raise LineError(number, _name_in_file(error.field), error.value, error.remedy) from None
    return CheckedLine(number, job, spec)


def _opened(field: str, value: Any, rules: Rules) -> Any:
    if not is_sealed(value):
        return value
    opened = value if rules.payload_key is None else rules.payload_key.opened(value)
    if is_sealed(opened):
        raise PayloadLocked(field)
    try:
        return json.loads(opened)
    except (ValueError, RecursionError):
        raise FieldError(field, HIDDEN, "what is encrypted there is not JSON") from None


def _reason(value: object, spec: JobSpec) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value.strip()) <= LONGEST_REASON or "\0" in value:
        raise FieldError("disabled_reason", shown(value), f"write a text of 1 to {LONGEST_REASON} characters")
    if spec.enabled is not False:
        raise FieldError("disabled_reason", value, 'a reason goes with "enabled": false')
    return value


def _name_in_file(field: str) -> str:
    """Return the field of a line, given the column that an error names."""
    first, _, rest = field.partition(".")
    if first == "Policies" and rest:
        return rest
    name = _NAMES.get(first, first.lower())
    return f"{name}.{rest}" if rest else name


class _DuplicateKey(ValueError):  # never leaves this module
    def __init__(self, key: str, value: object) -> None:
        super().__init__(key)
        self.key, self.value = key, value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise _DuplicateKey(key, value)
        fields[key] = value
    return fields


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def export_lines(
    store: Store, rules: Rules, with_state: bool = True, with_secrets: bool = False
) -> Iterator[str | LeftOut | None]:
    """Yield a line for each job of the table; None for a job that a `beat_schedule` defines.

    A job that cannot work as it is written yields the reason.
    """
    for page in job_pages(store):
        for row in page:
            if row.code_owner is not None or row.delete_requested:
                yield None
                continue
            try:
                yield line_of(row, rules, with_state, with_secrets)
            except FieldError as error:
                yield LeftOut(row.job_name, str(error))
