"""Classify database errors, wait behind a circuit breaker, and write around a refused row.

Each database has its own classifier; the classes are the same. A batch with a refused row is
written in halves, down to that row. An error that keeps the database from answering concerns all
rows, and is raised.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from celery_sqlbeat import environment, events
from celery_sqlbeat.errors import RowRefused
from celery_sqlbeat.model import LONGEST_QUARANTINE
from celery_sqlbeat.store.beat_protocol import WriteResult

R = TypeVar("R")
RunRow = TypeVar("RunRow", bound=tuple[Any, ...])


class Fault(Enum):
    """The classes of database errors; each has its own wait before the work is tried again."""

    DEADLOCK = "deadlock"  # the server chose this transaction as the victim: again at once
    TRANSIENT = "transient"  # a lock, a statement time-out, a busy file: again soon
    THROTTLED = "throttled"  # the server has too much to do: again later
    LOST = "lost"  # no connection, or it broke: again on a new one
    AMBIGUOUS = "ambiguous"  # the answer to a commit did not come: ask what became of it
    UNKNOWN = "unknown"  # an error that no list has: a new connection, ask what became of the work, again
    CONFLICT = "conflict"  # a unique key is taken: the caller knows why
    REFUSED = (
        "refused"  # a value, a constraint or a trigger refuses some row: the other rows of the batch could be written
    )
    FATAL = "fatal"  # can never succeed as it is: syntax, a missing table or column, rights


AGAIN = frozenset({Fault.DEADLOCK, Fault.TRANSIENT, Fault.THROTTLED, Fault.LOST, Fault.AMBIGUOUS, Fault.UNKNOWN})
AWAY = frozenset({Fault.THROTTLED, Fault.LOST, Fault.AMBIGUOUS})  # what opens the circuit breaker
SLOW = AWAY | {Fault.TRANSIENT, Fault.UNKNOWN}  # what may have kept the caller waiting, and would do so again
UNCERTAIN = frozenset({Fault.LOST, Fault.AMBIGUOUS, Fault.UNKNOWN})  # it may have committed, and the session goes

# Seconds before the next try: the first wait and the longest; doubling between them, with full
# jitter.
WAITS = {
    Fault.DEADLOCK: (0.005, 0.1),
    Fault.TRANSIENT: (0.02, 0.5),
    Fault.THROTTLED: (0.5, 2.0),
    Fault.LOST: (0.05, 1.0),
    Fault.AMBIGUOUS: (0.05, 1.0),
    Fault.UNKNOWN: (0.05, 1.0),
}

READ_ONLY = "can only be read"  # what our error says of a standby


def by_state(states: Mapping[str, Fault], state: str) -> Fault:
    """Return the class of a SQLSTATE, by its longest known prefix.

    A state that no table has never means that a retry is in vain.
    """
    for length in (5, 3, 2):
        fault = states.get(state[:length])
        if fault is not None:
            return fault
    return Fault.UNKNOWN


_FAILURES_TO_OPEN = 2  # one lost connection is an ordinary day
_FIRST_WAIT = 0.1  # seconds
# Seconds. A probe is one cheap connect, and callers come back after half a second to one: each of
# them finds that it may probe, unless another one has just done so.
LONGEST_WAIT = 0.5


class Breaker:
    """A circuit breaker that opens after some failures, and lets one probe through per wait."""

    def __init__(
        self,
        clock: Callable[[], float] = environment.monotonic,
        rnd: Callable[[], float] = environment.chance,
        longest: float = LONGEST_WAIT,
    ) -> None:
        self._longest = min(longest, LONGEST_WAIT)
        self._clock = clock
        self._random = rnd
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until = 0.0

    @property
    def is_open(self) -> bool:
        """Return whether the database counts as unavailable."""
        return self._failures >= _FAILURES_TO_OPEN

    def seconds_to_wait(self) -> float:
        """Return zero where the caller may try now: as the probe, for which the others wait."""
        if self._failures < _FAILURES_TO_OPEN:
            return 0.0
        with self._lock:
            wait = self._open_until - self._clock()
            if wait > 0:
                return wait
            self._open_until = self._clock() + self._next_wait()
            return 0.0

    def succeeded(self) -> None:
        """Note that the database answered."""
        self._failures = 0

    def failed(self) -> None:
        """Note that the database did not answer."""
        with self._lock:
            self._failures += 1
            self._open_until = self._clock() + self._next_wait()

    def _next_wait(self) -> float:
        # Half of it is jitter, so that many beats do not come back in the same instant.
        longest = min(self._longest, _FIRST_WAIT * 2.0 ** min(self._failures, 10))
        return longest * (0.5 + 0.5 * self._random())


def in_halves(
    rows: Sequence[R],
    write: Callable[[Sequence[R]], None],
    refused: Callable[[R, RowRefused], None],
    first: RowRefused | None = None,
) -> None:
    """Write the rows, in their order, and hand those that are refused by themselves to `refused`.

    `first`: the error of the whole batch, where that was tried already.
    """
    waiting = [rows] if rows else []
    while waiting:
        part = waiting.pop()
        error, first = first, None
        if error is None:
            try:
                write(part)
                continue
            except RowRefused as caught:
                error = caught
        if len(part) == 1:
            refused(part[0], error)
        else:
            middle = len(part) // 2
            waiting += [part[middle:], part[:middle]]


def write_runs(rows: Sequence[RunRow], write: Callable[[Sequence[RunRow]], set[str]], action: str) -> set[str]:
    """Write rows with a run id in second place, and log those that are refused."""
    done: set[str] = set()
    in_halves(
        rows,
        lambda part: done.update(write(part)),
        lambda row, why: events.row_refused(action=action, row=row[1], error=why),
    )
    return done


def write_jobs(
    result: WriteResult, rows: Sequence[tuple[Any, ...]], write: Callable[[Sequence[tuple[Any, ...]]], set[str]]
) -> None:
    """Write rows that begin with a job id, and add the outcome of each to `result`."""
    in_halves(
        rows,
        lambda part: result.done.update(write(part)),
        lambda row, why: result.refused.update({row[0]: refusal(str(why))}),
    )


def refusal(text: str) -> str:
    """Return the reason for a job's quarantine after the database has refused its row."""
    return f"the database refuses this row: {text}"[:LONGEST_QUARANTINE]
