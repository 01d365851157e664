"""Run units of work on the database: retry where that helps, and never block for long.

Decides nothing about jobs. A commit without an answer is resolved by a read.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from celery_sqlbeat import environment, events
from celery_sqlbeat.errors import DatabaseUnavailable
from celery_sqlbeat.store.faults import AWAY, UNCERTAIN, Breaker, Fault
from celery_sqlbeat.store.patience import Conflict, Failure, Patience
from celery_sqlbeat.store.pool import SessionPool
from celery_sqlbeat.store.sql.session import Call, Dialect, Row, Rows, Session

__all__ = ["Conflict", "Database", "Part"]

T = TypeVar("T")
Work = Callable[[Session], T]


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
        self._pool: SessionPool[Session] = SessionPool(dialect.connect, dialect.sessions_survive_fork, dialect.is_spent)
        self._patience = Patience(dialect.explain, patience, breaker, sleep, rnd, clock)

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
        unresolved = False

        def once() -> T:
            nonlocal unresolved
            if unresolved and resolve is not None:
                committed = self._once(resolve, transaction=False)
                if committed is not None:
                    return committed
            try:
                return self._once(work, transaction)
            except Failure as failure:
                unresolved = failure.unresolved
                raise

        return self._patience.run(once)

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


class Part:
    """Some verbs of a store: of one namespace in one database."""

    def __init__(self, database: Database, namespace: str = "default") -> None:
        self.database = database
        self.namespace = namespace
