"""One look at the database: when there is something to do, and how long it is until then."""

from collections.abc import Callable
from datetime import datetime

from celery_sqlbeat.store.wake import Wake

_HAIR_SECONDS = 0.0001  # clocks round: whoever claims before the server's clock is there would find nothing


class Look:
    """What the database said, and the instants of this process's clock between which it said so."""

    def __init__(self, wake: Wake, sent_at: float, clock: Callable[[], float]) -> None:
        self.wake = wake
        self.sent_at = sent_at
        self._answered_at = clock()
        self._clock = clock

    def seconds_until(self, instant: datetime) -> float:
        """How long until it has come for certain: by the server's clock, counted from when its answer was here."""
        return (instant - self.wake.now).total_seconds() + _HAIR_SECONDS - (self._clock() - self._answered_at)

    def has_come(self, instant: datetime | None, lag: float = 0.0) -> bool:
        """Whether that was so long ago when the database was asked, or has been for certain since."""
        if instant is None:
            return False
        return (self.wake.now - instant).total_seconds() >= lag or self.seconds_until(instant) + lag <= 0.0
