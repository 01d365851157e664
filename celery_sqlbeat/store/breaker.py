"""A circuit breaker: while the database is away, most callers hear so at once and one at a time tries again."""

import random
import threading
import time
from collections.abc import Callable

_FAILURES_TO_OPEN = 2  # one lost connection is an ordinary day
_FIRST_WAIT = 0.1  # seconds
# Seconds. A probe is one cheap connect, and callers come back after half a second to one: each of them finds that it
# may probe, unless another one has just done so.
LONGEST_WAIT = 0.5


class Breaker:
    """Counts failures in a row; opens after some, and lets one probe through after each wait."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        rnd: Callable[[], float] = random.random,
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
        """Whether the database is taken for away."""
        return self._failures >= _FAILURES_TO_OPEN

    def seconds_to_wait(self) -> float:
        """Zero where the caller may try now; it is then the probe, and the others wait for what it finds."""
        if self._failures < _FAILURES_TO_OPEN:
            return 0.0
        with self._lock:
            wait = self._open_until - self._clock()
            if wait > 0:
                return wait
            self._open_until = self._clock() + self._next_wait()
            return 0.0

    def succeeded(self) -> None:
        """The database answered."""
        self._failures = 0

    def failed(self) -> None:
        """The database did not answer."""
        with self._lock:
            self._failures += 1
            self._open_until = self._clock() + self._next_wait()

    def _next_wait(self) -> float:
        # Half of it is jitter, so that many beats do not come back in the same instant.
        longest = min(self._longest, _FIRST_WAIT * 2.0 ** min(self._failures, 10))
        return longest * (0.5 + 0.5 * self._random())
