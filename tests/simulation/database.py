"""The database of a simulation.

The real statements on SQLite in memory, a clock of its own, and links that break.

Each process has sessions of its own over the one connection. A transaction is never interrupted by
another process, as SQLite has it; between any two transactions anybody else may have its turn.
"""

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple, Protocol, cast

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.model import DueJob
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.dialects.sqlite import Sqlite, SqliteSession
from celery_sqlbeat.store.sql.dialects.sqlite_values import text_of
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Row, Rows, load
from celery_sqlbeat.store.sql.store import SqlStore
from tests.simulation.hub import Hub, Killed, Process
from tests.simulation.rows import JobRow, RunRow, columns

LOST = "disk I/O error"  # the text by which the store knows a lost connection


_NOW = DueJob._fields.index("now")


class Call(NamedTuple):
    """A statement that ran."""

    block: str
    rows: Rows
    scalars: dict[str, Any]


Change = tuple[Any, ...]  # the place of its call, the table, whether the row is there, and the row


class Watcher(Protocol):
    """Who is told what happens."""

    def statement(self, process: Process, name: str) -> None:
        """Note that a statement is about to run."""

    def due_read(self, process: Process, name: str, instants: set[str | None]) -> None:
        """Note that a beat has read due jobs, at these instants of the server's clock."""

    def committed(self, process: Process, sent_at: float, calls: list[Call], changes: list[Change], now: str) -> None:
        """Note that a transaction changed rows."""


class Server:
    """The one database."""

    def __init__(self, hub: Hub, rng: Random, start: datetime, watcher: Watcher) -> None:
        self.hub = hub
        self.rng = rng
        self.watcher = watcher
        self._start = start
        self._jumped = 0.0
        self.away_until = -1.0
        self.hangs = False
        self.slow_until = -1.0
        session = Sqlite(database_url("sqlite://")).connect()
        self.connection = session._connection
        self.blocks = load("sqlite")
        self.calls: list[Call] = []  # of the transaction that is open
        self.seen: list[Change] = []

    def migrate(self) -> None:
        """Create the tables; from now on changed row is seen, by triggers.

        No statement can hide what it writes.
        """
        session = SqliteSession(self.connection, self.clock, self.blocks)
        SqlStore(Database(cast(Any, _Ready(session)))).migrate()
        seen, calls = self.seen, self.calls
        self.connection.create_function("seen", -1, lambda *row: seen.append((len(calls) - 1, *row)))
        for table, kind in (("Jobs", JobRow), ("JobRuns", RunRow)):
            for what, row, is_there in (("INSERT", "NEW", 1), ("UPDATE", "NEW", 1), ("DELETE", "OLD", 0)):
                values = ", ".join(f"{row}.{column}" for column in columns(kind))
                self.connection.execute(
                    f"CREATE TRIGGER See{table}{what} AFTER {what} ON {table} "
                    f"BEGIN SELECT seen('{table}', {is_there}, {values}); END"
                )

    def clock(self) -> datetime:
        """Return the server's clock, which may jump."""
        return self._start + timedelta(seconds=self.hub.now + self._jumped)

    def jump(self, seconds: float) -> None:
        """Set the server's clock."""
        self._jumped += seconds

    def is_unavailable(self) -> bool:
        """Whether nobody reaches it."""
        return self.hub.now < self.away_until

    def latency(self) -> float:
        """How long a statement or its answer is on the way."""
        chance = self.rng.random()
        if self.hub.now < self.slow_until:
            return 0.2 + chance
        return 0.0002 + chance * 0.002 if chance < 0.98 else chance * 0.2

    def by_hand(self, process: Process, text: str, *values: Any) -> list[Row]:
        """Return what somebody writes with a program of their own."""
        self.connection.execute("BEGIN IMMEDIATE")
        self.calls[:] = [Call("by_hand", [], {})]
        plain = [text_of(value) if isinstance(value, datetime) else value for value in values]
        found = self.connection.execute(text, plain).fetchall()
        self.connection.execute("COMMIT")
        self.settle(process, self.hub.now, text_of(self.clock()) or "")
        return found

    def settle(self, process: Process, sent_at: float, now: str) -> None:
        """After a commit: tell what changed."""
        if self.seen:
            calls, changes = self.calls[:], self.seen[:]
            self.seen.clear()
            self.watcher.committed(process, sent_at, calls, changes, now)


class _Ready:
    """A dialect with one session, for the migrations."""

    name = "sqlite"
    errors = (sqlite3.Error,)
    single_statements_commit = False
    sessions_survive_fork = True
    at_once: frozenset[str] = frozenset()

    def __init__(self, session: SqliteSession) -> None:
        self.connect = lambda: session

    def explain(self, error: BaseException) -> str:
        return str(error)

    def is_spent(self, session: object) -> bool:
        return False


class Link:
    """What one process knows of the database.

    A dialect whose sessions fail where the simulation wants it.
    """

    name = "sqlite"
    errors = (sqlite3.Error,)
    single_statements_commit = False
    sessions_survive_fork = True
    at_once: frozenset[str] = frozenset()

    def __init__(self, server: Server, process: Process, timeout: float) -> None:
        self.server = server
        self.blocks = server.blocks
        self.process = process
        self.timeout = timeout
        self.cut_until = -1.0
        self.armed: list[tuple[int, Callable[[str], object]]] = []
        self.on_answer: Callable[[], None] = lambda: None
        self._sqlite = Sqlite(database_url("sqlite://"))

    def connect(self) -> "LinkSession":
        self.turn()
        return LinkSession(self)

    def is_spent(self, session: object) -> bool:
        return False

    def classify(self, error: BaseException) -> Fault:
        return self._sqlite.classify(error)

    def explain(self, error: BaseException) -> str:
        return self._sqlite.explain(error)

    def turn(self) -> None:
        """Before a transaction or a reading statement.

        Others have their turn, and what is away does not answer.
        """
        self.boundary("before")
        self.process.sleep(self.server.latency())
        if self.server.is_unavailable() or self.server.hub.now < self.cut_until:
            if self.server.hangs:
                self.process.sleep(self.timeout)
            self.lost()
        self.boundary("begin")

    def answered(self) -> None:
        """After a commit or a reading statement: the answer is on its way."""
        self.boundary("answer")
        self.process.sleep(self.server.latency())
        if self.server.is_unavailable() or self.server.hub.now < self.cut_until:
            self.lost()
        self.on_answer()

    def lost(self) -> None:
        """Lose the connection."""
        raise sqlite3.OperationalError(LOST)

    def arm(self, boundaries: int, fault: Callable[[str], object]) -> None:
        """Let a fault happen at one of the next boundaries between statements."""
        self.armed.append((boundaries, fault))

    def boundary(self, place: str) -> None:
        """Between two statements: everything that can go wrong, goes wrong here."""
        if not self.process.alive:
            raise Killed
        if self.armed:
            due = [fault for left, fault in self.armed if left <= 0]
            self.armed = [(left - 1, fault) for left, fault in self.armed if left > 0]
            for fault in due:
                fault(place)


class LinkSession(SqliteSession):
    """One session of a process."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.server.connection, link.server.clock, link.server.blocks)
        self._link = link
        self._server = link.server
        self._in_transaction = False
        self._sent_at = 0.0

    def begin(self) -> None:
        self._sent_at = self._server.hub.now
        self._link.turn()
        super().begin()
        self._in_transaction = True
        self._server.calls.clear()

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        if self._in_transaction:
            self._link.boundary("inside")
        else:
            self._link.turn()
        self._server.watcher.statement(self._link.process, name)
        if self._in_transaction:
            self._server.calls.append(Call(name, rows or [], scalars))
            return super().fetch(name, rows, **scalars)
        found = super().fetch(name, rows, **scalars)
        if name in ("read_outbox", "read_due"):
            self._server.watcher.due_read(self._link.process, name, {text_of(row[_NOW]) for row in found})
        self._link.answered()
        return found

    def commit(self) -> None:
        self._link.boundary("commit")
        now = self._now or ""
        super().commit()
        self._in_transaction = False
        self._server.settle(self._link.process, self._sent_at, now)
        self._link.answered()

    def rollback(self) -> None:
        if self._in_transaction:
            self._in_transaction = False
            self._server.seen.clear()
            super().rollback()

    def close(self) -> None:
        self.rollback()
