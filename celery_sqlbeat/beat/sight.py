"""What a beat knows of the server's clock and of outages: whether it may take leases and claims from their holders.

Pure but for the monotonic clock that it is given. After an outage, or where the server's clock was set, living workers
extend their leases first, and living beats publish and record what they have claimed.
"""

import time
from collections.abc import Callable
from datetime import datetime

_JUMP_SECONDS = 1.0  # two clocks that drift by more than this between two looks: one of them was set or stood still


class Sight:
    """Holds what the server's clock says against this process's monotonic one."""

    def __init__(
        self,
        patience_seconds: float,
        claim_seconds: float,
        longest_absence: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`claim_seconds`: so long a beat may publish what it has claimed, by its own monotonic clock."""
        self._patience = patience_seconds
        self._claim_seconds = claim_seconds
        self._longest_absence = longest_absence
        self._clock = clock
        self._seen: tuple[datetime, float] | None = None
        self._is_away = False
        self._lost_at = clock()  # a new beat does not know what was before it

    def saw(self, server_now: datetime, sent_at: float) -> None:
        """The server said what time it is, to a statement sent at that monotonic instant."""
        if self._is_away or (self._seen is not None and self._was_absent(*self._seen, server_now, sent_at)):
            self.lost()
        self._seen, self._is_away = (server_now, sent_at), False

    def _was_absent(self, seen_there: datetime, seen_here: float, server_now: datetime, sent_at: float) -> bool:
        passed_there = (server_now - seen_there).total_seconds()
        passed_here = sent_at - seen_here
        return abs(passed_there - passed_here) > _JUMP_SECONDS or passed_here > self._longest_absence

    def away(self) -> None:
        """The database did not answer, so it may not have answered the workers either."""
        self._is_away = True

    def lost(self) -> None:
        """The database is out of sight, or was: whoever lives gets the chance to extend its lease."""
        self._lost_at = self._clock()

    def may_reclaim(self) -> bool:
        """Whether living workers have had the time to extend their leases."""
        return self._clock() >= self._lost_at + self._patience

    def may_take_claims(self) -> bool:
        """Whether living beats have had the time to publish, and to record, what no worker has begun."""
        return self._clock() >= self._lost_at + self._claim_seconds
