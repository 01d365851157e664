"""The walk of one tick: wake, fire, take over what ended, and say when to wake next.

Never raises for a database or broker that is away, and never blocks for more than a few seconds.
"""

import contextlib
import logging
import random
import time
from collections.abc import Callable

from celery_sqlbeat.beat.code_calls import CodeCalls
from celery_sqlbeat.beat.firing import Fired, Firing
from celery_sqlbeat.beat.look import Look
from celery_sqlbeat.beat.publishing import Publisher
from celery_sqlbeat.beat.reaping import Reaping
from celery_sqlbeat.beat.sight import Sight
from celery_sqlbeat.beat.trouble import Trouble
from celery_sqlbeat.beat.turns import Turns
from celery_sqlbeat.errors import BrokerAway, DatabaseAway, DatabaseUncertain, SqlbeatError
from celery_sqlbeat.store.protocol import BeatStore

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0  # for the broker; a tick must not block
_SOON_SECONDS = 1.0  # about as long as an answer of the broker is trusted
_SPACING_SECONDS = 0.013  # from one walk to the next: under load a few jobs share a claim, and none waits for longer
_SPREAD_SECONDS = 0.0005  # of several beats that sleep until the same instant not always the same one is the first
# The end of a run may decide what is due next, and nobody foresees it: it is noticed within a tenth of the time in
# which nothing has happened.
_SOONEST_NOTICE, _LATEST_NOTICE, _NOTICE_SHARE = 0.05, 1.0, 0.1  # seconds, seconds
_LONGEST_REAP_PAUSE = 5.0  # seconds, after an error
_LONGEST_SPACING = 1.0  # where what is due cannot be had: others hold the rows, or leases may not be taken yet


class Tick:
    """What a beat does, over and over."""

    def __init__(
        self,
        store: BeatStore,
        publisher: Publisher,
        sight: Sight,
        firing: Firing,
        reaping: Reaping,
        calls: CodeCalls,
        poll_interval: float,
        notice_interval: float,
        clock: Callable[[], float] = time.monotonic,
        rnd: Callable[[], float] = random.random,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is told when somebody has changed something through this package."""
        self._store = store
        self._publisher = publisher
        self._sight = sight
        self._firing = firing
        self._reaping = reaping
        self._calls = calls
        self._poll = poll_interval
        self._notice = notice_interval or poll_interval
        self._clock = clock
        self._random = rnd
        self._next_poll = self._next_notice = self._wake_at = self._next_reap = clock()
        self._walked_at = self._stirred_at = clock()
        self._turns = Turns(clock)
        self._last: Look | None = None
        self._unfinished: Look | None = None  # its batch was full: the next one is due without another look
        self._awaited: Look | None = None  # what this beat sleeps for, unless it lags
        self._in_vain = 0
        self._is_stirred = False
        self._failed_reaps = 0
        self._trouble = Trouble(clock)
        self._on_change = on_change

    def __call__(self) -> float:
        """Do what is due; returns the seconds until there is something to do again."""
        try:
            return self._walk()
        except Exception as error:
            # An error that nobody knows, as in a fail-over: workers may have heard the same, and no lease is extended.
            if isinstance(error, (DatabaseAway, DatabaseUncertain)):
                self._sight.away()
            self._firing.settle()  # no batch stays in flight while this beat waits
            raise

    def stir(self) -> None:
        """Look at what is due with the next tick: another thread of this beat has changed it."""
        self._is_stirred = True

    def _walk(self) -> float:
        self._firing.record()  # what the broker has already comes before everything else
        self._is_stirred = self._calls.questions.has_news() or self._is_stirred
        now = self._clock()
        if now >= self._next_poll:
            self._next_poll = now + self._poll
        elif now < self._wake_at and not self._is_stirred and not self._was_changed(now):
            return self._rest()
        self._walked_at = now
        look = self._known(now)
        is_rest = look is not None and look is self._unfinished
        self._unfinished = None
        reaped = False
        if look is None:
            self._firing.finish()
            look = self._look()
            self._heed_others(look)
            reaped = self._reap(look)
        fired = self._fire(look, is_rest)
        if fired is not None and fired.more:
            self._wake_at, self._unfinished = now, look
            return 0.0
        self._firing.finish()
        return self._sleep(look if fired is None and not reaped else self._look())

    def _known(self, now: float) -> Look | None:
        """What can be claimed without another look: the rest of a full batch, or what this beat slept for.

        If another beat was faster, the claim finds that out as well.
        """
        look = self._unfinished or self._awaited
        if look is None or now >= look.sent_at + _LONGEST_SPACING:
            return None
        if look is self._awaited:
            if not look.has_come(look.wake.starts_at()) or look.has_come(look.wake.ends_at()):
                return None
            self._awaited = None
        return look

    def _reap(self, look: Look) -> bool:
        if self._clock() < self._next_reap or not look.has_come(look.wake.ends_at()):
            return False
        try:
            taken = self._reaping.reap()
        except DatabaseAway:
            raise
        except Exception as error:  # what is due does not wait for what has ended
            self._reap_failed(error)
            return True
        self._failed_reaps = 0
        self._trouble.is_over()
        if not taken:
            self._next_reap = self._clock() + _LONGEST_SPACING
        return True

    def _reap_failed(self, error: Exception) -> None:
        self._failed_reaps += 1
        pause = min(_LONGEST_REAP_PAUSE, _LONGEST_SPACING * 2.0 ** min(self._failed_reaps - 1, 10))
        self._next_reap = self._clock() + pause * (0.5 + 0.5 * self._random())
        if self._trouble.is_to_be_told(str(error)):
            unexpected = None if isinstance(error, SqlbeatError) else error
            logger.error("taking over what ended failed, the jobs go on: %s", error, exc_info=unexpected)

    def _fire(self, look: Look, is_rest: bool) -> Fired | None:
        """`is_rest`: of a batch that was full, so that there may be nothing left."""
        if not self._is_ours(look):
            return None
        self._publisher.connect(_CONNECT_SECONDS)  # before anything is claimed
        fired = self._firing.fire()
        if fired.something:
            self._in_vain = 0
            self._turns.won()
        elif not is_rest:
            self._in_vain += 1
            self._turns.lost()
        return fired

    def _heed_others(self, look: Look) -> None:
        """Another beat has claimed what this one woke for; or somebody changed it, which is no reason to lag."""
        awaited, self._awaited = self._awaited, None
        if awaited is None or awaited.wake.changes != look.wake.changes or look.has_come(look.wake.starts_at()):
            return
        if look.has_come(awaited.wake.starts_at()):
            self._turns.lost()

    def _is_ours(self, look: Look) -> bool:
        """Whether something is due, and has been for long enough if others are faster."""
        return look.has_come(look.wake.starts_at(), self._turns.lag())

    def _was_changed(self, now: float) -> bool:
        if now < self._next_notice:
            return False
        self._notice_again(now)
        return self._last is None or self._store.changes() != self._last.wake.changes

    def _notice_again(self, now: float) -> None:
        seconds = self._notice
        if self._last is not None and self._last.wake.ends_at() is not None:
            quiet = now - self._stirred_at
            seconds = min(seconds, _LATEST_NOTICE, max(_SOONEST_NOTICE, quiet * _NOTICE_SHARE))
        self._next_notice = now + seconds

    def _look(self) -> Look:
        sent_at = self._clock()
        self._is_stirred = False
        last, look = self._last, Look(self._store.next_wake(self._calls.claimable), sent_at, self._clock)
        if last is None or look.wake.stirs(last.wake):
            self._stirred_at = sent_at
        if last is not None and look.wake.changes != last.wake.changes:
            self._on_change()
        self._last = look
        self._sight.saw(look.wake.now, sent_at)
        self._notice_again(sent_at)
        return look

    def _sleep(self, look: Look) -> float:
        """Until the earliest deadline of any kind, but no longer than until the next look for changes by hand."""
        wake, now = look.wake, self._clock()
        waits = [self._next_poll - now]
        if (starts_at := wake.starts_at()) is not None:
            if not self._is_ours(look):
                self._in_vain = 0
            seconds = look.seconds_until(starts_at)
            lag = self._turns.lag(seconds)
            spread = _SPREAD_SECONDS * self._random()
            waits.append(max(seconds + lag + spread, self._spacing(now, self._in_vain)))
            self._awaited = None if lag else look
            if not lag and seconds < _SOON_SECONDS:
                self._be_ready()
            if self._in_vain:
                waits += self._later(look, now)
        if (ends_at := wake.ends_at()) is not None:
            waits.append(max(look.seconds_until(ends_at), self._next_reap - now, self._spacing(now)))
        if wake.planned_at is not None:
            seconds = look.seconds_until(wake.planned_at)
            waits.append(max(seconds + self._turns.lag(seconds), self._spacing(now)))
        self._wake_at = now + min(waits)
        return self._rest()

    def _be_ready(self) -> None:
        """Make sure of the broker while there is time: whoever does so when a slot is due loses it to other beats."""
        with contextlib.suppress(BrokerAway):
            self._publisher.connect(_CONNECT_SECONDS)

    def _later(self, look: Look, now: float) -> list[float]:
        """Until what comes after the rows that are due and cannot be had: nobody waits for those."""
        later_at = self._store.starts_after(look.wake.now, self._calls.claimable)
        return [] if later_at is None else [max(look.seconds_until(later_at), self._spacing(now))]

    def _spacing(self, now: float, in_vain: int = 0) -> float:
        """How long until the next walk may begin."""
        return self._walked_at + min(_LONGEST_SPACING, _SPACING_SECONDS * 2.0 ** min(in_vain, 10)) - now

    def _rest(self) -> float:
        seconds = min(self._wake_at, self._next_notice, self._next_poll) - self._clock()
        others = (self._firing.seconds_left, self._calls.questions.seconds_left)
        return max(0.0, min([seconds, *(one for one in others if one is not None)]))
