"""Deletes history that is older than it is kept, in small batches, by a thread and a connection of its own."""

import time
from collections.abc import Callable

from celery_sqlbeat.store.protocol import AdminStore

_BATCH = 500  # rows
_DAY = 86400.0
_PAUSE_SECONDS = 3600.0  # history is kept for days; an idle beat asks the database little


class Cleaning:
    """The clean-up of one namespace, which any number of beats share."""

    def __init__(self, admin: AdminStore, history_days: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._keep_seconds = history_days * _DAY
        self._clock = clock

    def clean(self) -> float:
        """Delete one batch; returns the seconds until the next."""
        if self._admin.purge_history(self._keep_seconds, _BATCH) == _BATCH:
            return 0.0
        self._admin.purge_nodes(self._keep_seconds)
        return _PAUSE_SECONDS
