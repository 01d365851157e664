"""The walk of one tick: wake, fire, take over what ended, look after the rest, and say when to wake next.

Never raises for a database or broker that is away, and never blocks for more than a few seconds.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from celery_sqlbeat.beat.firing import Firing
from celery_sqlbeat.beat.publishing import Publisher
from celery_sqlbeat.beat.reaping import Reaping
from celery_sqlbeat.beat.sight import Sight
from celery_sqlbeat.beat.standing import Standing
from celery_sqlbeat.beat.tending import Tending
from celery_sqlbeat.store.protocol import BeatStore, Wake

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0  # for the broker; a tick must not block
_SPACING_SECONDS = 0.01  # between two claims: under load a few jobs share one, and nothing is later than this


class Tick:
    """What a beat does, over and over."""

    def __init__(
        self,
        store: BeatStore,
        publisher: Publisher,
        standing: Standing,
        sight: Sight,
        firing: Firing,
        reaping: Reaping,
        tending: Tending,
        code_keys: Sequence[str],
        poll_interval: float,
        notice_interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._standing = standing
        self._sight = sight
        self._firing = firing
        self._reaping = reaping
        self._tending = tending
        self._code_keys = code_keys
        self._poll = poll_interval
        self._notice = notice_interval or poll_interval
        self._clock = clock
        self._next_poll = clock()
        self._wake: Wake | None = None
        self._wake_at = clock()

    def __call__(self) -> float:
        """Do what is due; returns the seconds until there is something to do again."""
        now = self._clock()
        if now >= self._next_poll:
            self._look_after()
            self._next_poll = self._clock() + self._poll
            self._wake = None
        elif now < self._wake_at and not self._was_changed():
            return min(self._wake_at - self._clock(), self._notice)
        wake = self._look()
        if _has_come(wake.lease_ends_at, wake) or _has_come(wake.held_ends_at, wake):
            self._publisher.connect(_CONNECT_SECONDS)
            self._reaping.reap()
        more = False
        if _has_come(wake.due_at, wake) or _has_come(wake.outbox_at, wake):
            self._publisher.connect(_CONNECT_SECONDS)  # before anything is claimed
            more = self._firing.fire()
        if more:
            return 0.0
        return self._sleep(self._look())

    def _look_after(self) -> None:
        sent_at = self._clock()
        self._sight.saw(self._standing.say_alive(), sent_at)
        self._firing.record()
        self._tending.tend()

    def _was_changed(self) -> bool:
        return self._wake is None or self._store.changes() != self._wake.changes

    def _look(self) -> Wake:
        sent_at = self._clock()
        self._wake = wake = self._store.next_wake(self._code_keys)
        self._sight.saw(wake.now, sent_at)
        return wake

    def _sleep(self, wake: Wake) -> float:
        """Until the earliest deadline of any kind, but no longer than until the next look for changes by hand."""
        now = self._clock()
        until = self._next_poll - now
        earliest = wake.earliest()
        if earliest is not None:
            until = min(until, max(self._sight.seconds_until(earliest), _SPACING_SECONDS))
        if not self._sight.may_reclaim():
            until = min(until, self._sight.reclaim_in())
        self._wake_at = now + until
        return max(0.0, min(until, self._notice))


def _has_come(instant: datetime | None, wake: Wake) -> bool:
    return instant is not None and instant <= wake.now
