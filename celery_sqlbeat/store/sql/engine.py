"""Run units of work on the database: retry where that helps, and never block for long.

Decides nothing about jobs. A commit without an answer is resolved by a read.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tenacity

from celery_sqlbeat import environment, events
from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, DatabaseUncertain, RowRefused, StoreError
from celery_sqlbeat.store.sql.faults import AGAIN, AWAY, SLOW, UNCERTAIN, WAITS, Breaker, Fault
from celery_sqlbeat.store.sql.pool import SessionPool
from celery_sqlbeat.store.sql.session import Call, Dialect, Row, Rows, Session

T = TypeVar("T")
Work = Callable[[Session], T]

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


class Database:
    """One database, as beats, workers and administrators use it."""

    def __init__(
        self,
        dialect: Dialect,
        patience: float = 3.0,
        breaker: Breaker | None = None,
        sleep: Callable[[float], None] = time.sleep,
        rnd: Callable[[], float] = environment.chance,
        clock: Callable[[], float] = environment.monotonic,
    ) -> None:
        self.dialect = dialect
        self._pool = SessionPool(dialect.connect, dialect.sessions_survive_fork, dialect.is_spent)
        self._breaker = breaker or Breaker()
        self._patience = patience  # seconds of trying after which no further try begins
        self._sleep = sleep
        self._random = rnd
        self._clock = clock
        self._why = ""  # what the driver said last about a database that is away

    def fetch(
        self, name: str, rows: Rows | None = None, resolve: Work[list[Row] | None] | None = None, /, **scalars: Any
    ) -> list[Row]:
        """Run one block by itself.

        Without `resolve`, as `write` has it, only for blocks that may safely run twice.
        """
        if self.dialect.single_statements_commit:
            return self._run(lambda session: session.fetch(name, rows, **scalars), transaction=False, resolve=resolve)
        return self.write(lambda session: session.fetch(name, rows, **scalars), resolve)

    def does_at_once(self, name: str) -> bool:
        """Return whether this database has one block for what others do in several."""
        return name in self.dialect.at_once

    def make_place(self) -> None:
        """Make what the first migration needs to be there: a database that is a file."""
        getattr(self.dialect, "make_file", lambda: None)()

    def pooling(self) -> str | None:
        """Return what a pooler before the server gives its clients, or None without a pooler.

        It gives "transactions" or "sessions".
        """
        try:
            pooling: str | None = getattr(self.dialect, "pooling", lambda: None)()
        except self.dialect.errors as error:
            raise DatabaseUnavailable(self.dialect.explain(error)) from error
        return pooling

    def read(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        """Run one block that only reads."""
        return self._run(lambda session: session.fetch(name, rows, **scalars), transaction=False)

    def read_together(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run blocks that only read, in one round trip where the database can."""
        return self._run(lambda session: session.fetch_together(calls), transaction=False)

    def write(self, work: Work[T], resolve: Work[T | None] | None = None) -> T:
        """Run several blocks as one transaction.

        `resolve` reads after a commit without an answer: its result if the work is there, None if
        it is not. Without it the work must be safe to repeat.
        """
        return self._run(work, transaction=True, resolve=resolve)

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def _run(self, work: Work[T], transaction: bool, resolve: Work[T | None] | None = None) -> T:
        if self._breaker.seconds_to_wait() > 0:
            raise DatabaseUnavailable(self._why)
        began = self._clock()
        try:
            result = self._once(work, transaction)
        except Failure as failure:
            # Who has kept silent for so long, or a row locked, would do so once more, and somebody
            # waits.
            enough = self._patience if failure.fault in AWAY else self._patience * _LOCK_SHARE
            is_silent = failure.fault in SLOW and self._clock() - began >= enough > 0
            result = self._again(failure, work, transaction, resolve, is_silent)
        self._breaker.succeeded()
        return result

    def _again(
        self, first: Failure, work: Work[T], transaction: bool, resolve: Work[T | None] | None, is_silent: bool
    ) -> T:
        """Handle an error: rare, so it may cost something."""
        last = first

        def one_more() -> T:
            nonlocal last
            if last.unresolved and resolve is not None:
                committed = self._once(resolve, transaction=False)
                if committed is not None:
                    return committed
            try:
                return self._once(work, transaction)
            except Failure as failure:
                last = failure
                raise

        try:
            if first.fault not in AGAIN or self._breaker.is_open or is_silent:
                raise first
            end = self._clock() + self._patience
            self._sleep(min(self._wait(first.fault, 1), self._patience))
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

    def _once(self, work: Work[T], transaction: bool) -> T:
        committing = not transaction  # a single statement commits as it runs
        session: Session | None = None
        try:
            session = self._pool.acquire()
            if transaction:
                session.begin()
            result = work(session)
            if transaction:
                committing = True
                session.commit()
        except BaseException as error:
            fault = self.dialect.classify(error)
            if session is None and fault is Fault.UNKNOWN:
                fault = Fault.LOST  # there is no connection, whatever the reason
            if session is not None:
                self._end(session, fault)
            if not isinstance(error, self.dialect.errors):
                raise
            unresolved = session is not None and committing and fault in UNCERTAIN
            raise Failure(fault, unresolved, error) from error
        self._pool.release(session)
        return result

    def _end(self, session: Session, fault: Fault) -> None:
        if fault not in AWAY | UNCERTAIN:
            try:
                session.rollback()
            except Exception as error:
                events.noted(topic="a session is closed, its rollback failed", text=self.dialect.explain(error))
            else:
                self._pool.release(session)
                return
        self._pool.discard(session)

    def _wait(self, fault: Fault, tries: int) -> float:
        first, longest = WAITS[fault]
        return min(longest, first * 2.0 ** min(tries - 1, 30)) * self._random()

    def _error(self, failure: Failure) -> StoreError:
        text = self.dialect.explain(failure.cause)
        told = f"the database cannot be used for now: {text}"
        if failure.fault in AWAY:
            self._why = told
            self._breaker.failed()
        else:
            self._breaker.succeeded()  # an error, but the database answered
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
