"""Classify errors of a database, and wait behind a circuit breaker.

Each kind of database has its own classifier; the classes are the same.
"""

import threading
from collections.abc import Callable
from enum import Enum

from celery_sqlbeat import environment


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
