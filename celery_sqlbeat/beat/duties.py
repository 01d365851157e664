"""What a beat does beside firing: duties, each with its own error scope, period and back-off.

One thread does the duties that belong together. A duty that waits holds up no other thread and no
due job.
"""

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from celery_sqlbeat import environment, events
from celery_sqlbeat.errors import TransientError

T = TypeVar("T")

_FIRST_SILENCE, _LONGEST_SILENCE = 0.5, 60.0  # seconds
_LEAST_PERIOD = 1.0  # seconds between two runs of a hastened duty: reasons to hasten come in bursts
_JOIN_SECONDS = 2.0  # for which the end of a beat waits for the statement of a thread


class LogThrottle:
    """Decides when a lasting error is logged again: a beat retries every few seconds."""

    def __init__(self, clock: Callable[[], float] = environment.monotonic) -> None:
        self._clock = clock
        self._text: str | None = None
        self._since = self._again_at = 0.0

    def admits(self, text: str) -> bool:
        """Return whether to log this now: it is new, or has lasted twice as long as then."""
        now = self._clock()
        if self._text is None:
            self._since = now
        if text == self._text and now < self._again_at:
            return False
        self._text = text
        self._again_at = now + min(_LONGEST_SILENCE, max(_FIRST_SILENCE, now - self._since))
        return True

    def reset(self) -> None:
        """Treat the next error as new."""
        self._text = None


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """The seconds that a duty waits after a failure; they double with each failure in a row."""

    first: float = 0.25
    longest: float = 30.0
    """After an error that a retry hardly mends."""
    longest_transient: float = 1.0
    """While the database is unavailable or busy: a retry is cheap."""

    def after(self, failures: int, error: Exception, chance: float) -> float:
        """Return the pause after so many failures in a row, the last of which is `error`."""
        longest = self.longest_transient if isinstance(error, TransientError) else self.longest
        return min(longest, self.first * 2.0 ** min(failures - 1, 10)) * (0.5 + 0.5 * chance)


_PAUSES = Pauses()


class Duty:
    """Work that is repeated; it returns the seconds until it is due again."""

    def __init__(
        self,
        name: str,
        work: Callable[[], float],
        clock: Callable[[], float] = environment.monotonic,
        rnd: Callable[[], float] = environment.chance,
        pauses: Pauses = _PAUSES,
        raises: type[Exception] | tuple[()] = (),
    ) -> None:
        """Make it due at once. Of the errors of `work` only `raises` leave this scope."""
        self.name = name
        self.due_at = clock()
        self._done_at = self.due_at - _LEAST_PERIOD
        self._work = work
        self._clock = clock
        self._random = rnd
        self._pauses = pauses
        self._raises = raises
        self._failures = 0
        self._throttle = LogThrottle(clock)

    def do_if_due(self) -> bool:
        """Do it once if it is due; return whether it was. After an error it is due again soon."""
        if self._clock() < self.due_at:
            return False
        try:
            seconds = self._work()
        except self._raises:
            raise
        except Exception as error:
            seconds = self._failed(error)
        else:
            self._failures = 0
            self._throttle.reset()
        self._done_at = self._clock()
        self.due_at = self._done_at + seconds
        return True

    def hasten(self) -> None:
        """Make it due as soon as its least period allows."""
        self.due_at = min(self.due_at, self._done_at + _LEAST_PERIOD)

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        seconds = self._pauses.after(self._failures, error, self._random())
        if self._throttle.admits(str(error)):
            events.duty_failed(duty=self.name, error=error, retry_seconds=seconds)
        return seconds


class PollGrid:
    """Counts the polls since a beat began: rare duties keep to them, whatever hastened them."""

    def __init__(self, poll_interval: float, clock: Callable[[], float] = environment.monotonic) -> None:
        self._poll = poll_interval
        self._clock = clock
        self._began = clock()

    def until(self, first: int, every: int) -> float:
        """Return the seconds until the next of the polls `first`, `first + every`, ..."""
        passed = self._clock() - self._began
        number = max(0, math.floor((passed / self._poll + 0.5 - first) / every) + 1)
        return (first + number * every) * self._poll - passed


class Duties:
    """The duties that one thread does one after the other."""

    def __init__(
        self,
        name: str,
        duties: Sequence[Duty],
        clock: Callable[[], float] = environment.monotonic,
        hastened: Sequence[Duty] = (),
    ) -> None:
        """Join `duties` and those that a change in the database hastens."""
        self.name = name
        self._duties = [*duties, *hastened]
        self._hastened = hastened
        self._clock = clock
        self.wake: Callable[[], None] = lambda: None
        """Ends the sleep of their thread."""

    def __call__(self) -> float:
        """Do what is due; return the seconds until something is due again."""
        for duty in self._duties:
            duty.do_if_due()
        return max(0.0, min(duty.due_at for duty in self._duties) - self._clock())

    def hasten(self) -> None:
        """Do soon what a change in the database may concern."""
        for duty in self._hastened:
            duty.hasten()
        self.wake()


def in_thread(work: Callable[[], T]) -> Callable[[], T]:
    """Begin some work in a thread; what is returned waits for its outcome."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="sqlbeat-recording", daemon=True).start()
    return outcome.result


class Background:
    """A thread for duties. It inherits the signal mask: start it where stop signals are masked."""

    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._is_over = False
        self._woken = threading.Event()
        duties.wake = self._woken.set
        self._thread = threading.Thread(target=self._run, name=f"sqlbeat-{duties.name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let it begin nothing more."""
        self._is_over = True
        self._woken.set()

    def wait(self) -> None:
        """Wait a little for what it is doing."""
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._is_over:
            self._woken.wait(self._duties())
            self._woken.clear()
