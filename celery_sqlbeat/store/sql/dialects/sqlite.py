"""SQLite: the embedded default.

Many processes of one machine share one file in WAL mode; its clock is the server's.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from celery_sqlbeat import environment
from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.errors import DatabaseUnavailable, SchemaError, StoreError
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.dialects.sqlite_values import after, decoded, flat, scalar, statements, text_of, with_rows
from celery_sqlbeat.store.sql.session import Block, Call, Clock, Row, Rows, load

OLDEST = (3, 35, 0)  # the first version with RETURNING
_PAGES_PER_CHECKPOINT = 4000  # 16 MB: index pages that many commits touch reach the file once
_CACHE_KIB = 16_000
_FAULTS = {
    "SQLITE_BUSY": Fault.TRANSIENT,
    "SQLITE_LOCKED": Fault.TRANSIENT,
    "SQLITE_INTERRUPT": Fault.TRANSIENT,
    "SQLITE_PROTOCOL": Fault.TRANSIENT,
    "SQLITE_FULL": Fault.THROTTLED,
    "SQLITE_IOERR": Fault.LOST,
    "SQLITE_CANTOPEN": Fault.LOST,
    "SQLITE_CONSTRAINT_UNIQUE": Fault.CONFLICT,
    "SQLITE_CONSTRAINT_PRIMARYKEY": Fault.CONFLICT,
    "SQLITE_CONSTRAINT": Fault.REFUSED,  # any other, and what a trigger raises
    "SQLITE_MISMATCH": Fault.REFUSED,
    "SQLITE_TOOBIG": Fault.REFUSED,
    # What can never succeed as it is.
    "SQLITE_RANGE": Fault.FATAL,
    "SQLITE_AUTH": Fault.FATAL,
}
# Python 3.10 gives no code with the error, only SQLite's fixed English text; SQLITE_ERROR is many
# things.
_TEXTS = {
    "database is locked": Fault.TRANSIENT,
    "database table is locked": Fault.TRANSIENT,
    "locking protocol": Fault.TRANSIENT,
    "interrupted": Fault.TRANSIENT,
    "database or disk is full": Fault.THROTTLED,
    "disk I/O error": Fault.LOST,
    "unable to open database file": Fault.LOST,
    "UNIQUE constraint failed": Fault.CONFLICT,
    "CHECK constraint failed": Fault.REFUSED,
    "NOT NULL constraint failed": Fault.REFUSED,
    "FOREIGN KEY constraint failed": Fault.REFUSED,
    "datatype mismatch": Fault.REFUSED,
    "no such ": Fault.FATAL,  # table, column, function
    "table ": Fault.FATAL,  # has no column of this name
    "near ": Fault.FATAL,  # syntax
    "incomplete input": Fault.FATAL,
}
_LOCKED = "database is locked"  # SQLite's fixed text
_UNREADABLE = "Could not decode to UTF-8"  # the driver's own text; it has no code


def _readable(text: bytes) -> str:
    return text.decode(errors="replace")


def host_clock() -> datetime:
    """Return the machine's clock, which on SQLite is the server's."""
    return environment.now()


class SqliteSession:
    """One connection to the file."""

    def __init__(
        self, connection: sqlite3.Connection, clock: Clock, blocks: Mapping[str, Block], lock_seconds: float = 5.0
    ) -> None:
        """`lock_seconds`: how long to wait for the write lock."""
        self._lock_seconds = lock_seconds
        self._connection = connection
        self._clock = clock
        self._blocks = blocks
        self._now: str | None = None

    def begin(self) -> None:
        """Take the write lock, then read the clock: no wait lies between an instant and its use."""
        until = environment.monotonic() + self._lock_seconds
        while not self._takes_lock(until):
            pass  # SQLite has waited a millisecond
        self._now = text_of(self._clock())

    def _takes_lock(self, until: float) -> bool:
        """Try to take the write lock; raises at the end of the wait for it."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if str(error) != _LOCKED or environment.monotonic() >= until:
                raise
            return False
        return True

    def commit(self) -> None:
        """Commit it. An error here may mean that it did commit."""
        self._connection.execute("COMMIT")
        self._now = None

    def rollback(self) -> None:
        """Undo it."""
        self._now = None
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        """Run a named block and return what it gives; instants are aware datetimes in UTC."""
        block = self._blocks[name]
        scalars["now"] = self._now or text_of(self._clock())
        text, values = block.text, [scalar(scalars[key]) for key in block.parameters.names]
        if rows is not None:
            text = with_rows(text, len(values), len(block.rows.names), len(rows))
            values += flat(block, rows)
        try:
            cursor = self._connection.execute(text, values)
            answer: list[Row] = cursor.fetchall()
        except sqlite3.OperationalError as error:
            if str(error).startswith(_UNREADABLE):
                # Somebody stored bytes that are no text. One such row must not stop the others: the
                # next try reads it.
                self._connection.text_factory = _readable
            raise
        return decoded(answer, block.returns.instants) if answer and block.returns.instants else answer

    def fetch_together(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run blocks one after the other."""
        return [self.fetch(call.block, call.rows, **call.scalars) for call in calls]

    def script(self, text: str) -> None:
        """Run a script of several statements, for migrations."""
        for statement in statements(text):
            self._connection.execute(statement)

    def migration_lock(self) -> None:
        """Do nothing: the write lock that `begin` took keeps every other process out."""

    def close(self) -> None:
        """Close the connection; never raises."""
        self._connection.close()


class Sqlite:
    """A SQLite file. A test may give its own clock or its own way to connect."""

    name = "sqlite"
    errors = (sqlite3.Error,)
    single_statements_commit = False
    at_once: frozenset[str] = frozenset()  # a round trip is a call here

    def __init__(
        self,
        url: DatabaseUrl,
        statement_timeout: float = 5.0,
        clock: Clock = host_clock,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
    ) -> None:
        self._url = url
        self._timeout = statement_timeout
        self.clock = clock
        self.blocks = load(self.name)
        self._connect = connect
        self.sessions_survive_fork = url.in_memory  # what is in memory would die with its session; see Lender

    def connect(self) -> SqliteSession:
        """Open a session, or raise the driver's error."""
        if sqlite3.sqlite_version_info < OLDEST:
            raise StoreError(
                f"SQLite {sqlite3.sqlite_version} is too old: use a Python that is built with 3.35 or newer"
            )
        connection = self._open()
        try:
            connection.create_function("after", 2, after, deterministic=True)
            connection.execute("PRAGMA journal_mode = WAL")
            # FULL: a commit that was answered survives the loss of power, not only the end of the
            # process.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_PAGES_PER_CHECKPOINT}")
            # The rows of a batch are joined in memory, not in a temporary file.
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            # Left alone, SQLite sleeps up to 100 ms between two tries: among many writers the file
            # is idle meanwhile, and who has waited long hardly gets it.
            connection.execute("PRAGMA busy_timeout = 1")
        except BaseException:
            connection.close()
            raise
        return SqliteSession(connection, self.clock, self.blocks, self._timeout)

    def make_file(self) -> None:
        """Make the file where there is none: only for the migrations that fill it."""
        if self._url.in_memory or Path(self._url.name).exists():
            return
        try:
            self._connect(self._url.name).close()
        except sqlite3.Error as error:
            raise DatabaseUnavailable(f"the file of {self._url} cannot be made: {self.explain(error)}") from error

    def _open(self) -> sqlite3.Connection:
        # In mode rw SQLite makes no file: an empty one would hide that this is the wrong place.
        file = Path(self._url.name)
        where = ":memory:" if self._url.in_memory else f"{file.absolute().as_uri()}?mode=rw"
        try:
            return self._connect(
                where,
                uri=not self._url.in_memory,
                timeout=self._timeout,
                isolation_level=None,
                check_same_thread=False,  # the pool gives a session to one thread at a time
                cached_statements=256,
            )
        except sqlite3.OperationalError as error:
            if self._url.in_memory or file.exists() or not file.parent.is_dir():  # its disk may come back
                raise
            raise SchemaError(f"there is no database at {self._url}: run celery -A app sqlbeat init") from error

    def is_spent(self, session: SqliteSession) -> bool:
        """Return whether a working session must not be used again."""
        return False

    def classify(self, error: BaseException) -> Fault:
        """Classify by the error's name (SQLITE_BUSY_SNAPSHOT), on Python 3.10 by its text."""
        if not isinstance(error, sqlite3.Error):
            return Fault.FATAL
        if str(error).startswith(_UNREADABLE):
            return Fault.TRANSIENT
        name = getattr(error, "sqlite_errorname", "")
        for known, fault in _FAULTS.items():
            if name.startswith(known):
                return fault
        if name in ("", "SQLITE_ERROR"):
            for text, fault in _TEXTS.items():
                if str(error).startswith(text):
                    return fault
        return Fault.UNKNOWN

    def explain(self, error: BaseException) -> str:
        """Return the error's text in one line, without secrets."""
        return " ".join(str(error).split())
