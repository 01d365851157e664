"""How many of the messages that wait for a slot will have one in a moment: so many may ask for their leases already.

Where tasks are shorter than the question to the database, the pool would else wait for answers. Pure but for its clock.
"""

import time
from collections.abc import Callable

SOON_SECONDS = 0.035  # a few statements long, and far below the second after which an unused lease is given back
_UNKNOWN = 2 * SOON_SECONDS  # nobody asks ahead on a guess
_MOST = 64  # leases ahead; what a worker that dies then holds waits for the end of its lease
_LATEST = 0.1  # how much the last gap between two slots counts


class Foresight:
    """Watches how quickly slots come while messages wait for them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_at: float | None = None
        self._others_wait = False
        self._gap = _UNKNOWN  # seconds between two slots, smoothed

    def slot_came(self, others_wait: bool) -> None:
        """A message got its slot; whether others wait for theirs."""
        now = self._clock()
        if self._last_at is not None:
            gap = min(now - self._last_at, 1.0)
            if self._others_wait:  # else it says nothing about the tasks
                self._gap += _LATEST * (gap - self._gap)
            elif gap == 1.0:
                self._gap = max(self._gap, _UNKNOWN)  # after a rest nobody knows what comes
        self._last_at, self._others_wait = now, others_wait

    def soon(self) -> int:
        """So many messages get their slots within a moment, if tasks go on as they did."""
        if self._last_at is None:
            return 0
        # Where the next slot is late, the tasks have become longer.
        gap = max(self._gap, self._clock() - self._last_at)
        return min(_MOST, int(SOON_SECONDS / gap)) if gap > 0 else _MOST
