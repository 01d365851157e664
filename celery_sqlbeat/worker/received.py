"""Our messages that this worker has received and not begun: a copy of one is dropped, and their deadlines move on.

They wait for a token of their rate limit, for their eta, or for a slot of the pool. Beats publish none of them again.
"""

from collections.abc import Callable, Iterable
from typing import Any

from celery_sqlbeat.model import Unbegun
from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.header import Header

Delivery = tuple[str, str, int, int]

FIRST_SECONDS = 1.0  # most messages begin within this time, and nobody needs to hear of those
MOST_AT_ONCE = 500  # rows of a statement
_MOST_BEGUN = 2000  # that are remembered: a copy of one would take a token of its rate limit before it is found out
_MOST_MISSES = 3  # without a deadline that could move on: it has none, and is asked for no more


class _Held:
    """One message."""

    __slots__ = ("interval", "message", "misses", "next_at")

    def __init__(self, message: Any, interval: float, next_at: float) -> None:
        self.message = message
        self.interval = interval
        self.next_at = next_at
        self.misses = 0


class Received:
    """The messages of one worker, from its present connection. Its methods may be called from any thread."""

    def __init__(self, interval: Callable[[float | None], float], clock: Callable[[], float]) -> None:
        """`interval`: how often the deadline of a run with this lease is to be moved on."""
        self._interval = interval
        self._clock = clock
        self._lock = native.lock()
        self._held: dict[Delivery, _Held] = {}
        self._begun: dict[Delivery, None] = {}
        self._looks_at = float("inf")
        self.look_soon: Callable[[], None] = lambda: None
        """Called where a message has come whose turn is before the next look."""

    def came(self, header: Header, message: Any) -> bool:
        """A message has come; False where it is a copy of one that waits here, or that has begun here."""
        interval = self._interval(header.lease_seconds)
        at = self._clock() + min(FIRST_SECONDS, interval)
        key = header.delivery
        with self._lock:
            held = self._held.get(key)
            if key in self._begun or (held is not None and not held.message.acknowledged):
                return False
            self._held[key] = _Held(message, interval, at)
            is_sooner, self._looks_at = at < self._looks_at, min(at, self._looks_at)
        if is_sooner:
            self.look_soon()
        return True

    def begun(self, header: Header) -> None:
        """Its run has begun: from here on the lease is kept, and no copy can begin."""
        with self._lock:
            self._held.pop(header.delivery, None)
            self._begun[header.delivery] = None
            if len(self._begun) > _MOST_BEGUN:
                del self._begun[next(iter(self._begun))]

    def leave(self) -> None:
        """The connection has ended: Celery forgets what waits here, and the broker sends it once more."""
        with self._lock:
            self._held.clear()

    def due(self) -> list[Unbegun]:
        """Those whose deadlines are to be moved on now."""
        now = self._clock()
        with self._lock:
            for key in [key for key, held in self._held.items() if held.message.acknowledged]:
                del self._held[key]  # dropped, revoked, expired or given back
            due = [key for key, held in self._held.items() if held.next_at <= now][:MOST_AT_ONCE]
        return [Unbegun(*key) for key in due]

    def moved(self, asked: Iterable[Unbegun], moved: Iterable[str]) -> None:
        """The answer of the database: which of them had a deadline."""
        found = set(moved)
        with self._lock:
            for one in asked:
                held = self._held.get((one.run_id, one.claim_id, one.fence, one.celery_retries))
                if held is not None:
                    held.misses = 0 if one.run_id in found else held.misses + 1
                    held.next_at = self._clock() + held.interval if held.misses < _MOST_MISSES else float("inf")

    def seconds_left(self, least: float = 0.0) -> float:
        """Until the next of them is due, and not less than this."""
        with self._lock:
            at = min((held.next_at for held in self._held.values()), default=float("inf"))
            self._looks_at = max(at, self._clock() + least)
            return max(0.0, self._looks_at - self._clock())
