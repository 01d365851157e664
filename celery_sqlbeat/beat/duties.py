"""What a beat does beside firing: duties, each with an error scope, a period and a back-off of its own.

A thread does those that belong together; what one of them waits for holds up no other thread, and no due job.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from celery_sqlbeat.beat.trouble import Trouble
from celery_sqlbeat.errors import SqlbeatError, TransientError

logger = logging.getLogger(__name__)

_FIRST_PAUSE = 0.25  # seconds, doubling with each failure in a row
_LONGEST_PAUSE = 1.0  # while the database is away or busy: a try is cheap
_LONGEST_REFUSAL = 30.0  # after an error that another try hardly mends
_LEAST_PERIOD = 1.0  # seconds between two times of what is hastened: its reasons may come one after the other
_END_SECONDS = 2.0  # that the end of a beat waits for a statement of such a thread


class Duty:
    """One thing that is to be done over and over."""

    def __init__(
        self,
        name: str,
        work: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        rnd: Callable[[], float] = random.random,
    ) -> None:
        """`work` returns the seconds until it is to be done again."""
        self.name = name
        self.due_at = clock()
        self._done_at = self.due_at - _LEAST_PERIOD
        self._work = work
        self._clock = clock
        self._random = rnd
        self._failures = 0
        self._trouble = Trouble(clock)

    def do(self) -> None:
        """Do it once; whatever fails is said, and tried again before long."""
        try:
            seconds = self._work()
        except Exception as error:
            seconds = self._failed(error)
        else:
            self._failures = 0
            self._trouble.is_over()
        self._done_at = self._clock()
        self.due_at = self._done_at + seconds

    def hasten(self) -> None:
        """Let it be due as soon as it may be again: there is a reason to do it before its time."""
        self.due_at = min(self.due_at, self._done_at + _LEAST_PERIOD)

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        if self._trouble.is_to_be_told(str(error)):
            unexpected = None if isinstance(error, SqlbeatError) else error
            logger.error("%s failed, the jobs go on: %s", self.name, error, exc_info=unexpected)
        longest = _LONGEST_PAUSE if isinstance(error, TransientError) else _LONGEST_REFUSAL
        return min(longest, _FIRST_PAUSE * 2.0 ** min(self._failures - 1, 10)) * (0.5 + 0.5 * self._random())


class Duties:
    """Those that one thread does, in turn."""

    def __init__(self, name: str, duties: Sequence[Duty], clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._duties = duties
        self._clock = clock
        self.wake: Callable[[], None] = lambda: None
        """Ends the sleep of whoever does them."""

    def __call__(self) -> float:
        """Do what is due; returns the seconds until something is due again."""
        for duty in self._duties:
            if duty.due_at <= self._clock():
                duty.do()
        return max(0.0, min(duty.due_at for duty in self._duties) - self._clock())


class Background:
    """A thread for duties. It inherits the signal mask, so it is started where signals to stop are masked."""

    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._is_over = False
        self._woken = threading.Event()
        duties.wake = self._woken.set
        self._thread = threading.Thread(target=self._run, name=f"sqlbeat-{duties.name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Begin nothing more."""
        self._is_over = True
        self._woken.set()

    def wait(self) -> None:
        """Wait a little for what is under way."""
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while not self._is_over:
            self._woken.wait(self._duties())
            self._woken.clear()
