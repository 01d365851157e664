"""Which queues have workers without the extension: those would run a second copy of a message without asking anybody.

Answers of workers take seconds, so they are asked in a thread, and only when a message was not taken in time.
"""

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

_KNOWN_SECONDS = 30.0  # how long an answer is taken for true


class Bystanders:
    """What is known of the workers without the extension."""

    def __init__(self, ask: Callable[[], frozenset[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._known: tuple[float, frozenset[str]] | None = None
        self._asking: threading.Thread | None = None

    def consume(self, queue: str | None) -> bool | None:
        """Whether one of them consumes this queue; None while the workers are being asked."""
        known = self._known
        if known is not None and self._clock() - known[0] < _KNOWN_SECONDS:
            return queue in known[1]
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._find_out, name="sqlbeat-bystanders", daemon=True)
            self._asking.start()
        return None

    def _find_out(self) -> None:
        try:
            found = self._ask()
        except Exception as error:  # not every broker can ask, and then nobody else is known to be there
            logger.info("workers without celery-sqlbeat cannot be asked for: %s", error)
            found = frozenset()
        self._known = (self._clock(), found)
