"""Deletes history that is older than it is kept: a beat's own thread and connection, shared by any number of beats.

Keeps pace with the highest rate of fires, and rests where nothing is old enough.
"""

import time
from collections.abc import Callable
from datetime import datetime

from celery_sqlbeat.store.protocol import AdminStore

_DAY = 86400.0
_FIRST_PAUSE, _SHORTEST_PAUSE, _LONGEST_PAUSE = 60.0, 1.0, 3600.0  # seconds between two passes
_BATCHES_A_PASS = 5  # where rows grow old all the time, a pass waits for about so many batches of them
_FROM_THE_START = 600.0  # seconds: a run may have ended long after its slot, and lie before the place that was reached


class Cleaning:
    """The clean-up of one namespace."""

    def __init__(self, admin: AdminStore, history_days: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._keep_seconds = history_days * _DAY
        self._clock = clock
        self._after: datetime | None = None
        """The rows of slots before this are gone, but for those that ended late."""
        self._start_again_at = clock()
        self._pause = _FIRST_PAUSE / 2
        self._deleted = 0
        self._last_end: float | None = None

    def clean(self) -> float:
        """Delete one batch; returns the seconds until the next."""
        began = self._clock()
        if began >= self._start_again_at:
            self._after, self._start_again_at = None, began + _FROM_THE_START
        how = self._admin.purging
        found = self._admin.purge_history(self._keep_seconds, how.rows, self._after)
        self._deleted += found.rows
        self._after = found.last or self._after
        took = self._clock() - began
        if found.rows + found.refused >= how.rows:
            return max(how.rest * took, found.rows / how.most_a_second - took, 0.0)
        self._admin.purge_nodes(self._keep_seconds)
        return self._end_of_pass(_BATCHES_A_PASS * how.rows)

    def _end_of_pass(self, enough: int) -> float:
        """How long until the next pass: until about enough rows are old, or ever longer where none is."""
        now, deleted = self._clock(), self._deleted
        if not deleted or self._last_end is None:
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
        else:
            self._pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, enough * (now - self._last_end) / deleted))
        self._deleted, self._last_end = 0, now
        return self._pause
