"""SQLite: the embedded default. Many processes of one machine share one file in WAL mode; its clock is the server's."""

import itertools
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.session import Clock, Row, Rows, instant_positions
from celery_sqlbeat.store.statements import Block, load
from celery_sqlbeat.url import DatabaseUrl

OLDEST = (3, 35, 0)  # the first version with RETURNING
_PAGES_PER_CHECKPOINT = 4000  # 16 MB: index pages that many commits touch reach the file once
_CACHE_KIB = 16_000
_PARAMETER = re.compile(r":([a-z_]+)")
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
}
# Python 3.10 gives no code with the error, only SQLite's fixed English text.
_TEXTS = {
    "database is locked": Fault.TRANSIENT,
    "database table is locked": Fault.TRANSIENT,
    "locking protocol": Fault.TRANSIENT,
    "interrupted": Fault.TRANSIENT,
    "database or disk is full": Fault.THROTTLED,
    "disk I/O error": Fault.LOST,
    "unable to open database file": Fault.LOST,
    "UNIQUE constraint failed": Fault.CONFLICT,
}


def host_clock() -> datetime:
    """The machine's clock, which on SQLite is the server's."""
    return datetime.now(timezone.utc)


def text_of(instant: datetime | None) -> str | None:
    """An instant as SQLite keeps it: UTC text with six digits after the second."""
    if instant is None:
        return None
    if instant.tzinfo is not timezone.utc:
        instant = instant.astimezone(timezone.utc)
    return instant.isoformat(" ", "microseconds")[:26]


def instant_of(text: Any) -> Any:
    """The instant that a text names; what cannot be read comes back as it is, for the quarantine."""
    if isinstance(text, str):
        try:
            if len(text) == 26:  # as this package writes it
                return datetime.fromisoformat(text + "+00:00")
            found = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
            return found.replace(tzinfo=timezone.utc) if found.tzinfo is None else found.astimezone(timezone.utc)
        except (ValueError, OverflowError):
            return text
    return text


@lru_cache(maxsize=1024)  # a batch adds few different durations to one instant
def _after(instant: str | None, seconds: float | None) -> str | None:
    if instant is None or seconds is None:
        return None
    try:
        return text_of(instant_of(instant) + timedelta(seconds=seconds))
    except (OverflowError, TypeError):
        return "9999-12-31 23:59:59.999999" if seconds > 0 else "0001-01-01 00:00:00.000000"


class SqliteSession:
    """One connection to the file."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, blocks: Mapping[str, Block]) -> None:
        self._connection = connection
        self._clock = clock
        self._blocks = blocks
        self._now: str | None = None

    def begin(self) -> None:
        """Take the write lock first, then look at the clock: no waiting lies between an instant and its use."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._now = text_of(self._clock())

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        self._now = None

    def rollback(self) -> None:
        self._now = None
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        block = self._blocks[name]
        text, wanted = _prepared(block, len(rows) if rows is not None else 0)
        scalars["now"] = self._now or text_of(self._clock())
        values = [_scalar(scalars[key]) for key in wanted]
        if rows is not None:
            values += _flat(block, rows)
        cursor = self._connection.execute(text, values)
        found: list[Row] = cursor.fetchall()
        if found:
            places = _instants(block.name, tuple(column[0] for column in cursor.description))
            if places:
                found = _decoded(found, places)
        return found

    def script(self, text: str) -> None:
        for statement in _statements(text):
            self._connection.execute(statement)

    def migration_lock(self) -> None:
        """The write lock that `begin` took keeps everybody else out."""

    def close(self) -> None:
        self._connection.close()


class Sqlite:
    """A SQLite file. A test may give its own clock or its own way to connect."""

    name = "sqlite"
    errors = (sqlite3.Error,)
    single_statements_commit = False

    def __init__(
        self,
        url: DatabaseUrl,
        statement_timeout: float = 5.0,
        clock: Clock = host_clock,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
    ) -> None:
        self._url = url
        self._timeout = statement_timeout
        self._clock = clock
        self._connect = connect

    def connect(self) -> SqliteSession:
        if sqlite3.sqlite_version_info < OLDEST:
            raise StoreError(
                f"SQLite {sqlite3.sqlite_version} is too old: use a Python that is built with 3.35 or newer"
            )
        connection = self._connect(
            self._url.name or ":memory:",
            timeout=self._timeout,
            isolation_level=None,
            check_same_thread=False,  # the lender gives a session to one thread at a time
            cached_statements=256,
        )
        try:
            connection.create_function("after", 2, _after, deterministic=True)
            connection.execute("PRAGMA journal_mode = WAL")
            # FULL: a commit that was answered survives the loss of power, not only the end of the process.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_PAGES_PER_CHECKPOINT}")
            # The rows of a batch are joined in memory, not in a temporary file.
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        except BaseException:
            connection.close()
            raise
        return SqliteSession(connection, self._clock, load("sqlite"))

    def classify(self, error: BaseException) -> Fault:
        """By the error's name, of which SQLite refines some (SQLITE_BUSY_SNAPSHOT); by its text on Python 3.10."""
        if not isinstance(error, sqlite3.Error):
            return Fault.FATAL
        name = getattr(error, "sqlite_errorname", "")
        for known, fault in _FAULTS.items():
            if name.startswith(known):
                return fault
        if not name:
            for text, fault in _TEXTS.items():
                if str(error).startswith(text):
                    return fault
        return Fault.FATAL

    def explain(self, error: BaseException) -> str:
        return " ".join(str(error).split())


@lru_cache(maxsize=512)  # blocks times the usual batch sizes; a text is made again where it is not here
def _prepared(block: Block, count: int) -> tuple[str, tuple[str, ...]]:
    """The text with numbered parameters, and the scalars in their order; the values of the rows come after them."""
    scalars: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "rows":
            return match.group(0)
        if name not in scalars:
            scalars.append(name)
        return f"?{scalars.index(name) + 1}"

    text = _PARAMETER.sub(number, block.text)
    if count:
        width = len(block.columns)
        numbers = itertools.count(len(scalars) + 1)
        values = ",".join("(" + ",".join(f"?{next(numbers)}" for _ in range(width)) + ")" for _ in range(count))
        text = text.replace(":rows", f"VALUES {values}")
    return text, tuple(scalars)


def _flat(block: Block, rows: Rows) -> list[Any]:
    values = list(itertools.chain.from_iterable(rows))
    for at in block.instants:
        column = slice(at, None, len(block.columns))
        values[column] = [text_of(value) for value in values[column]]
    return values


def _scalar(value: Any) -> Any:
    if isinstance(value, datetime):
        return text_of(value)
    return json.dumps(value) if isinstance(value, (list, tuple)) else value


@lru_cache(maxsize=256)  # one per block
def _instants(_block: str, names: tuple[str, ...]) -> tuple[int, ...]:
    return instant_positions(names)


def _decoded(found: list[Row], places: tuple[int, ...]) -> list[Row]:
    columns: list[Any] = list(zip(*found, strict=True))
    for at in places:
        known = {text: instant_of(text) for text in set(columns[at])}  # many rows share an instant, or have none
        columns[at] = [known[text] for text in columns[at]]
    return list(zip(*columns, strict=True))


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; SQLite itself says where one ends."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending
