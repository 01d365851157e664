"""The walk of one tick: wake, fire, take over what ended, look after the rest, and say when to wake next.

Never raises for a database or broker that is away, and never blocks for more than a few seconds.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from celery_sqlbeat.beat.firing import Fired, Firing
from celery_sqlbeat.beat.importing import Importing
from celery_sqlbeat.beat.publishing import Publisher
from celery_sqlbeat.beat.reaping import Reaping
from celery_sqlbeat.beat.sight import Sight
from celery_sqlbeat.beat.standing import Standing
from celery_sqlbeat.beat.tending import Tending
from celery_sqlbeat.errors import DatabaseAway, StoreError
from celery_sqlbeat.store.protocol import BeatStore, Wake

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0  # for the broker; a tick must not block
_SPACING_SECONDS = 0.01  # between two claims: under load a few jobs share one, and nothing is later than this
# A beat that others outpaced lets them go first for a while: it looks this much after the deadline, and claims what is
# left by then. Without it each of N beats wakes for each slot, and N - 1 of them for nothing.
_LAG_SECONDS = 0.010  # the others' spacing and a claim fit in; so late is a slot whose claimant died
_LAG_LASTS = 1.0  # seconds; slots that are further apart find every beat on time
_LONGEST_SPACING = 1.0  # where what is due cannot be had: others hold the rows, or leases may not be taken yet


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
        importing: Importing,
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
        self._importing = importing
        self._code_keys = code_keys
        self._poll = poll_interval
        self._notice = notice_interval or poll_interval
        self._clock = clock
        self._next_poll = self._next_notice = self._wake_at = self._next_reap = clock()
        self._looked_at = clock()
        self._wake: Wake | None = None
        self._unfinished: Wake | None = None  # its batch was full: the next one is due without another look
        self._in_vain = self._polls = 0
        self._awaited: Wake | None = None  # what this beat sleeps for, unless it lags
        self._lags_until = clock()

    def __call__(self) -> float:
        """Do what is due; returns the seconds until there is something to do again."""
        try:
            return self._walk()
        except Exception as error:
            if isinstance(error, DatabaseAway):
                self._sight.away()
            self._firing.settle()  # no batch stays in flight while this beat waits
            raise

    def _walk(self) -> float:
        self._firing.record()  # what the broker has already comes before everything else
        now = self._clock()
        if now >= self._next_poll:
            self._look_after()
            self._next_poll = self._clock() + self._poll
        elif now < self._wake_at and not self._was_changed(now):
            return self._rest()
        wake, self._unfinished = self._unfinished, None
        reaped = False
        if wake is None or now >= self._looked_at + _LONGEST_SPACING:
            self._firing.finish()
            wake = self._look()
            self._heed_others(wake)
            reaped = self._reap(wake)
        fired = self._fire(wake)
        if fired is not None and fired.more:
            self._wake_at, self._unfinished = now, wake
            return 0.0
        self._firing.finish()
        return self._sleep(wake if fired is None and not reaped else self._look())

    def _reap(self, wake: Wake) -> bool:
        if self._clock() < self._next_reap or not _has_come(wake.ends_at(), wake):
            return False
        self._publisher.connect(_CONNECT_SECONDS)
        if not self._reaping.reap():
            self._next_reap = self._clock() + _LONGEST_SPACING
        return True

    def _fire(self, wake: Wake) -> Fired | None:
        if not self._is_ours(wake):
            return None
        self._publisher.connect(_CONNECT_SECONDS)  # before anything is claimed
        fired = self._firing.fire()
        if fired.something:
            self._in_vain, self._lags_until = 0, self._clock()
        else:
            self._in_vain += 1
            self._lags_until = self._clock() + _LAG_LASTS
        return fired

    def _heed_others(self, wake: Wake) -> None:
        """Another beat has claimed what this one woke for; or somebody changed it, which is no reason to lag."""
        awaited, self._awaited = self._awaited, None
        if awaited is None or awaited.changes != wake.changes or _has_come(wake.starts_at(), wake):
            return
        if _has_come(awaited.starts_at(), wake):
            self._lags_until = self._clock() + _LAG_LASTS

    def _lag(self, seconds: float = 0.0) -> float:
        """How late this beat is on purpose for what is due in so many seconds."""
        return _LAG_SECONDS if self._clock() + seconds < self._lags_until else 0.0

    def _is_ours(self, wake: Wake) -> bool:
        """Whether something is due, and has been for long enough if others are faster."""
        starts_at = wake.starts_at()
        return starts_at is not None and starts_at <= wake.now - timedelta(seconds=self._lag())

    def _look_after(self) -> None:
        sent_at = self._clock()
        self._sight.saw(self._standing.say_alive(), sent_at)
        try:
            self._tending.tend()
            # In turn, so that an idle beat asks the database no more than 15 times a minute.
            self._polls += 1
            if self._polls % 2:
                self._tending.free_strays()
            else:
                self._importing.keep()
        except DatabaseAway:
            raise
        except StoreError as error:
            logger.error("what is done once in a while failed, the jobs go on: %s", error)

    def _was_changed(self, now: float) -> bool:
        if now < self._next_notice:
            return False
        self._next_notice = now + self._notice
        return self._wake is None or self._store.changes() != self._wake.changes

    def _look(self) -> Wake:
        sent_at = self._clock()
        self._wake = wake = self._store.next_wake(self._code_keys)
        self._sight.saw(wake.now, sent_at)
        self._looked_at = sent_at
        self._next_notice = sent_at + self._notice
        return wake

    def _sleep(self, wake: Wake) -> float:
        """Until the earliest deadline of any kind, but no longer than until the next look for changes by hand."""
        now = self._clock()
        waits = [self._next_poll - now]
        if (starts_at := wake.starts_at()) is not None:
            if not self._is_ours(wake):
                self._in_vain = 0
            spacing = min(_LONGEST_SPACING, _SPACING_SECONDS * 2.0 ** min(self._in_vain, 10))
            seconds = self._sight.seconds_until(starts_at)
            waits.append(max(seconds + self._lag(seconds), spacing))
            self._awaited = None if self._lag(seconds) else wake
        if (ends_at := wake.ends_at()) is not None:
            waits.append(max(self._sight.seconds_until(ends_at), self._next_reap - now, _SPACING_SECONDS))
        if wake.planned_at is not None:
            seconds = self._sight.seconds_until(wake.planned_at)
            waits.append(max(seconds + self._lag(seconds), _SPACING_SECONDS))
        self._wake_at = now + min(waits)
        return self._rest()

    def _rest(self) -> float:
        return max(0.0, min(self._wake_at, self._next_notice, self._next_poll) - self._clock())


def _has_come(instant: datetime | None, wake: Wake) -> bool:
    return instant is not None and instant <= wake.now
