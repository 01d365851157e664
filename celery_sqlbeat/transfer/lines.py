"""JSON Lines, one job on each line: read into arrivals, and written from rows. What is written reads back the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from celery_sqlbeat.checks import is_encodable, shown
from celery_sqlbeat.definition import Call, Definition, Rules, read_definition
from celery_sqlbeat.errors import FieldError, LineError
from celery_sqlbeat.handle.drafting import LONGEST_REASON, Wish, instant, wish
from celery_sqlbeat.handle.records import job_of, plain
from celery_sqlbeat.handle.rescheduling import text_of
from celery_sqlbeat.model import FINISHED, JobRecord
from celery_sqlbeat.policy import KINDS
from celery_sqlbeat.transfer.arrivals import Arrival

_DEFINITION = ("name", "task", "schedule", "args", "kwargs", "options", "enabled", "start", *KINDS)
_STATE = ("next_run_time", "last_run_time", "disabled_reason")
FIELDS = (*_DEFINITION, *_STATE)
_NAMES = {
    "JobName": "name",
    "TaskName": "task",
    "StartAt": "start",
    "TimeZone": "timezone",
}  # in a file


class Numbered(NamedTuple):
    """An arrival that was checked, and the line that it stands on."""

    line: int
    arrival: Arrival
    wish: Wish


def read_lines(
    lines: Iterable[str], rules: Rules, examine: Callable[[Call], None] = lambda _: None
) -> Iterator[Numbered | LineError]:
    """The jobs of a file; in the place of a line that cannot work, the error that says why. Blank lines are nothing.

    `examine` raises a FieldError for a call that could never be published.
    """
    seen: dict[str, int] = {}
    for number, text in enumerate(lines, 1):
        try:
            fields = _object(number, text.removeprefix("\ufeff") if number == 1 else text)
            if fields is None:
                continue
            found = _read(number, fields, rules, examine)
            first = seen.setdefault(found.arrival.name, number)
            if first != number:
                raise LineError(number, "name", found.arrival.name, f"line {first} has this name already; leave one")
            yield found
        except LineError as error:
            yield error


def line_of(row: JobRecord, rules: Rules, with_state: bool = True) -> str:
    """The line that reads back as this job; a FieldError where there is none."""
    definition = read_definition(text_of(row), rules)
    fields = {key: plain(value) for key, value in _fields_of(row, with_state).items() if value is not None}
    line = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    try:
        back = _read(0, json.loads(line), rules, lambda _: None)
    except LineError as error:  # what is written by hand may be more than a line may say, such as a name with a blank
        raise FieldError(error.field, error.value, error.remedy) from None
    if _meaning(back.wish.definition) != _meaning(definition):
        raise FieldError("Policies", row.policies, "a line cannot say null: leave out what is to have its default")
    # Half a character, as in a file name that is no UTF-8, can be written only by its number.
    return line if is_encodable(line) else json.dumps(fields, allow_nan=False)


def _fields_of(row: JobRecord, with_state: bool) -> dict[str, Any]:
    job = job_of(row)
    found: dict[str, Any] = {"name": job.name, "task": job.task, "schedule": job.schedule}
    found.update((key, getattr(job, key)) for key in ("args", "kwargs", "options") if getattr(job, key))
    if not job.enabled:
        found["enabled"] = False
    found.update(job.policies, start=instant("StartAt", job.start))
    found["timezone"] = job.timezone or job.policies.get("timezone")
    if with_state:
        found["next_run_time"] = instant("NextRunTime", job.next_run_time)
        found["last_run_time"] = instant("LastRunTime", job.last_run_time)
        found["disabled_reason"] = None if job.enabled else job.disabled_reason
    elif job.disabled_reason == FINISHED:
        del found["enabled"]  # it has no slot left because of its state
    return found


def _meaning(definition: Definition) -> tuple[object, ...]:
    """A definition for comparing: an empty list is no other than none."""
    call, timeline, policy, lease_seconds, max_retries = definition
    sent = (call.task_name, list(call.args), dict(call.kwargs), dict(call.options))
    # Where the lease and the time zone are written differs between a row and a line.
    return sent, timeline, replace(policy, lock_timeout=None, timezone=None), lease_seconds, max_retries


def _object(number: int, text: str) -> dict[str, Any] | None:
    if not text.strip():
        return None
    try:
        found = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once_each)
    except _Twice as twice:
        raise LineError(number, twice.key, shown(twice.value), "this field stands there twice; leave one") from None
    except RecursionError:
        raise LineError(number, "", None, "it is nested too deeply") from None
    except json.JSONDecodeError as error:
        what = f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.colno}"
        raise LineError(number, "", None, f"not JSON ({what}); each line is one object") from None
    except ValueError as error:
        raise LineError(number, "", None, f"not JSON ({error}); each line is one object") from None
    if not isinstance(found, dict):
        raise LineError(number, "", None, 'write an object, such as {"name": "a", "task": "app.task", "schedule": 60}')
    return found


def _read(number: int, fields: dict[str, Any], rules: Rules, examine: Callable[[Call], None]) -> Numbered:
    for key, value in fields.items():
        if key not in FIELDS:
            raise LineError(number, key, shown(value), f"no such field; there are {', '.join(FIELDS)}")
    try:
        definition = {key: fields.get(key) for key in _DEFINITION}
        wanted = wish(rules, **definition)
        examine(wanted.definition.call)
        reason = _reason(fields.get("disabled_reason"), wanted)
        arrival = Arrival(
            wanted.text.job_name,
            definition,
            last_run_time=instant("last_run_time", fields.get("last_run_time")),
            next_run_time=instant("next_run_time", fields.get("next_run_time")),
            disabled_reason=reason,
            finished=reason == FINISHED,
        )
    except FieldError as error:
        raise LineError(number, _name_in_file(error.field), error.value, error.remedy) from None
    return Numbered(number, arrival, wanted)


def _reason(value: object, wanted: Wish) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value.strip()) <= LONGEST_REASON or "\0" in value:
        raise FieldError("disabled_reason", shown(value), f"write a text of 1 to {LONGEST_REASON} characters")
    if wanted.enabled is not False:
        raise FieldError("disabled_reason", value, 'a reason goes with "enabled": false')
    return value


def _name_in_file(field: str) -> str:
    """The field of a line by the name that an error gives to the column."""
    first, _, rest = field.partition(".")
    if first == "Policies" and rest:
        return rest
    name = _NAMES.get(first, first.lower())
    return f"{name}.{rest}" if rest else name


class _Twice(ValueError):  # never leaves this module
    def __init__(self, key: str, value: object) -> None:
        super().__init__(key)
        self.key, self.value = key, value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(key, value)
        found[key] = value
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
