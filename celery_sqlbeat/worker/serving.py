"""Who does the rounds that write outcomes and ask for starts: Celery's event loop where it can, else a thread.

Beside a busy event loop a thread must wait for Python's lock again and again, and makes the loop wait for it. But the
loop must not wait for a database, and may stand still itself: then the thread goes on with the round under way.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from celery_sqlbeat.store.steps import Steps, run
from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.alarm import Alarm
from celery_sqlbeat.worker.loops import Ear, PipedLoop

logger = logging.getLogger(__name__)

_LATE = 1.0  # seconds after which the loop is taken for stuck
_NUDGE = 0.025  # seconds after which it is woken: where ten of its timers are due at once, it sleeps past the others
_AFTER_ERROR = 1.0  # seconds; an error that nobody expected must not become a busy loop
_NEVER = float("inf")


class Serving:
    """One round at a time, which the loop and the thread pass to each other."""

    def __init__(
        self, rounds: Callable[[], Steps[float]], alarm: Alarm, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`rounds` begins a round, which ends with the seconds until the next one; `alarm` wakes the thread."""
        self._rounds = rounds
        self._alarm = alarm
        self._clock = clock
        self._hands = native.lock()  # of whoever takes steps
        self._round: Steps[float] | None = None
        self._is_threads = False
        """Whether the loop has left the round to the thread."""
        self._is_called = False
        """Whether somebody has called while a round was under way."""
        self._loop: PipedLoop | None = None
        self._ear: Ear | None = None
        self._acted_at = _NEVER  # when the loop took its last step of the round under way
        self._next_at = _NEVER  # when the loop begins the next one
        self._called_at = _NEVER  # when it should have begun one for somebody else
        self._is_watched = False
        """Whether the thread looks once in a while whether the loop is stuck."""

    def join(self, loop: PipedLoop) -> None:
        """The event loop begins, and does the rounds from here on. In the loop."""
        self._loop = loop
        self._next_at = self._called_at = _NEVER
        self._soon(0.0)

    def leave(self) -> None:
        """The event loop ends: the thread does the rounds from here on, and the rest of one under way. In the loop."""
        self._loop = None
        self._listen_no_more()
        self._alarm.ring()

    def wake(self) -> None:
        """There is something to do sooner than the last round said. From any thread."""
        loop = self._loop
        if loop is None:
            self._alarm.ring()
        elif loop.is_here():
            self._soon(0.0)
        else:
            self._call(loop, 0.0)

    def __call__(self) -> float:
        """What the thread has to do; returns the seconds until it has to look again. In the thread, which may wait."""
        loop = self._loop
        if loop is not None and not self._is_threads and not self._is_stuck():
            return self._watch(loop)
        with self._hands:
            try:
                self._round = self._round or self._rounds()
                seconds = run(self._round)
            except Exception:
                seconds = _failed()
            self._round, self._is_threads = None, False
        loop = self._loop
        if loop is None:
            return seconds
        self._call(loop, seconds)
        return seconds if self._is_stuck() else self._watch(loop)

    def _call(self, loop: PipedLoop, seconds: float) -> None:
        self._called_at = min(self._called_at, self._clock() + seconds)
        loop.post(partial(self._hear, seconds))
        if self._is_stuck():
            self._alarm.ring()
        else:
            self._be_watched()

    def _is_stuck(self) -> bool:
        since = min(self._next_at, self._called_at)
        if self._round is not None:
            since = min(since, self._acted_at)
        return self._clock() > since + _LATE

    def _watch(self, loop: PipedLoop) -> float:
        self._is_watched = False  # before the look: who has something to do from now on says so
        next_at, now = self._next_at, self._clock()
        if self._round is None and next_at == self._called_at == _NEVER:
            return _NEVER
        self._is_watched = True
        if now > next_at + _NUDGE:
            loop.post(self._go_on)
        return min(_LATE, max(_NUDGE, next_at + _NUDGE - now))

    def _be_watched(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._alarm.ring()

    # The rest is done in the loop.

    def _hear(self, seconds: float) -> None:
        self._called_at = _NEVER
        self._rest(seconds)

    def _rest(self, seconds: float) -> None:
        """A round has ended. The next one is in so many seconds, or at once where somebody has called meanwhile."""
        was_called, self._is_called = self._is_called, False
        self._soon(0.0 if was_called else seconds)

    def _soon(self, seconds: float) -> None:
        """Begin a round in so many seconds, unless one begins sooner."""
        if self._round is not None or self._is_threads:
            self._is_called = True
            return
        at = self._clock() + seconds
        if self._loop is not None and at < self._next_at:
            self._next_at = at
            self._loop.after(seconds, self._go_on)
            self._be_watched()

    def _go_on(self) -> None:
        """Begin a round, or go on with the one under way, until there is something to wait for."""
        loop = self._loop
        if loop is None:
            return
        self._next_at = _NEVER
        self._listen_no_more()
        with loop.quiet():
            if self._hands.acquire(False):  # else the thread has it, and calls when it is done
                try:
                    if not self._is_threads:
                        self._step(loop)
                finally:
                    self._hands.release()

    def _step(self, loop: PipedLoop) -> None:
        self._acted_at = self._clock()
        try:
            self._round = self._round or self._rounds()
            file = next(self._round)
        except StopIteration as done:
            self._round = None
            self._rest(done.value)
        except Exception:
            self._round = None
            self._rest(_failed())
        else:
            if file is None:
                self._is_threads = True
                self._alarm.ring()
            else:
                self._ear = loop.listen_to(file, self._go_on)
                self._be_watched()

    def _listen_no_more(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()


def _failed() -> float:
    logger.exception("the keeper of the leases goes on after an error")
    return _AFTER_ERROR
