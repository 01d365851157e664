"""Read and write the details of a node: its queues, its tasks, and what else it has seen.

Another release may have written them: whatever is not as expected counts as absent.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

# The queues of a worker are an array of names, and of [name, seconds] for those it has left: what
# it has just left is still leased, but nobody takes anything there. The names of the tasks of a
# large shop are many kilobytes and change with deployments only, so they are read once for each
# mark, which stands among the details.

UNLEASABLE, STRANGERS, ADDRESS, NAMED = "unleasable", "strangers", "address", "named"


class Node(NamedTuple):
    """A beat or a worker, as it describes itself."""

    node_id: str
    kind: str
    host: str
    pid: int
    package_version: str
    code_release: str | None = None
    queues: str | None = None
    """What `tell_queues` tells."""
    broker_fingerprint: str | None = None
    skew_seconds: float | None = None
    claimed: int = 0
    code_owner: str | None = None
    """Whose `beat_schedule` it has."""
    tasks: str | None = None
    """A JSON list of the tasks that a worker knows; None leaves the last one."""
    details: str | None = None
    """A JSON object with further details, a key for each concern; None leaves the last one."""
    is_stopped: bool = False
    """Whether it has stopped in order."""


class SeenNode(NamedTuple):
    """A node as the database knows it."""

    node_id: str
    kind: str
    host: str
    pid: int
    package_version: str
    code_release: str | None
    queues: str | None
    broker_fingerprint: str | None
    skew_seconds: float | None
    claimed: int
    code_owner: str | None
    details: str | None
    started_at: datetime
    heartbeat_at: datetime
    stopped_at: datetime | None
    now: datetime


class Stranger(NamedTuple):
    """An entry of another scheduler, of which messages come to a worker."""

    task: str
    name: str | None
    """Of the entry; None where that scheduler does not tell it."""
    origin: str
    """The process that sent the last one, as Celery names it: gen, its number, @, its host."""
    seconds_ago: float
    """When that came, counted back from the heartbeat that tells it."""


def tell_details(
    unleasable: Iterable[str],
    strangers: Iterable[Stranger] = (),
    address: str | None = None,
    is_named: bool = False,
) -> str:
    """Write the details of a worker.

    `unleasable`: tasks whose own strategy ends runs without a report.

    `address`: of the connection through which it takes messages, where it knows that. `is_named`:
    whether the broker knows that connection by a name of ours.
    """
    told: dict[str, Any] = {UNLEASABLE: sorted(unleasable)}
    if entries := [stranger._asdict() for stranger in strangers]:
        told[STRANGERS] = entries
    if address:
        told[ADDRESS] = address
    if is_named:
        told[NAMED] = True
    return json.dumps(told)


@lru_cache(maxsize=1000)  # the rows of a fleet, which say the same over and over
def unleasable(text: str | None) -> frozenset[str]:
    """Return the tasks of which a worker cannot keep the leases."""
    names = read_details(text).get(UNLEASABLE)
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def strangers(text: str | None) -> list[Stranger]:
    """Return the entries of other schedulers that a worker has seen."""
    entries = read_details(text).get(STRANGERS)
    seen = map(_stranger, entries if isinstance(entries, list) else [])
    return [stranger for stranger in seen if stranger is not None]


def _stranger(told: Any) -> Stranger | None:
    try:
        name = told["name"]
        return Stranger(
            str(told["task"]), None if name is None else str(name), str(told["origin"]), float(told["seconds_ago"])
        )
    except (KeyError, TypeError, ValueError):
        return None


def address(text: str | None) -> str | None:
    """Return the name of a worker's own end of the connection through which it takes messages."""
    address = read_details(text).get(ADDRESS)
    return address if isinstance(address, str) else None


def is_named(text: str | None) -> bool:
    """Return whether a worker names the connection through which it takes messages."""
    return read_details(text).get(NAMED) is True


def read_details(text: str | None) -> dict[str, Any]:
    """Return the details by their keys."""
    try:
        told = json.loads(text or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


class Queues(NamedTuple):
    """What one worker consumed when it last said so."""

    consumed: AbstractSet[str]
    left: Mapping[str, float]
    """The queues that it no longer consumed, and for how many seconds."""


def tell_queues(consumed: Iterable[str], left: Mapping[str, float]) -> str:
    """Return the text for the row."""
    return json.dumps([*sorted(consumed), *([name, round(seconds, 3)] for name, seconds in sorted(left.items()))])


def read_queues(text: str | None) -> Queues:
    """Read the text of a row; a node that is no worker has none."""
    told: list[Any] = json.loads(text or "[]")
    names = frozenset(name for name in told if isinstance(name, str))
    return Queues(names, dict(name for name in told if not isinstance(name, str)))


KEY = "tasks"


def tell_tasks(names: Iterable[str]) -> str:
    """Return the text for the row."""
    return json.dumps(sorted(names))


def mark_of(text: str) -> str:
    """Return the digest that tells one text from another."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_mark(details: str | None, text: str) -> str:
    """Return the details of a worker, with the mark of what it knows."""
    return json.dumps({**_object(details), KEY: mark_of(text)})


@lru_cache(maxsize=1000)  # the rows of a fleet, which say the same over and over
def mark_in(details: str | None) -> str | None:
    """Return the mark in the details of a worker; None where there is none."""
    mark = _object(details).get(KEY)
    return mark if isinstance(mark, str) else None


def names_in(text: str | None, mark: str) -> frozenset[str] | None:
    """Read the names in a text; None where it has another mark, or cannot be read."""
    if text is None or mark_of(text) != mark:
        return None
    try:
        names = json.loads(text)
    except ValueError:
        return None
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else None


def nobody_has(task_name: str, known: Collection[frozenset[str] | None]) -> bool:
    """Return whether there is somebody, and each of them is known not to know this task."""
    return bool(known) and all(names is not None and task_name not in names for names in known)


def _object(details: str | None) -> dict[str, Any]:
    try:
        decoded = json.loads(details or "{}")
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}
