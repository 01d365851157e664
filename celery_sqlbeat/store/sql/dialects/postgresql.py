"""PostgreSQL through psycopg 3: how to connect, what is between us and the server, and a session.

Batches travel as arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.string import TextLoader

from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.store.faults import READ_ONLY, Fault
from celery_sqlbeat.store.sql.dialects.postgresql_connection import (
    GREETING,
    Patient,
    fault_of,
    is_beyond_the_calendar,
    of_session,
    of_transaction,
)
from celery_sqlbeat.store.sql.dialects.postgresql_text import (
    CLOCK,
    EdgeLoader,
    filled,
    from_any_zone,
    to_utc,
    values_of,
)
from celery_sqlbeat.store.sql.session import Block, Call, Row, Rows, load_with_clock

TRANSACTIONS, SESSIONS = "transactions", "sessions"
_PROBES = 5  # where server connections are given in turn, not every probe meets another one
# A migration of large tables may take long, and the others wait for it; the server says if it is
# gone.
_MIGRATION_SECONDS = 86_400.0


class PostgresqlSession:
    """A session on a connection of our own."""

    def __init__(self, connection: psycopg.Connection[Row], blocks: Mapping[str, Block]) -> None:
        self._connection = connection
        self._blocks = blocks
        self._usual_patience: float | None = None
        self._begins = False  # a transaction whose BEGIN is not sent yet

    def begin(self) -> None:
        """Begin a transaction, with the first statement in it."""
        self._begins = True

    def commit(self) -> None:
        """Commit the transaction."""
        if not self._begins:
            self._connection.execute("COMMIT")
        self._begins = False
        self._be_impatient()

    def rollback(self) -> None:
        """Roll back the transaction, if there is one."""
        self._begins = False
        self._be_impatient()
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self._connection.execute("ROLLBACK")

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        """Run a block and return its rows."""
        if self._begins:
            return self.fetch_together([Call(name, rows, scalars)])[0]
        return self._rows_of(name, self._execute(name, rows, scalars))

    def fetch_together(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Send blocks one after the other, and wait once."""
        with self._together():
            self._send_begin()
            cursors = [self._execute(call.block, call.rows, dict(call.scalars)) for call in calls]
        return [self._rows_of(call.block, cursor) for call, cursor in zip(calls, cursors, strict=True)]

    def _send_begin(self) -> None:
        if self._begins:
            self._begins = False
            self._connection.execute("BEGIN")

    def _together(self) -> AbstractContextManager[object]:
        """Let statements be sent without waiting, where the driver's library can."""
        return self._connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext()

    def server(self) -> int:
        """Return the number of the server's process that answers now."""
        [(number,)] = self._connection.execute(b"SELECT pg_backend_pid()").fetchall()
        return int(number)

    def _execute(self, name: str, rows: Rows | None, scalars: dict[str, Any]) -> psycopg.Cursor[Row]:
        block = self._blocks[name]
        return self._connection.execute(block.encoded, values_of(block, rows, scalars))

    def _rows_of(self, name: str, cursor: psycopg.Cursor[Row]) -> list[Row]:
        if cursor.pgresult is None or not cursor.pgresult.nfields:  # the description would be made anew for each asking
            return []
        try:
            rows = cursor.fetchall()
        except psycopg.DataError as error:
            if is_beyond_the_calendar(error):
                # Somebody stored such an instant by hand. One row must not stop the others: the
                # next try reads it. Not from the start, since the driver's own loader is faster.
                self._connection.adapters.register_loader("timestamptz", EdgeLoader)
            raise
        return self._in_utc(rows, self._blocks[name].returns.instants) if rows else rows

    _in_utc = staticmethod(to_utc)

    def script(self, text: str) -> None:
        """Run a text of several statements."""
        self._send_begin()
        self._connection.execute(text)

    def migration_lock(self) -> None:
        """Wait for the lock that lets one process migrate at a time."""
        if isinstance(self._connection, Patient):
            self._usual_patience = self._connection.patience
            self._connection.patience = _MIGRATION_SECONDS
        self._send_begin()
        # By itself: a statement that runs keeps the time-out that it began with.
        self._connection.execute(b"SET LOCAL statement_timeout = 0")
        self.fetch("migration_lock")

    def _be_impatient(self) -> None:
        """Restore the usual patience after a migration."""
        if self._usual_patience is not None and isinstance(self._connection, Patient):
            self._connection.patience, self._usual_patience = self._usual_patience, None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class PooledSession(PostgresqlSession):
    """A session behind a pooler, which gives each transaction a free server connection.

    No setting and no prepared statement may stay there: settings end with their transaction.
    """

    def __init__(self, connection: psycopg.Connection[Row], blocks: Mapping[str, Block], settings: bytes) -> None:
        super().__init__(connection, blocks)
        connection.prepare_threshold = None
        self._settings = settings

    def begin(self) -> None:
        """Begin a transaction with its settings."""
        self._connection.execute(b"BEGIN; " + self._settings)

    def _execute(self, name: str, rows: Rows | None, scalars: dict[str, Any]) -> psycopg.Cursor[Row]:
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            return super()._execute(name, rows, scalars)
        # Sent as one message, both are one transaction and cost one round trip; such a message has
        # no parameters.
        return self._connection.execute(self._settings + self.filled(self._blocks[name], rows, scalars))

    def _together(self) -> AbstractContextManager[object]:
        return nullcontext()

    def filled(self, block: Block, rows: Rows | None, scalars: Mapping[str, Any]) -> bytes:
        """Return a block with its values in the text."""
        values = values_of(block, rows, scalars)
        return filled(block.encoded, [sql.Literal(value).as_bytes(self._connection) for value in values])

    def _rows_of(self, name: str, cursor: psycopg.Cursor[Row]) -> list[Row]:
        while cursor.nextset():
            pass
        return super()._rows_of(name, cursor)

    _in_utc = staticmethod(from_any_zone)


class Postgresql:
    """A PostgreSQL database. A test may give another expression for the server's clock."""

    name = "postgresql"
    errors = (psycopg.Error,)
    single_statements_commit = True
    sessions_survive_fork = True
    # What other databases do in a transaction of several blocks is one statement. It costs one
    # round trip: no BEGIN, no COMMIT.
    at_once = frozenset({"start_at_once", "finish_at_once", "release_at_once", "submit_at_once"})

    def __init__(
        self,
        url: DatabaseUrl,
        statement_timeout: float = 5.0,
        clock: str = CLOCK,
        connect: Callable[..., psycopg.Connection[Row]] = Patient.connect,
    ) -> None:
        self._url = url
        self._timeout = statement_timeout
        self.blocks = load_with_clock(self.name, CLOCK, clock)
        self._connect = connect

    def connect(self) -> PostgresqlSession:
        """Open a session, or raise the driver's error."""
        milliseconds, where = max(1, round(self._timeout * 1000)), self._url.libpq()
        connection = self._connect(
            **{
                # Of several hosts the one that can be written to. Of one, the server itself says so
                # in the greeting.
                "target_session_attrs": "read-write" if "," in where.get("host", "") else "any",
                "connect_timeout": max(2, round(self._timeout)),  # whole seconds; libpq takes 1 for 2
                # A connection that lost its other end is noticed about when a statement would have
                # timed out.
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": milliseconds + 1000,
                **where,
            },
            autocommit=True,
            cursor_factory=psycopg.RawCursor,
        )
        if isinstance(connection, Patient):
            connection.patience = self._timeout + 1.0  # by then the server should have cancelled the statement
        try:
            connection.adapters.register_loader("uuid", TextLoader)
            settings = of_session(milliseconds, connection.info.get_parameters().get("application_name"))
            said = connection.execute(
                GREETING, [list(settings), list(settings.values()), connection.info.backend_pid], prepare=False
            )
            [(is_ours, is_read_only, _)] = said.fetchall()
            if is_read_only:
                raise StandbyOnly(_read_only(connection))
        except BaseException:
            connection.close()
            raise
        if is_ours:
            return PostgresqlSession(connection, self.blocks)
        return PooledSession(connection, self.blocks, of_transaction(milliseconds))

    def pooling(self) -> str | None:
        """Return what a pooler before the server gives its clients; None where there is none."""
        return pooling(self.connect)

    def is_spent(self, session: PostgresqlSession) -> bool:
        """Return whether a working session must not be used again."""
        return False

    def classify(self, error: BaseException) -> Fault:
        """Say what an error of the driver means."""
        return fault_of(error) if isinstance(error, psycopg.Error) else Fault.FATAL

    def explain(self, error: BaseException) -> str:
        """Return the error's text in one line, without secrets."""
        return self._url.mask(" ".join(str(error).split()))


class StandbyOnly(psycopg.OperationalError):
    """The server can only be read."""


def _read_only(connection: psycopg.Connection[Row]) -> str:
    return (
        f"the server {connection.info.host or 'here'}, port {connection.info.port}, {READ_ONLY}: it is a standby, or "
        "its role or database is read-only"
    )


def pooling(connect: Callable[[], PostgresqlSession]) -> str | None:
    """Return what a pooler gives its clients: transactions if proven, else sessions, or None.

    A client of a session pooler keeps its server connection, and nobody else gets it meanwhile.
    """
    with ExitStack() as stack:
        first = stack.enter_context(closing(connect()))
        if not isinstance(first, PooledSession):
            return None
        own = first.server()
        try:
            second = stack.enter_context(closing(connect()))
            for _ in range(_PROBES):
                second.begin()
                if second.server() == own or first.server() != own:
                    return TRANSACTIONS
                second.rollback()
        except psycopg.OperationalError:  # no further server connection is free
            pass
        return SESSIONS
