"""Pools: how many runs of jobs and tasks that name one may go on at a time. Pure.

A pool of three is three named locks, its places: a run that begins takes one of them.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

MOST_PLACES = 100
POOL_ALLOWED = f'a name and how many runs, at most {MOST_PLACES}, as in "erp:3"'

_of_text = re.compile(r"([A-Za-z0-9_.-]{1,100}):([1-9][0-9]{0,2})").fullmatch
_PREFIX = "pool:"
_BEFORE_RUN = " (run "


class Pool(NamedTuple):
    """A pool as a policy or a task names it."""

    name: str
    places: int

    def __str__(self) -> str:
        return f"{self.name}:{self.places}"

    @property
    def keys(self) -> list[str]:
        """The keys of its places."""
        return [f"{_PREFIX}{self.name}:{number:03d}" for number in range(1, self.places + 1)]

    @property
    def before(self) -> str:
        """A key that is before those of its places."""
        return f"{_PREFIX}{self.name}:"

    def full(self, holders: Iterable[str]) -> str:
        """Say that it is full, and of whom."""
        return f"pool {self.name} is full: {', '.join(holder.partition(_BEFORE_RUN)[0] for holder in holders)}"


def pool_of(value: Any) -> Pool | None:
    """Read the pool that a text names; None where it names none."""
    match = _of_text(value) if isinstance(value, str) else None
    pool = None if match is None else Pool(match[1], int(match[2]))
    return pool if pool is not None and pool.places <= MOST_PLACES else None


def checked_pool(value: object) -> str:
    """Return the text of a pool, or raise a ValueError."""
    pool = pool_of(value)
    if pool is None:
        raise ValueError
    return str(pool)


def holder_of(job_name: str, run_id: str, worker: str) -> str:
    """Name the run that holds a place, its job first."""
    return f"{job_name}{_BEFORE_RUN}{run_id} on {worker})"


def in_turn(keys: Sequence[str], held: Iterable[str], rnd: Callable[[], float]) -> list[str]:
    """Return the places in the order in which to try them.

    Those that seemed free come first, from a random one on, so that those who begin at one moment
    meet seldom.
    """
    taken = set(held)
    free = [key for key in keys if key not in taken]
    at = int(rnd() * len(free))
    return [*free[at:], *free[:at], *(key for key in keys if key in taken)]
