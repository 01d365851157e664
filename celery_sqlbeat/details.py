"""What a beat or a worker tells of itself beside its columns: a JSON object in its row, with a key for each concern.

Another release may have written it: whatever is not as expected says nothing.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

UNLEASABLE, STRANGERS, ADDRESS = "unleasable", "strangers", "address"


class Stranger(NamedTuple):
    """An entry of another scheduler, of which messages come to a worker."""

    task: str
    name: str | None
    """Of the entry; None where that scheduler does not tell it."""
    origin: str
    """The process that sent the last one, as Celery names it: gen, its number, @, its host."""
    seconds_ago: float
    """When that came, counted back from the heartbeat that tells it."""


def tell(unleasable: Iterable[str], strangers: Iterable[Stranger] = (), address: str | None = None) -> str:
    """The text for a worker's row: `unleasable` are tasks with a strategy of their own, which ends runs unheard.

    `address`: of the connection through which it takes messages, where it knows that.
    """
    told: dict[str, Any] = {UNLEASABLE: sorted(unleasable)}
    if found := [one._asdict() for one in strangers]:
        told[STRANGERS] = found
    if address:
        told[ADDRESS] = address
    return json.dumps(told)


@lru_cache(maxsize=1000)  # the rows of a fleet, which say the same over and over
def unleasable(text: str | None) -> frozenset[str]:
    """The tasks of which a worker cannot keep the leases."""
    names = read(text).get(UNLEASABLE)
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def strangers(text: str | None) -> list[Stranger]:
    """The entries of other schedulers that a worker tells of."""
    found = read(text).get(STRANGERS)
    return [one for each in (found if isinstance(found, list) else []) if (one := _stranger(each)) is not None]


def _stranger(told: Any) -> Stranger | None:
    try:
        name = told["name"]
        return Stranger(
            str(told["task"]), None if name is None else str(name), str(told["origin"]), float(told["seconds_ago"])
        )
    except (KeyError, TypeError, ValueError):
        return None


def address(text: str | None) -> str | None:
    """The connection through which a worker takes messages, as its own end of it is called."""
    found = read(text).get(ADDRESS)
    return found if isinstance(found, str) else None


def read(text: str | None) -> dict[str, Any]:
    """What is told, by its keys."""
    try:
        told = json.loads(text or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
