"""Try work again where that helps, and never for long.

One `Patience` is shared by all who use one server: what one learns of an outage spares the others.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import tenacity

from celery_sqlbeat import environment
from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, DatabaseUncertain, RowRefused, StoreError
from celery_sqlbeat.store.faults import AGAIN, AWAY, SLOW, WAITS, Breaker, Fault

T = TypeVar("T")

# Of the patience: after so long a wait for a lock no further try begins. A database gives up a lock
# after half of it.
_LOCK_SHARE = 0.4


class Failure(Exception):
    """One try that failed: what it means, and whether its commit may have happened."""

    def __init__(self, fault: Fault, unresolved: bool, cause: BaseException) -> None:
        super().__init__(fault.value)
        self.fault, self.unresolved, self.cause = fault, unresolved, cause


class Conflict(StoreError):
    """A unique key is taken."""


class Patience:
    """Runs work behind a circuit breaker; `explain` tells of an error in one line."""

    def __init__(
        self,
        explain: Callable[[BaseException], str],
        seconds: float = 3.0,
        breaker: Breaker | None = None,
        sleep: Callable[[float], None] = time.sleep,
        rnd: Callable[[], float] = environment.chance,
        clock: Callable[[], float] = environment.monotonic,
    ) -> None:
        self._explain = explain
        self._seconds = seconds  # of trying, after which no further try begins
        self.breaker = breaker or Breaker()
        self._sleep = sleep
        self._random = rnd
        self._clock = clock
        self._why = ""  # what the driver said last about a database that is away

    def run(self, once: Callable[[], T]) -> T:
        """Run work, which raises a Failure for a try that failed; raise what the last one means."""
        if self.breaker.seconds_to_wait() > 0:
            raise DatabaseUnavailable(self._why)
        began = self._clock()
        try:
            result = once()
        except Failure as failure:
            # Who has kept silent for so long, or a row locked, would do so once more, and somebody
            # waits.
            enough = self._seconds if failure.fault in AWAY else self._seconds * _LOCK_SHARE
            is_silent = failure.fault in SLOW and self._clock() - began >= enough > 0
            result = self._again(failure, once, is_silent)
        self.breaker.succeeded()
        return result

    def _again(self, first: Failure, once: Callable[[], T], is_silent: bool) -> T:
        """Handle an error: rare, so it may cost something."""
        last = first

        def one_more() -> T:
            nonlocal last
            try:
                return once()
            except Failure as failure:
                last = failure
                raise

        try:
            if first.fault not in AGAIN or self.breaker.is_open or is_silent:
                raise first
            end = self._clock() + self._seconds
            self._sleep(min(self._wait(first.fault, 1), self._seconds))
            again = tenacity.Retrying(
                retry=tenacity.retry_if_exception(lambda error: isinstance(error, Failure) and error.fault in AGAIN),
                # No wait goes beyond the end, so that a call takes its first try, its patience and
                # its last try.
                wait=lambda state: min(self._wait(last.fault, state.attempt_number + 1), max(0.0, end - self._clock())),
                stop=lambda _: self._clock() >= end,
                sleep=self._sleep,
                reraise=True,
            )
            return again(one_more)
        except Failure as failure:
            raise self._error(failure) from failure.cause

    def _wait(self, fault: Fault, tries: int) -> float:
        first, longest = WAITS[fault]
        return min(longest, first * 2.0 ** min(tries - 1, 30)) * self._random()

    def _error(self, failure: Failure) -> StoreError:
        text = self._explain(failure.cause)
        told = f"the database cannot be used for now: {text}"
        if failure.fault in AWAY:
            self._why = told
            self.breaker.failed()
        else:
            self.breaker.succeeded()  # an error, but the database answered
        if failure.fault is Fault.CONFLICT:
            return Conflict(text)
        if failure.fault is Fault.REFUSED:
            return RowRefused(text)
        if failure.fault is Fault.FATAL:
            return StoreError(text)
        if failure.fault is Fault.UNKNOWN:
            return DatabaseUncertain(f"the database gave an error that is not known: {text}")
        kind = DatabaseUnavailable if failure.fault in AWAY else DatabaseBusy
        return kind(told)
