"""Asks workers to look at once whether they still hold runs that were taken from them.

A help only: whoever does not hear it learns so by its next heartbeat. A thread of its own, since a broker may be slow.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any

from celery_sqlbeat.roster import RECALL

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0


class Recall:
    """Sends Celery's remote control; nobody waits for an answer."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._is_sending = False

    def __call__(self, run_ids: Sequence[str]) -> None:
        """Ask all workers; never blocks, never raises."""
        with self._lock:
            self._waiting.update(run_ids)
            if self._is_sending:
                return
            self._is_sending = True
        threading.Thread(target=self._send_all, name="sqlbeat-recall", daemon=True).start()

    def _send_all(self) -> None:
        while True:
            with self._lock:
                run_ids, self._waiting = sorted(self._waiting), set()
                if not run_ids:
                    self._is_sending = False
                    return
            try:
                self._send(run_ids)
            except Exception as error:  # whatever the transport raises
                logger.debug("the workers were not asked to look: %s", error)

    def _send(self, run_ids: Sequence[str]) -> None:
        # Not one of the app's pool, which beat's own thread uses.
        with self._app.connection_for_write(connect_timeout=_CONNECT_SECONDS) as connection:
            self._app.control.broadcast(RECALL, arguments={"runs": run_ids}, connection=connection)
