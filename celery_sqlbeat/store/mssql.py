"""SQL Server and Azure SQL through pyodbc. A block is one batch; its rows travel as one JSON parameter."""

import contextlib
import math
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

import pyodbc

from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.mssql_batch import CLOCK, batch_of, rows_as_json, scalar, split_batches
from celery_sqlbeat.store.mssql_driver import connection_string, find_driver
from celery_sqlbeat.store.mssql_faults import fault_of
from celery_sqlbeat.store.session import Row, Rows
from celery_sqlbeat.store.statements import Block, load
from celery_sqlbeat.url import DatabaseUrl

# The driver manager would hand out connections that a child process inherited, or whose access token has ended.
pyodbc.pooling = False

_MIGRATION_LOCK_MS = 600_000  # a migration of large tables may take long, and the others wait for it


class MssqlSession:
    """One connection, in autocommit mode. Transactions are begun and ended by statements.

    The driver's own way, turning autocommit off, begins one with whatever statement comes next, a read included, and
    costs a round trip at each change; a block that only reads or that is one statement needs none.
    """

    def __init__(self, connection: pyodbc.Connection, blocks: Mapping[str, Block], clock: str, lock_ms: int) -> None:
        self._connection = connection
        self._blocks = blocks
        self._clock = clock
        self._lock_ms = lock_ms
        self._timeout = connection.timeout
        self._control = connection.cursor()
        # A cursor of its own for each block keeps its prepared statement on the server.
        self._cursors: dict[str, pyodbc.Cursor] = {}

    def begin(self) -> None:
        self._control.execute("BEGIN TRANSACTION")

    def commit(self) -> None:
        self._control.execute("COMMIT TRANSACTION")
        self._be_impatient()

    def rollback(self) -> None:
        # After most errors XACT_ABORT has done it already.
        self._control.execute("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")
        self._be_impatient()

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        batch = batch_of(self._blocks[name], self._clock)
        if rows is not None:
            scalars["rows"] = rows_as_json(rows)
        cursor = self._cursors.get(name)
        if cursor is None:
            cursor = self._cursors[name] = self._connection.cursor()
            cursor.setinputsizes(batch.sizes)
        cursor.execute(batch.text, [scalar(scalars[key]) for key in batch.names])
        return _result(cursor)

    def script(self, text: str) -> None:
        for batch in split_batches(text):
            _result(self._connection.execute(batch))

    def migration_lock(self) -> None:
        self._connection.timeout = 0
        self._control.execute(f"SET LOCK_TIMEOUT {_MIGRATION_LOCK_MS}")
        self.fetch("migration_lock")

    def close(self) -> None:
        with contextlib.suppress(pyodbc.Error):
            self._connection.close()

    def _be_impatient(self) -> None:
        """Back to the ordinary time-outs after a migration; a cursor keeps the one that it was made with."""
        if self._connection.timeout != self._timeout:
            self._cursors.clear()
            self._connection.timeout = self._timeout
            self._control.execute(f"SET LOCK_TIMEOUT {self._lock_ms}")


class Mssql:
    """A SQL Server database. A test may give another expression for the server's clock, or its own way to connect.

    `attrs_before` gives what pyodbc sets before it connects, such as an access token; it is asked for each connection.
    """

    name = "mssql"
    errors = (pyodbc.Error,)
    single_statements_commit = True

    def __init__(
        self,
        url: DatabaseUrl,
        statement_timeout: float = 5.0,
        clock: str = CLOCK,
        connect: Callable[..., pyodbc.Connection] = pyodbc.connect,
        attrs_before: Callable[[], dict[int, Any]] = dict,
    ) -> None:
        self._url = url
        self._timeout = statement_timeout
        self._clock = clock
        self._connect = connect
        self._attrs_before = attrs_before

    def connect(self) -> MssqlSession:
        seconds = max(1, math.ceil(self._timeout))  # ODBC counts in whole seconds
        lock_ms = max(1, round(self._timeout * 500))
        connection = self._connect(
            connection_string(self._url, lambda: find_driver(pyodbc.drivers)),
            autocommit=True,
            timeout=seconds,
            attrs_before=self._attrs_before(),
        )
        try:
            connection.timeout = seconds
            for kind in (pyodbc.SQL_WCHAR, pyodbc.SQL_WVARCHAR, pyodbc.SQL_WLONGVARCHAR):
                connection.add_output_converter(kind, _text)
            connection.add_output_converter(pyodbc.SQL_GUID, _id)
            connection.add_output_converter(pyodbc.SQL_BIT, _bit)
            # What filtered indexes and computed columns need of every writer, whatever a data source says; one batch,
            # so that a new connection costs one round trip.
            connection.execute(
                "SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT, CONCAT_NULL_YIELDS_NULL ON; "
                "SET QUOTED_IDENTIFIER, XACT_ABORT, NOCOUNT ON; SET NUMERIC_ROUNDABORT, IMPLICIT_TRANSACTIONS OFF; "
                f"SET LOCK_TIMEOUT {lock_ms}; SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
            )
            return MssqlSession(connection, load("mssql"), self._clock, lock_ms)
        except BaseException:
            connection.close()
            raise

    def classify(self, error: BaseException) -> Fault:
        """By the native number in the error's text, then by SQLSTATE; never by the class of the exception."""
        if not isinstance(error, pyodbc.Error):
            return Fault.FATAL
        state, text = ("", *map(str, error.args))[-2:] if error.args else ("", "")
        return fault_of(state, text)

    def explain(self, error: BaseException) -> str:
        return self._url.mask(" ".join(str(error.args[-1] if error.args else error).split()))


def _result(cursor: pyodbc.Cursor) -> list[Row]:
    """The rows of the one result, wherever it is. An error after it shows only when all of the answer was read."""
    found: list[Row] = []
    while True:
        if cursor.description is not None:
            found += _in_utc(cursor)
        if not cursor.nextset():
            return found


def _in_utc(cursor: pyodbc.Cursor) -> list[Row]:
    instants = [at for at, column in enumerate(cursor.description) if column[1] is datetime]
    columns: list[Any] = list(zip(*cursor.fetchall(), strict=True))
    if columns:
        for at in instants:
            columns[at] = [None if value is None else value.replace(tzinfo=timezone.utc) for value in columns[at]]
    return list(zip(*columns, strict=True))


def _id(raw: bytes) -> str:
    return str(UUID(bytes_le=raw))


def _bit(raw: bytes) -> int:
    return raw[0]


def _text(raw: bytes) -> str:
    # Half a character, which NCHAR can write, must not make a whole batch unreadable.
    return raw.decode("utf-16-le", "replace")
