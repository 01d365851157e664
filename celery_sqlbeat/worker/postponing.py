"""Moves on the deadlines of what waits in this worker for its start, so that no beat takes it for lost."""

import logging

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.protocol import WorkerStore
from celery_sqlbeat.worker.received import MOST_AT_ONCE, Received

logger = logging.getLogger(__name__)

_AFTER_ERROR = 1.0  # seconds; a heartbeat that failed tells of the outage


class Postponing:
    """Used by the thread that extends leases."""

    def __init__(self, store: WorkerStore, received: Received) -> None:
        self._store = store
        self._received = received

    def step(self) -> float:
        """Move on what is due; returns the seconds until the next time."""
        due = self._received.due()
        if due:
            try:
                self._received.moved(due, self._store.postpone(due))
            except StoreError as error:
                logger.warning("the deadlines of %d messages that wait here were not moved on: %s", len(due), error)
                return self._received.seconds_left(_AFTER_ERROR)
        return 0.0 if len(due) == MOST_AT_ONCE else self._received.seconds_left()
