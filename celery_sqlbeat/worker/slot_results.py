"""Lets a worker end the results of a slot's earlier attempts as soon as it has ended the slot; a beat does so, too.

In a native thread that lives while there is something to do: Celery may wait long for a result backend that is away.
"""

import logging
from typing import Any

from celery_sqlbeat.results import end_results
from celery_sqlbeat.store import Store
from celery_sqlbeat.worker import native

logger = logging.getLogger(__name__)


class SlotResults:
    """Of one worker process; may be told from any thread."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = native.lock()
        self._is_running = self._is_asked = False

    def slot_ended(self, store: Store) -> None:
        """A slot has ended with another attempt than its first."""
        if native.is_patched():
            return  # clients of result backends are made for green threads then: a beat does it
        with self._lock:
            self._is_asked = True
            must_start, self._is_running = not self._is_running, True
        if must_start:
            native.start(lambda: self._run(store))

    def _run(self, store: Store) -> None:
        while True:
            with self._lock:
                if not self._is_asked:
                    self._is_running = False
                    return
                self._is_asked = False
            try:
                while end_results(self._app, store.results()):
                    pass
            except Exception as error:  # of the database, or whatever a result backend raises
                logger.info("the results of earlier attempts are ended by a beat: %s", error)
