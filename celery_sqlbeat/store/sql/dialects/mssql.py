"""SQL Server and Azure SQL through pyodbc.

A block is one batch; its rows travel as one JSON parameter.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.errors import DriverMissing, StoreError
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.dialects.mssql_driver import (
    SQL_BIT,
    SQL_GUID,
    SQL_WCHAR,
    SQL_WLONGVARCHAR,
    SQL_WVARCHAR,
    connection_string,
    find_driver,
    load_pyodbc,
)
from celery_sqlbeat.store.sql.dialects.mssql_faults import fault_of, is_no_driver, is_refused_login
from celery_sqlbeat.store.sql.dialects.mssql_probe import PortRefused, Probe, no_probe, probe
from celery_sqlbeat.store.sql.dialects.mssql_text import (
    CLOCK,
    rows_as_json,
    scalar,
    sizes_of,
    split_batches,
)
from celery_sqlbeat.store.sql.dialects.mssql_tokens import Token, Tokens, TokenUnavailable, identity_of, tokens_for
from celery_sqlbeat.store.sql.session import Block, Call, Row, Rows, load_with_clock

_NO_USER = "(with a new access token: is this identity a user of the database? grants.sql shows how it becomes one)"
_MIGRATION_LOCK_MS = 600_000  # a migration of large tables may take long, and the others wait for it


class MssqlSession:
    """One connection, in autocommit mode. Transactions are begun and ended by statements.

    The driver's own way, turning autocommit off, begins one with whatever statement comes next, a
    read included, and costs a round trip at each change; a block that only reads or that is one
    statement needs none.
    """

    def __init__(
        self,
        connection: Any,
        blocks: Mapping[str, Block],
        lock_ms: int,
        null: Any = None,
        token: Token | None = None,
    ) -> None:
        # For None pyodbc would ask the server what type each marker has, although setinputsizes has
        # told it: one more round trip, and where the server cannot say, an error there that
        # XACT_ABORT answers by ending the transaction.
        self._null = null
        self.token = token  # what it was logged in with
        self._connection = connection
        self._blocks = blocks
        self._lock_ms = lock_ms
        self._timeout = connection.timeout
        self._control = connection.cursor()
        # A cursor of its own for each block keeps its prepared statement on the server.
        self._cursors: dict[str, Any] = {}

    def begin(self) -> None:
        """Begin a transaction that writes."""
        self._control.execute("BEGIN TRANSACTION")

    def commit(self) -> None:
        """Commit it. An error here may mean that it did commit."""
        self._control.execute("COMMIT TRANSACTION")
        self._be_impatient()

    def rollback(self) -> None:
        """Undo it."""
        # After most errors XACT_ABORT has done it already.
        self._control.execute("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")
        self._be_impatient()

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        """Run a named block and return what it gives; instants are aware datetimes in UTC."""
        block = self._blocks[name]
        values = [scalar(scalars[key]) for key in block.parameters.names]
        if rows is not None:
            values.append(rows_as_json(rows))
        cursor = self._cursors.get(name)
        if cursor is None:
            cursor = self._cursors[name] = self._connection.cursor()
            cursor.setinputsizes(sizes_of(block))
        cursor.execute(block.text, [self._null if value is None else value for value in values])
        return _result(cursor)

    def fetch_together(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run blocks one after the other."""
        return [self.fetch(call.block, call.rows, **call.scalars) for call in calls]

    def script(self, text: str) -> None:
        """Run a script of several statements, for migrations."""
        for batch in split_batches(text):
            _result(self._connection.execute(batch))

    def migration_lock(self) -> None:
        """Keep every other migration out until the transaction ends."""
        self._connection.timeout = 0
        self._control.execute(f"SET LOCK_TIMEOUT {_MIGRATION_LOCK_MS}")
        self.fetch("migration_lock")

    def close(self) -> None:
        """Close the connection; never raises."""
        with contextlib.suppress(Exception):  # whatever is wrong with it, nobody will use it again
            self._connection.close()

    def _be_impatient(self) -> None:
        """Restore the ordinary time-outs after a migration; a cursor keeps that of its making."""
        if self._connection.timeout != self._timeout:
            self._cursors.clear()
            self._connection.timeout = self._timeout
            self._control.execute(f"SET LOCK_TIMEOUT {self._lock_ms}")


class Mssql:
    """A SQL Server database.

    Where the address brings no login, a token does; no connection outlives its token.

    A test may give another expression for the server's clock, something like pyodbc, tokens, or a
    probe of the port; something like pyodbc has no port.
    """

    name = "mssql"
    single_statements_commit = True
    sessions_survive_fork = True
    # What other databases do in a transaction of several blocks is one batch. It costs one round
    # trip, and no process can be stopped in the middle with its rows locked.
    at_once = frozenset({"start_at_once", "finish_at_once"})

    def __init__(
        self,
        url: DatabaseUrl,
        statement_timeout: float = 5.0,
        clock: str = CLOCK,
        pyodbc: Any = None,
        tokens: Tokens | None = None,
        port_probe: Probe | None = None,
    ) -> None:
        self._url = url
        self._probe = port_probe or (probe if pyodbc is None else no_probe)
        self._timeout = statement_timeout
        self.blocks = load_with_clock(self.name, CLOCK, clock)
        self._pyodbc = pyodbc or load_pyodbc()
        identity = identity_of(url)
        self._tokens = tokens_for(identity) if identity is not None and tokens is None else tokens

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """What the driver raises; every other error is passed on as it is."""
        return (self._pyodbc.Error, TokenUnavailable, PortRefused)

    def connect(self) -> MssqlSession:
        """Open a session, or raise the driver's error."""
        seconds = max(1, math.ceil(self._timeout))  # ODBC counts in whole seconds
        lock_ms = max(1, round(self._timeout * 500))
        self._probe(self._url, self._timeout)
        token = None if self._tokens is None else self._tokens.current(self._timeout)
        connection = self._log_in(seconds, token)
        try:
            connection.timeout = seconds
            for kind in (SQL_WCHAR, SQL_WVARCHAR, SQL_WLONGVARCHAR):
                connection.add_output_converter(kind, _text)
            connection.add_output_converter(SQL_GUID, _id)
            connection.add_output_converter(SQL_BIT, _bit)
            connection.execute(_session(lock_ms))
            return MssqlSession(connection, self.blocks, lock_ms, self._pyodbc.BinaryNull, token)
        except BaseException:
            connection.close()
            raise

    def is_spent(self, session: MssqlSession) -> bool:
        """Return whether the access token of a session is about to end."""
        return self._tokens is not None and session.token is not None and self._tokens.is_retired(session.token)

    def _log_in(self, seconds: int, token: Token | None) -> Any:
        try:
            return self._pyodbc.connect(
                connection_string(self._url, lambda: find_driver(self._pyodbc.drivers)),
                autocommit=True,
                timeout=seconds,
                attrs_before={} if token is None else token.attributes(),
            )
        except self._pyodbc.Error as error:
            # The server says the same of a token that has ended and of one whose owner may not come
            # in.
            if token is not None and self._tokens is not None and is_refused_login(*_state_and_text(error)):
                if self._tokens.refused(token):
                    raise TokenUnavailable("the server refused the access token; a new one is asked for") from error
                raise StoreError(f"{self.explain(error)} {_NO_USER}") from error
            if is_no_driver(*_state_and_text(error)):
                there = ", ".join(self._pyodbc.drivers()) or "none"
                raise DriverMissing(
                    f"{self.explain(error)}; the driver manager knows these drivers ({there}): leave Driver= out of "
                    "sqlbeat_database_url, and the driver of the extra mssql is found"
                ) from error
            raise

    def classify(self, error: BaseException) -> Fault:
        """Classify by the native number in the text, then by SQLSTATE; never by the class."""
        if isinstance(error, (TokenUnavailable, PortRefused)):
            return Fault.LOST
        if not isinstance(error, self._pyodbc.Error):
            return Fault.FATAL
        return fault_of(*_state_and_text(error))

    def explain(self, error: BaseException) -> str:
        """Return the error's text in one line, without secrets."""
        return self._url.mask(" ".join(str(error.args[-1] if error.args else error).split()))


def _session(lock_ms: int) -> str:
    """Return the settings of a new connection as one batch, so that they cost one round trip.

    Filtered indexes and computed columns need the first of it of every writer, whatever a data
    source says.
    """
    on = "ANSI_NULLS ANSI_PADDING ANSI_WARNINGS ARITHABORT CONCAT_NULL_YIELDS_NULL QUOTED_IDENTIFIER XACT_ABORT NOCOUNT"
    off = "NUMERIC_ROUNDABORT IMPLICIT_TRANSACTIONS"
    settings = [f"SET {name} ON" for name in on.split()] + [f"SET {name} OFF" for name in off.split()]
    return "; ".join([*settings, f"SET LOCK_TIMEOUT {lock_ms}", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"])


def _state_and_text(error: BaseException) -> tuple[str, str]:
    *_, state, text = ("", "", *map(str, error.args))
    return state, text


def _result(cursor: Any) -> list[Row]:
    """Return the rows of the one result.

    An error after it shows only once all of the answer is read.
    """
    rows: list[Row] = []
    while True:
        if cursor.description is not None:
            rows += _in_utc(cursor)
        if not cursor.nextset():
            return rows


def _in_utc(cursor: Any) -> list[Row]:
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
