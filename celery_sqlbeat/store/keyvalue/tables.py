"""Describe the tables of a place: the fields of their rows, and the names of the indexes.

A row has the fields of the SQL tables' columns, in snake_case. A field that is not there is None,
or what `DEFAULTS` says. Instants are microseconds since 1970.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any, NamedTuple, TypeVar

from celery_sqlbeat.store.keyvalue.rows import Key, Row

JOB = "job"
"""By job id. `newest_slot`: no slot of the schedule has a run or gap that is later.
`newest_extra`: no extra slot is later. `one_off`: it has no name, and its one run has its id.
`asked`: the run that holds it is to stop."""
NAME = "name"
"""By job name. `job_id`: of the job that has it. `fence`: the last one of the job that had it; a
name without a job keeps it until the floor stands for it. `deleted_at`: since when it has none."""
RUN = "run"
"""By run id. A gap is a run, too. Whoever adds a run writes its job's row in the same change."""
NODE = "node"
"""By node id."""
TASKS = "tasks"
"""By node id: what a worker knows, `tasks`. They may be many kilobytes, and are seldom read."""
RELEASE = "release"
"""By `release_id`, with the fields `code_owner` and `code_release`."""
OWNER = "owner"
"""By the name of an app that has, or had, jobs: it is there before the first of them. `changes`
grows with each of its imports. `newest_seen_at`: when the last release was new. `imported_release`
and `imported_at`: which one wrote last."""
KEY = "key"
"""By an idempotency key. `run_id`: the run that it stands for until `ends_at`, with its task, the
digest of its arguments and its slot, `due_at`."""
LOCK = "lock"
"""By the key of the lock. A free one has no `lease_ends_at`, and keeps its fence."""
INFO = "info"
"""One row, `STORE`: `store_id`, `epoch`, `fence_floor`, `version`, `created_at`."""

STORE: Key = (INFO, "store")
STEP = 1_000_000_000  # fences per epoch
DEFAULT_INTERVAL_MINUTES = 10  # of a job without a schedule, as in SQL

DEFAULTS: Mapping[str, Any] = {
    "interval_minutes": DEFAULT_INTERVAL_MINUTES,
    "delete_requested": 0,
    "republishes": 0,
    "version": 1,
    "fence": 0,
    "slot_count": 1,
    "failures": 0,
    "lost_leases": 0,
    "advances": 0,
    "claimed": 0,
    "effects_done": 0,
    "prior_state": "new",
}
INSTANTS = frozenset(
    {"last_run_time", "last_slot", "newest_slot", "next_run_time", "ran_until", "scheduled_for", "seen_next_run_time"}
)
"""Beside those fields whose names end in `_at`."""

# The indexes. An index with a name of its own for each owner or job is made by a function.
NAMES = "names"
"""Of names that have a job; all scores are 0, so they are in order of the names."""
DELETED = "deleted"
"""Of names without a job: since when."""
LEASES = "leases"
"""Of locked jobs: the end of the lease, or 0 where the lock has none."""
PLANNED = "planned"
"""Of locked jobs: the next slot that their claim planned."""
REPAIR = "repair"
"""Of free jobs that cannot run as they stand, or are to be deleted; in order of their ids."""
QUARANTINED = "quarantined"
DISABLED = "disabled"
RETRYING = "retrying"
"""Of jobs that have a `retry_at`."""
RUNS = "runs"
"""Of all runs, in order of their ids: that is the order in which they were made."""
OUTBOX = "outbox"
"""Of runs that wait for a beat: since when."""
HELD = "held"
"""Of runs that overlap others, and so have a lease of their own: its end."""
DEAD = "dead"
"""Of dead letters, in order of their ids."""
UNENDED = "unended"
"""Of later attempts that ended, and whose earlier ones may have no result: when they ended."""
OPEN = "open"
"""Instead of a state: of runs that have not ended."""
ENDED_STATES = ("success", "dispatched", "skipped", "cancelled", "retry", "dlq")
NODES = "nodes"
"""Of nodes: their last heartbeat."""
RELEASES = "releases"
"""Of releases whose entries are known: when they were seen first."""
ALL_RELEASES = "all_releases"
OWNERS = "owners"
"""Of the names of apps, in their order."""

DUE_ONE_OFFS = "due_one_offs"
"""Of free one-offs: when they are due."""
ONE_OFF_LEASES = "one_off_leases"
"""Of locked one-offs: the end of the lease."""
ONE_OFFS = "one_offs"
"""Of the runs of one-offs, in order of their ids; they stand in no other index of their jobs."""
KEYS = "keys"
"""Of idempotency keys: their end."""

LOCKS = "locks"
"""Of the keys of locks that are not free, in their order."""
TAKEN = "taken"
"""Of all locks: when they were taken last."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = datetime.min.replace(tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc)
HIGHEST_SCORE = 2**53  # Redis keeps scores as floating point numbers; this is in the year 2255


def due_index(owner: str | None, is_coded: bool = False) -> str:
    """Of free jobs of this app (None: of no app): when they are due.

    `is_coded`: of those that only a beat with their entry may claim.
    """
    return f"{'coded' if is_coded else 'due'}:{owner or ''}"


def replace_index(owner: str | None) -> str:
    """Of enabled jobs of this app that are held: when their run is to make room."""
    return f"replace:{owner or ''}"


def owned_index(owner: str) -> str:
    """Of the jobs of this app."""
    return f"owned:{owner}"


def task_index(task_name: str) -> str:
    """Of the enabled jobs that have this task."""
    return f"task:{task_name}"


def disabled_index(owner: str) -> str:
    """Of the jobs of this app that are disabled."""
    return f"{DISABLED}:{owner}"


def left_index(owner: str) -> str:
    """Of the jobs of this app that are disabled because their entries left its code."""
    return f"left:{owner}"


def runs_index(job_id: str) -> str:
    """Of the runs of a job: their slots. Later attempts of a slot have later ids."""
    return f"runs_of:{job_id}"


def open_index(job_id: str) -> str:
    """Of the runs of a job with `max_parallel` that go on, or may: when they were sent."""
    return f"open_of:{job_id}"


def waiting_index(job_id: str) -> str:
    """Of the runs of a job that wait in the outbox."""
    return f"waiting_of:{job_id}"


def held_index(job_id: str) -> str:
    """Of the runs of a job that have a lease of their own."""
    return f"held_of:{job_id}"


def slots_index(state: str, is_one_off: bool = False) -> str:
    """Of the runs in this state, one of `ENDED_STATES` or `OPEN`: their slots.

    `is_one_off`: of one-offs that have ended; those that wait stand in no index of this kind.
    """
    return f"{'one_off_slots' if is_one_off else 'slots'}:{state}"


def release_id(owner: str, release: str) -> str:
    """Return the id of the row of a release."""
    return json.dumps([owner, release])


def score(instant: int) -> int:
    """Return an instant as an index keeps it: exact up to the year 2255."""
    if -HIGHEST_SCORE <= instant <= HIGHEST_SCORE:
        return instant
    return max(-HIGHEST_SCORE, min(instant, HIGHEST_SCORE))


def micros(at: datetime) -> int:
    """Return an instant as rows keep it."""
    return (at - _EPOCH) // _MICROSECOND


def kept(at: Any) -> int | None:
    """Return an instant as rows keep it, where it is one."""
    return micros(at) if isinstance(at, datetime) else None


def instant(value: int) -> datetime:
    """Return an instant of a row as everybody else knows it."""
    return _EPOCH + timedelta(microseconds=value)


def seen(value: int | None) -> datetime | None:
    """Return an instant of a row where it has one."""
    return None if value is None else instant(value)


def after(at: int, seconds: float) -> int:
    """Add seconds to an instant, up to either end of the calendar."""
    return max(_FIRST_INSTANT, min(at + round(max(-1e12, min(seconds, 1e12)) * 1_000_000), _LAST_INSTANT))


_FIRST_INSTANT, _LAST_INSTANT = micros(_FIRST), micros(_LAST)

Record = TypeVar("Record", bound=NamedTuple)


@cache
def _columns(kind: type[Any]) -> tuple[tuple[str, bool, Any], ...]:
    return tuple((field, field in INSTANTS or field.endswith("_at"), DEFAULTS.get(field)) for field in kind._fields)


def record_of(kind: type[Record], row: Row, facts: Mapping[str, Any]) -> Record:
    """Build a record of the model from the fields of a row; facts come before them.

    The id of the row and the clock are facts: no row knows them.
    """
    values: list[Any] = []
    for field, is_instant, default in _columns(kind):
        if field in facts:
            values.append(facts[field])
        else:
            value = row.get(field, default)
            values.append(instant(value) if is_instant and value is not None else value)
    return kind._make(values)


def first_fence(name: Row | None, store: Row | None) -> int:
    """Return the fence of a new job: not below any that a job of its name had."""
    facts = store or {}
    known: list[int] = [(name or {}).get("fence", 0), facts.get("fence_floor", 0), facts.get("epoch", 0) * STEP]
    return max(known)
