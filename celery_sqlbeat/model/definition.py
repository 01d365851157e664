"""What a row of `Jobs` says, checked: people write these rows by hand, so every field may be wrong.

A field that cannot work raises a FieldError that names it; the caller puts the row into quarantine.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from celery_sqlbeat.config.payload_key import Keyring, is_sealed
from celery_sqlbeat.config.policy import Policies, Policy, fields_from_text, policy_for
from celery_sqlbeat.config.validation import check_options
from celery_sqlbeat.errors import FieldError, PayloadLocked
from celery_sqlbeat.model.one_offs import ONCE
from celery_sqlbeat.schedule import COALESCE, Every, Fire, Misfire, Once, Skip, Timeline, parse, zone_named
from celery_sqlbeat.schedule.zone import BOUNDS, within

DEFAULT_MINUTES = 10  # as the column's default says
MOST_MINUTES = 527_040  # a year; more is a mistyped number
ANY_TASK = ("*",)
_NOTHING: Mapping[str, Any] = {}
_LONG_AGO = Once(datetime(1970, 1, 1, tzinfo=timezone.utc))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")  # Python reads NaN and Infinity, but no other language does


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class Rules(NamedTuple):
    """What holds for every row that does not say otherwise."""

    policies: Policies
    time_zone: str
    lock_timeout: float
    max_retries: int
    cron_deadline: float | None = None
    """Celery's `beat_cron_starting_deadline`, in seconds."""
    allowed_tasks: tuple[str, ...] = ANY_TASK
    """Globs of the tasks that rows may name."""
    max_payload: int = 262_144
    """How many bytes the arguments of a job may have."""
    payload_key: Keyring | None = None
    """What seals the arguments of jobs: with it no error shows any."""


class Slots(Protocol):
    """The slots of a job: a timeline, or an entry of the code with a custom schedule class."""

    def first_slot(self, added_at: datetime, start: datetime | None = None, key: str = "") -> datetime | None:
        """Return the first slot of a new job."""

    def plan(
        self,
        due: datetime,
        now: datetime,
        last_run: datetime | None = None,
        misfire: Misfire = COALESCE,
        key: str = "",
    ) -> Fire | Skip | None:
        """None: nobody knows yet, and the row is left as it is."""

    def passed_by(self, due: datetime, until: datetime, key: str = "") -> Skip | None:
        """Return the slots from `due` on that passed until then."""

    def next_after_retry(self, slot: datetime, now: datetime, key: str = "") -> tuple[datetime | None, float | None]:
        """Return the slot, or the delay, that follows a later attempt of a slot."""


class CallText(Protocol):
    """The columns of a job that say what is sent."""

    @property
    def task_name(self) -> Any:
        """The name of the task."""

    @property
    def args(self) -> Any:
        """The positional arguments, as JSON."""

    @property
    def kwargs(self) -> Any:
        """The keyword arguments, as JSON."""

    @property
    def options(self) -> Any:
        """The message's options, as JSON."""


class JobText(CallText, Protocol):
    """All the columns of a job that people write."""

    @property
    def job_name(self) -> str:
        """The name of the job."""

    @property
    def schedule(self) -> Any:
        """The schedule, as text."""

    @property
    def interval_minutes(self) -> Any:
        """The interval, where no schedule is given."""

    @property
    def time_zone(self) -> Any:
        """The IANA name of the time zone."""

    @property
    def policies(self) -> Any:
        """The policies, as JSON."""

    @property
    def lock_timeout_minutes(self) -> Any:
        """The time-out of the job's lock."""


class Call(NamedTuple):
    """What is sent to the worker."""

    task_name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    is_hidden: bool = False
    """Whether no error shows the arguments."""


class Definition(NamedTuple):
    """A job as it will run."""

    call: Call
    timeline: Slots
    policy: Policy
    lease_seconds: float
    max_retries: int


def read_definition(row: JobText, rules: Rules) -> Definition:
    """Read the job that a row describes."""
    own = None if row.policies is None else fields_from_text(_text("Policies", row.policies))
    policy = policy_for(row.job_name, rules.policies, own)
    lease_seconds = rules.lock_timeout if policy.lock_timeout is None else policy.lock_timeout
    if row.lock_timeout_minutes is not None:
        lease_seconds = 60.0 * _minutes("LockTimeoutMinutes", row.lock_timeout_minutes)
    zone = row.time_zone or policy.timezone or rules.time_zone
    return Definition(
        allowed_call(row, rules, policy.sensitive),
        _timeline(row.schedule, row.interval_minutes, zone, policy.jitter, policy.cadence),
        policy,
        lease_seconds,
        rules.max_retries if policy.max_retries is None else policy.max_retries,
    )


def policy_of(job_name: str, own: Any, policies: Policies) -> Policy | None:
    """Return the policy of a job with this column `Policies`; None where that cannot be read."""
    try:
        fields = None if own is None else fields_from_text(_text("Policies", own))
    except FieldError:
        return None
    return policy_for(job_name, policies, fields)


def is_sensitive(job_name: str, own: Any, policies: Policies) -> bool:
    """Return whether a job's arguments are shown nowhere; in doubt they are not."""
    policy = policy_of(job_name, own, policies)
    return policy is None or policy.sensitive


def allowed_call(row: CallText, rules: Rules, is_sensitive: bool = False) -> Call:
    """Read what a row wants sent, where its tasks are ones that rows may name."""
    is_hidden = is_sensitive or rules.payload_key is not None
    _check_size(row, rules.max_payload)
    try:
        call = read_call(row)._replace(is_hidden=is_hidden)
    except FieldError as error:
        raise (error.hidden() if is_hidden else error) from None
    if rules.allowed_tasks != ANY_TASK:
        for field, name in _tasks_of(call):
            if not any(fnmatchcase(name, glob) for glob in rules.allowed_tasks):
                remedy = f"write a task that sqlbeat_allowed_tasks has ({', '.join(rules.allowed_tasks)})"
                raise FieldError(field, name, remedy)
    return call


def _check_size(row: CallText, most: int) -> None:
    """Refuse arguments that are too large for a message, and for a row."""
    texts = {"Args": row.args, "Kwargs": row.kwargs}
    if any(map(is_sealed, texts.values())):
        return  # it is told that no key opens them
    if 4 * sum(len(text) for text in texts.values() if isinstance(text, str)) <= most:
        return  # no character takes more bytes
    sizes = {name: len(text.encode(errors="replace")) for name, text in texts.items() if isinstance(text, str)}
    if sum(sizes.values()) > most:
        raise FieldError(
            max(sizes, key=sizes.__getitem__),
            f"{sum(sizes.values())} bytes",
            f"arguments have at most {most} bytes (sqlbeat_max_payload): keep the data elsewhere, and send its key",
        )


def _tasks_of(call: Call) -> Iterator[tuple[str, str]]:
    """Yield the tasks that the message of a call names, and the field of each.

    A header of this name replaces the task; a link is a message of its own, which the worker sends.
    Celery's own tasks, as `celery.chord`, send those in their arguments.
    """
    yield "TaskName", call.task_name
    for name in _names_in(call.options):
        yield "Options", name
    if call.task_name.startswith("celery."):
        for name in _names_in([call.args, call.kwargs]):
            yield "Args", name


def _names_in(value: Any) -> Iterator[str]:
    """Yield what stands under `task` anywhere in a value."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            if "task" in item:
                yield str(item["task"])
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)


def read_call(row: CallText) -> Call:
    """Read what a row wants sent."""
    task_name, options = row.task_name, row.options
    if not isinstance(task_name, str) or not task_name:
        raise FieldError("TaskName", task_name, "write the name of a Celery task")
    checked = _NOTHING
    if options is not None:
        checked = _json("Options", options, dict, 'a JSON object such as {"queue": "x"}')
        check_options(checked)
    return Call(
        task_name,
        () if row.args is None else _json("Args", row.args, list, "a JSON array such as [1, 2]"),
        _NOTHING if row.kwargs is None else _json("Kwargs", row.kwargs, dict, 'a JSON object such as {"id": 1}'),
        checked,
    )


def instant(field: str, value: Any) -> datetime:
    """Read the instant in a column; a value that the store could not read is still as it was."""
    if not isinstance(value, datetime):
        raise FieldError(field, value, "write an instant in UTC as YYYY-MM-DD HH:MM:SS")
    if within(value) is None:
        raise FieldError(field, value, BOUNDS)
    return value


@lru_cache(maxsize=16384)  # many jobs share one schedule; the texts are short
def _timeline(schedule: Any, interval_minutes: Any, zone: str, jitter: float, cadence: str) -> Timeline:
    if schedule is None:
        minutes = DEFAULT_MINUTES if interval_minutes is None else _minutes("IntervalMinutes", interval_minutes)
        read: Any = parse(f"every {minutes}m")
    elif schedule == ONCE:
        read = _LONG_AGO  # its one slot stands in the row, and none follows
    else:
        read = parse(schedule)
    if jitter and isinstance(read, Every) and read.interval.total_seconds() < jitter:
        jitter = read.interval.total_seconds()
    return Timeline(read, zone_named(zone), jitter, cadence)


def _minutes(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_MINUTES:
        raise FieldError(field, value, f"write a whole number of minutes from 1 to {MOST_MINUTES}")
    return value


def _text(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise FieldError(field, value, "write text")


def _json(field: str, value: Any, kind: type, allowed: str) -> Any:
    if is_sealed(value):
        raise PayloadLocked(field)
    try:
        # Half the time of json.loads; the text of every due job is read.
        decoded, end = _DECODER.raw_decode(_text(field, value))
        if end != len(value):
            decoded = _DECODER.decode(value)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, kind):
        raise FieldError(field, value, f"write {allowed}")
    return decoded
