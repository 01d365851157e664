"""What waits for a statement: what goes into the next batches, and how one row that fails is told from the others.

A batch that fails is tried again in pieces, beside what has not failed: one row that the database refuses, or that
somebody keeps locked, must not hold up the rest. Pure.
"""

import random
from collections.abc import Callable, Iterable
from typing import TypeVar

_PIECES = 16  # so two steps find one bad row among 256; each step may cost the wait for a lock
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 1.0  # seconds; half of it is jitter. A try is one cheap connect
_LONGEST_BUSY = 30.0  # seconds; each try for a row that stays locked makes the others wait for a statement's time-out


class Waiting:
    """One row that waits."""

    __slots__ = ("failures", "most", "not_before")

    def __init__(self, most: int) -> None:
        self.most = most
        """How many may share a statement with it."""
        self.not_before = 0.0
        self.failures = 0


W = TypeVar("W", bound=Waiting)


def next_batches(waiting: Iterable[W], now: float, run_of: Callable[[W], str]) -> list[list[W]]:
    """The next statements: one for what has not failed yet, then one for each size of pieces. Each has a run once."""
    sizes: dict[int, dict[str, W]] = {}
    for one in waiting:
        if one.not_before <= now:
            chosen = sizes.setdefault(one.most, {})
            if len(chosen) < one.most:
                chosen.setdefault(run_of(one), one)
    return [list(sizes[size].values()) for size in sorted(sizes, reverse=True)]


def split(batch: list[W], now: float) -> W | None:
    """After a failure that is some row's: smaller pieces. Returns the row that failed alone; it waits for a while."""
    if len(batch) > 1:
        for one in batch:
            one.most = max(1, len(batch) // _PIECES)
        return None
    (one,) = batch
    one.most = 1
    one.not_before = now + min(_LONGEST_BUSY, 2.0**one.failures)
    one.failures += 1
    return one


class Pause:
    """After a failure that is the database's: nothing is asked for a while."""

    def __init__(self, rnd: Callable[[], float] = random.random) -> None:
        self.until = 0.0
        self._failures = 0
        self._random = rnd

    @property
    def is_failing(self) -> bool:
        """Whether it did not answer the last time."""
        return self._failures > 0

    def failed(self, now: float) -> None:
        """The database is away."""
        longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**self._failures)
        self.until = now + longest * (0.5 + 0.5 * self._random())
        self._failures = min(self._failures + 1, 10)

    def succeeded(self) -> None:
        """It answered."""
        self._failures = 0
