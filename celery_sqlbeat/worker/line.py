"""When what waits for a statement goes out: gathered while that helps, not at all while the database is away.

Starts and outcomes each have a line of their own. Pure but for the clock that it is given.
"""

from collections.abc import Callable

from celery_sqlbeat.errors import DatabaseAway, DatabaseBusy, StoreError
from celery_sqlbeat.worker.gathering import Gathering
from celery_sqlbeat.worker.waiting import Pause, W, Waiting, split


class Line:
    """The line for one kind of statement. `hurry` and `close` come from any thread, the rest from one."""

    def __init__(self, clock: Callable[[], float], rnd: Callable[[], float], longest: float, enough: int) -> None:
        """`longest`: how long a row waits for others, in seconds, where nobody waits for it; `enough` rows never do."""
        self._clock = clock
        self._usually = self._longest = longest
        self._gathering = Gathering(enough)
        self._pause = Pause(rnd)
        self._is_closing = False

    def hurry(self, longest: float) -> bool:
        """Somebody waits for what goes out next, so no row of it waits for longer. Whether that is news."""
        if longest >= self._longest:
            return False
        self._longest = longest
        return True

    def close(self) -> None:
        """Wait for no more."""
        self._is_closing = True

    def came(self, count: int, now: float) -> None:
        """So many rows have come since the last time."""
        self._gathering.came(count, now)

    @property
    def is_away(self) -> bool:
        """Whether the database was away when it was last asked."""
        return self._pause.is_failing

    def is_open(self, now: float) -> bool:
        """Whether the database may be asked."""
        return now >= self._pause.until

    def gathers(self, now: float) -> float:
        """How long to wait for more; 0 where the batch goes out now."""
        left = 0.0 if self._is_closing else self._gathering.seconds_left(now, self._longest)
        if not left:
            self._gathering.sent()
            self._longest = self._usually
        return left

    def goes_at(self, one: Waiting) -> float:
        """When this row may go out, by what has failed so far."""
        return max(self._pause.until, one.not_before)

    def succeeded(self) -> None:
        """The database answered."""
        self._pause.succeeded()

    def failed(self, batch: list[W], error: StoreError) -> W | None:
        """A statement failed: no row is to blame while the database is away. Returns one that it refuses by itself."""
        if isinstance(error, DatabaseAway):
            self._pause.failed(self._clock())
            return None
        alone = split(batch, self._clock())
        return None if isinstance(error, DatabaseBusy) else alone
