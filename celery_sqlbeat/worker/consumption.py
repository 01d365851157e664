"""What this worker consumes, and what it has left so lately that beats go on leasing it: somebody may come back."""

import time
from collections.abc import Callable, Iterable

from celery_sqlbeat.queues import tell
from celery_sqlbeat.worker import native


class Consumption:
    """Compares each look at the consumed queues with the one before. Its method may be called from any thread."""

    def __init__(self, memory_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`memory_seconds`: after so long no beat asks for a queue that was left, and it need not be told."""
        self._memory = memory_seconds
        self._clock = clock
        self._consumed: frozenset[str] = frozenset()
        self._left_at: dict[str, float] = {}
        self._lock = native.lock()

    def tell(self, names: Iterable[str]) -> str:
        """The text for this worker's row, now that it consumes these."""
        consumed, now = frozenset(names), self._clock()
        with self._lock:
            left_at = {**self._left_at, **dict.fromkeys(self._consumed - consumed, now)}
            self._consumed = consumed
            self._left_at = {
                name: at for name, at in left_at.items() if name not in consumed and now - at < self._memory
            }
            return tell(consumed, {name: now - at for name, at in self._left_at.items()})
