"""Runs units of work against the database: lends a session, tries again where that helps, and never blocks for long.

Decides nothing about jobs. A commit without an answer is settled by reading what became of it.
"""

import logging
import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

import tenacity

from celery_sqlbeat.errors import DatabaseAway, DatabaseBusy, DatabaseUncertain, RowRefused, StoreError
from celery_sqlbeat.store.breaker import Breaker
from celery_sqlbeat.store.faults import AGAIN, AWAY, SLOW, UNCERTAIN, WAITS, Fault
from celery_sqlbeat.store.lender import Lender
from celery_sqlbeat.store.session import AskedSession, Dialect, Row, Rows, Session
from celery_sqlbeat.store.steps import Steps

logger = logging.getLogger(__name__)
T = TypeVar("T")
Work = Callable[[Session], T]

# Of the patience: after so long a wait for a lock no further try begins. A database gives up a lock after half of it.
_LOCK_SHARE = 0.4


class Failure(Exception):
    """One try that failed: what it means, and whether its commit may have happened."""

    def __init__(self, fault: Fault, unsettled: bool, cause: BaseException) -> None:
        super().__init__(fault.value)
        self.fault, self.unsettled, self.cause = fault, unsettled, cause


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
        rnd: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dialect = dialect
        self._lender = Lender(dialect.connect, dialect.sessions_survive_fork, dialect.is_spent)
        self._breaker = breaker or Breaker()
        self._patience = patience  # seconds of trying after which no further try begins
        self._sleep = sleep
        self._random = rnd
        self._clock = clock
        self._why = ""  # what the driver said last about a database that is away

    def fetch(
        self, name: str, rows: Rows | None = None, settle: Work[list[Row] | None] | None = None, /, **scalars: Any
    ) -> list[Row]:
        """Run one block by itself. Without `settle`, as `write` has it, only for blocks that may safely run twice."""
        if self.dialect.single_statements_commit:
            return self._run(lambda session: session.fetch(name, rows, **scalars), transaction=False, settle=settle)
        return self.write(lambda session: session.fetch(name, rows, **scalars), settle)

    def ask(
        self, name: str, rows: Rows | None = None, settle: Work[list[Row] | None] | None = None, /, **scalars: Any
    ) -> Callable[[], list[Row]]:
        """Send one block and go on; what is returned is called once, for the answer, and behaves as `fetch`.

        Where the database cannot answer later, or is taken for away, the block runs then.
        """
        if not self.answers_later or self._breaker.is_open:
            return lambda: self.fetch(name, rows, settle, **scalars)
        try:
            session = cast(AskedSession, self._lender.borrow())
        except self.dialect.errors:
            return lambda: self.fetch(name, rows, settle, **scalars)
        try:
            given = session.ask(name, rows, **scalars)
        except self.dialect.errors as error:
            given = partial(_raise, error)
        except BaseException:
            self._lender.discard(session)
            raise

        return lambda: self._answered(session, given, lambda again: again.fetch(name, rows, **scalars), settle)

    def asking(
        self, name: str, rows: Rows | None = None, settle: Work[list[Row] | None] | None = None, /, **scalars: Any
    ) -> Steps[list[Row]]:
        """As `fetch`, in steps."""
        idle = self._lender.borrow_idle() if self.answers_later and not self._breaker.is_open else None
        if idle is None:
            yield None
            return self.fetch(name, rows, settle, **scalars)
        session, mine = cast(AskedSession, idle), os.getpid()
        try:
            given = session.ask(name, rows, **scalars)
            while not (yield session.file) and not session.is_answered():
                pass
        except self.dialect.errors as error:
            given = partial(_raise, error)
            yield None
        except BaseException:
            if os.getpid() == mine:  # else a child drops its copy of what its parent goes on with
                self._lender.discard(session)
            raise
        return self._answered(session, given, lambda again: again.fetch(name, rows, **scalars), settle)

    def _answered(
        self,
        session: Session,
        given: Callable[[], list[Row]],
        again: Work[list[Row]],
        settle: Work[list[Row] | None] | None,
    ) -> list[Row]:
        """What a block has given that was sent before. Where that is an error, as if it had been run now."""
        begun = partial(self._once, lambda _: given(), False, session)
        return self._run(again, False, settle, begun)

    @property
    def answers_later(self) -> bool:
        """Whether whoever asks may do other things until the answer comes."""
        return self.dialect.answers_later

    def does_at_once(self, name: str) -> bool:
        """Whether this database has one block for what others do in several."""
        return name in self.dialect.at_once

    def make_place(self) -> None:
        """Make what the first migration needs to be there: a database that is a file."""
        getattr(self.dialect, "make_file", lambda: None)()

    def pooling(self) -> str | None:
        """Say what a pooler before the server gives its clients: "transactions" or "sessions"; None: there is none."""
        try:
            found: str | None = getattr(self.dialect, "pooling", lambda: None)()
        except self.dialect.errors as error:
            raise DatabaseAway(self.dialect.explain(error)) from error
        return found

    def read(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        """Run one block that only reads."""
        return self._run(lambda session: session.fetch(name, rows, **scalars), transaction=False)

    def write(self, work: Work[T], settle: Work[T | None] | None = None) -> T:
        """Run several blocks as one transaction.

        `settle` reads after a commit without an answer: its result if the work is there, None if it is not.
        Without it the work must be safe to repeat.
        """
        return self._run(work, transaction=True, settle=settle)

    def close(self) -> None:
        """Close the idle connections."""
        self._lender.close()

    def _run(
        self,
        work: Work[T],
        transaction: bool,
        settle: Work[T | None] | None = None,
        begun: Callable[[], T] | None = None,
    ) -> T:
        """`begun`: the first try, where it is under way already."""
        if begun is None and self._breaker.seconds_to_wait() > 0:
            raise DatabaseAway(self._why)
        began = self._clock()
        try:
            result = self._once(work, transaction) if begun is None else begun()
        except Failure as failure:
            # Who has kept silent for so long, or a row locked, would do so once more, and somebody waits.
            enough = self._patience if failure.fault in AWAY else self._patience * _LOCK_SHARE
            is_silent = failure.fault in SLOW and self._clock() - began >= enough > 0
            result = self._again(failure, work, transaction, settle, is_silent)
        self._breaker.succeeded()
        return result

    def _again(
        self, first: Failure, work: Work[T], transaction: bool, settle: Work[T | None] | None, is_silent: bool
    ) -> T:
        """The way of an error: rare, so it may cost something."""
        last = first

        def one_more() -> T:
            nonlocal last
            if last.unsettled and settle is not None:
                found = self._once(settle, transaction=False)
                if found is not None:
                    return found
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
                # No wait goes beyond the end, so that a call takes its first try, its patience and its last try.
                wait=lambda state: min(self._wait(last.fault, state.attempt_number + 1), max(0.0, end - self._clock())),
                stop=lambda _: self._clock() >= end,
                sleep=self._sleep,
                reraise=True,
            )
            return again(one_more)
        except Failure as failure:
            raise self._error(failure) from failure.cause

    def _once(self, work: Work[T], transaction: bool, session: Session | None = None) -> T:
        committing = not transaction  # a single statement commits as it runs
        try:
            session = session or self._lender.borrow()
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
            unsettled = session is not None and committing and fault in UNCERTAIN
            raise Failure(fault, unsettled, error) from error
        self._lender.give_back(session)
        return result

    def _end(self, session: Session, fault: Fault) -> None:
        if fault not in AWAY | UNCERTAIN:
            try:
                session.rollback()
            except Exception as error:
                logger.debug("a session is closed because its rollback failed: %s", self.dialect.explain(error))
            else:
                self._lender.give_back(session)
                return
        self._lender.discard(session)

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
        kind = DatabaseAway if failure.fault in AWAY else DatabaseBusy
        return kind(told)


def _raise(error: BaseException) -> NoReturn:
    raise error
