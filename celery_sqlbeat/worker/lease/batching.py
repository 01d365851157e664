"""The durations that a worker's leases go by, and the batches of its statements; pure.

A statement follows the one before by a few milliseconds at least, and takes along what has come
meanwhile. So the first row after a pause goes out at once, and a statement for many rows costs
little more than one for a single row.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from celery_sqlbeat.config.settings import Settings, stop_timeout
from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, StoreError

ASK_SECONDS = 15.0  # a message that waits takes capacity from messages that need no database
AHEAD_SECONDS = 1.0  # a lease that its task does not use within this time is better used by another worker
MOST_ASKS = 10_000  # messages that wait; a pool has far less capacity, so more of them are somebody's mistake
START_SPACING = 0.006  # while a message waits for its answer that could begin now
AHEAD_SPACING = 0.020  # while none does; with its statement well within the time until capacity comes
OUTCOME_SPACING = 0.050  # nobody waits for an outcome, and the job's next slot is later than that by far
LATE_ACK_SPACING = 0.006  # while a late acknowledgement waits for an outcome, and with it the next message
BATCH_SIZE = 500  # rows of a start or of an outcome: SQL Server escalates locks from 5,000 on, and one run has several


class Timing(NamedTuple):
    """The durations of a lease manager, in seconds."""

    heartbeat_interval: float = 30.0
    heartbeat_failures: int = 3
    lease_seconds: float = 120.0
    """The usual lease: after this an unanswered start is left to reclaim."""
    ask_seconds: float = ASK_SECONDS
    ahead_seconds: float = AHEAD_SECONDS
    most_asks: int = MOST_ASKS
    batch_size: int = BATCH_SIZE
    start_spacing: float = START_SPACING
    ahead_spacing: float = AHEAD_SPACING
    outcome_spacing: float = OUTCOME_SPACING
    late_ack_spacing: float = LATE_ACK_SPACING

    @classmethod
    def of(cls, settings: Settings) -> "Timing":
        """Return the timing that these settings ask for."""
        return cls(settings.heartbeat_interval, settings.heartbeat_failures, settings.lock_timeout)

    def interval(self, lease_seconds: float) -> float:
        """Return how often a lease of this length is extended: a short one in proportion."""
        return min(self.heartbeat_interval, lease_seconds / (self.heartbeat_failures + 1))

    def stop_after(self, lease_seconds: float) -> float:
        """Return for how long after the last heartbeat that succeeded the task goes on.

        A heartbeat has failed when it is not done by the time of the next one; after so many in a
        row the run is abandoned. In any case the task is stopped early enough to be gone when the
        lease ends.
        """
        abandoned = self.interval(lease_seconds) * (self.heartbeat_failures + 1)
        return min(abandoned, lease_seconds - stop_timeout(lease_seconds))


class QueuedRow:
    """One row that waits for a statement."""

    __slots__ = ("failures", "most", "not_before", "run_id")

    def __init__(self, run_id: str, most: int) -> None:
        self.run_id = run_id
        self.most = most
        """How many rows may share a statement with it."""
        self.not_before = 0.0
        self.failures = 0


R = TypeVar("R", bound=QueuedRow)

_PIECES = 16  # so two steps find one bad row among 256; each step may cost the wait for a lock
_LONGEST_BUSY = 30.0  # seconds; each try for a row that stays locked makes the others wait for a statement's time-out


def next_batches(waiting: Iterable[R], now: float) -> list[list[R]]:
    """Return the rows of the next statements, the largest batch first, with each run once."""
    sizes: dict[int, dict[str, R]] = {}
    for row in waiting:
        if row.not_before <= now:
            chosen = sizes.setdefault(row.most, {})
            if len(chosen) < row.most:
                chosen.setdefault(row.run_id, row)
    return [list(sizes[size].values()) for size in sorted(sizes, reverse=True)]


def split(batch: list[R], now: float) -> R | None:
    """Divide a batch that failed, since one row must not hold up the rest.

    A row that failed alone is returned, and waits for a while before its next try.
    """
    if len(batch) > 1:
        for row in batch:
            row.most = max(1, len(batch) // _PIECES)
        return None
    (row,) = batch
    row.most = 1
    row.not_before = now + min(_LONGEST_BUSY, 2.0**row.failures)
    row.failures += 1
    return row


_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 1.0  # seconds; half of it is jitter. A try is one cheap connect


class Batcher:
    """When the statements of one kind go out.

    Any thread may call `flush_soon` and `close`; the rest belongs to one thread.
    """

    def __init__(self, clock: Callable[[], float], rnd: Callable[[], float], spacing: float) -> None:
        """`spacing`: the seconds from one statement to the next, unless somebody waits for it."""
        self._clock = clock
        self._random = rnd
        self._usual_spacing = self._spacing = spacing
        self._sent_at = float("-inf")
        self._paused_until = 0.0
        self._failures = 0
        self._is_closing = False
        self.opens_at = 0.0
        """When the next statement may go out."""
        self.is_unavailable = False
        """Whether the database was away when it was last asked."""

    def flush_soon(self, spacing: float) -> bool:
        """Send the next statement after this spacing; return whether that is sooner than before."""
        if spacing >= self._spacing:
            return False
        self._spacing = spacing
        self._open()
        return True

    def close(self) -> None:
        """Send everything at once from here on."""
        self._is_closing = True
        self._open()

    def sends(self, now: float) -> bool:
        """Return whether the next statement goes out now; the spacing begins with it."""
        if now < self.opens_at:
            return False
        self._sent_at, self._spacing = now, self._usual_spacing
        self._open()
        return True

    def succeeded(self) -> None:
        """Note that the database answered."""
        self._failures, self.is_unavailable = 0, False

    def failed(self, batch: list[R], error: StoreError) -> R | None:
        """Note that a statement failed; return a row that the database refuses by itself."""
        now = self._clock()
        if isinstance(error, DatabaseUnavailable):  # no row is to blame
            longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self._failures)
            self._paused_until = now + longest * (0.5 + 0.5 * self._random())
            self._failures, self.is_unavailable = min(self._failures + 1, 10), True
            self._open()
            return None
        alone = split(batch, now)
        return None if isinstance(error, DatabaseBusy) else alone

    def _open(self) -> None:
        self.opens_at = max(self._paused_until, 0.0 if self._is_closing else self._sent_at + self._spacing)
