"""PostgreSQL through psycopg 3. Batches travel as arrays; statements have their own time-outs, and plans by index."""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.string import TextLoader

from celery_sqlbeat.store.faults import READ_ONLY, Fault
from celery_sqlbeat.store.postgresql_chains import AT_ONCE, with_chains
from celery_sqlbeat.store.postgresql_faults import fault_of, is_beyond_the_calendar
from celery_sqlbeat.store.postgresql_patience import Patient
from celery_sqlbeat.store.postgresql_settings import GREETING, of_session, of_transaction
from celery_sqlbeat.store.postgresql_text import CLOCK, arrays, filled, statement
from celery_sqlbeat.store.session import Row, Rows, instant_positions
from celery_sqlbeat.store.statements import Block
from celery_sqlbeat.url import DatabaseUrl

logger = logging.getLogger(__name__)


_MIGRATION_SECONDS = (
    86_400.0  # of large tables may take long, and the others wait for it; the server says if it is gone
)

_FIRST, _LAST = datetime.min.replace(tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc)


class _EdgeLoader(TimestamptzLoader):
    """Reads an instant beyond Python's calendar, such as infinity, as the calendar's edge."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            written = bytes(data)
            return _FIRST if written.startswith(b"-") or written.endswith(b"BC") else _LAST


def _to_utc(found: list[Row], places: Sequence[int]) -> list[Row]:
    """The driver gives instants in a ZoneInfo of UTC; the rest of the house knows one UTC only."""
    if not places:
        return found
    columns: list[Any] = list(zip(*found, strict=True))
    for at in places:
        columns[at] = [None if value is None else value.replace(tzinfo=timezone.utc) for value in columns[at]]
    return list(zip(*columns, strict=True))


def _from_any_zone(found: list[Row], places: Sequence[int]) -> list[Row]:
    """The same where the driver gives them in the time zone of the role, or of the last client."""
    columns: list[Any] = list(zip(*found, strict=True))
    for at in places:
        columns[at] = [None if value is None else value.astimezone(timezone.utc) for value in columns[at]]
    return list(zip(*columns, strict=True))


class PostgresqlSession:
    """One connection."""

    def __init__(self, connection: psycopg.Connection[Row], blocks: Mapping[str, Block], clock: str) -> None:
        self._connection = connection
        self._blocks = blocks
        self._clock = clock
        self._usual_patience: float | None = None
        self._instants: dict[str, tuple[int, ...]] = {}  # by block: which columns of its rows are instants

    def begin(self) -> None:
        self._connection.execute("BEGIN")

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        self._be_impatient()

    def rollback(self) -> None:
        self._be_impatient()
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self._connection.execute("ROLLBACK")

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        return self._found(name, self._execute(name, rows, scalars))

    def ask(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> Callable[[], list[Row]]:
        connection = self._connection
        if not isinstance(connection, Patient):
            return partial(self.fetch, name, rows, **scalars)
        connection.only_sends = True
        try:
            cursor = self._execute(name, rows, scalars)
        finally:
            connection.only_sends = False

        def answer() -> list[Row]:
            connection.wait_for_answer()
            return self._found(name, cursor)

        return answer

    def is_answered(self) -> bool:
        return not isinstance(self._connection, Patient) or self._connection.is_answered()

    def server(self) -> int:
        """Return the number of the server's process that answers now."""
        [(number,)] = self._connection.execute(b"SELECT pg_backend_pid()").fetchall()
        return int(number)

    @property
    def file(self) -> int:
        return self._connection.pgconn.socket

    def _execute(self, name: str, rows: Rows | None, scalars: dict[str, Any]) -> psycopg.Cursor[Row]:
        block = self._blocks[name]
        if rows is not None:
            scalars.update(arrays(block, rows))
        text, names = statement(block, self._clock)
        return self._connection.execute(text, [scalars[name] for name in names])

    def _found(self, name: str, cursor: psycopg.Cursor[Row]) -> list[Row]:
        if cursor.pgresult is None or not cursor.pgresult.nfields:  # the description would be made anew for each asking
            return []
        try:
            found = cursor.fetchall()
        except psycopg.DataError as error:
            if is_beyond_the_calendar(error):
                # Somebody stored such an instant by hand. One row must not stop the others: the next try reads it. Not
                # from the start, since the driver's own loader is faster.
                self._connection.adapters.register_loader("timestamptz", _EdgeLoader)
            raise
        if not found:
            return found
        if name not in self._instants:
            self._instants[name] = instant_positions(tuple(column.name for column in cursor.description or ()))
        return self._in_utc(found, self._instants[name])

    _in_utc = staticmethod(_to_utc)

    def script(self, text: str) -> None:
        self._connection.execute(text)

    def migration_lock(self) -> None:
        if isinstance(self._connection, Patient):
            self._usual_patience = self._connection.patience
            self._connection.patience = _MIGRATION_SECONDS
        # By itself: a statement that runs keeps the time-out that it began with.
        self._connection.execute(b"SET LOCAL statement_timeout = 0")
        self.fetch("migration_lock")

    def _be_impatient(self) -> None:
        """Back to the usual patience after a migration."""
        if self._usual_patience is not None and isinstance(self._connection, Patient):
            self._connection.patience, self._usual_patience = self._usual_patience, None

    def close(self) -> None:
        self._connection.close()


class PooledSession(PostgresqlSession):
    """A session behind a pooler, which gives each transaction the server connection that is free.

    Nothing of ours may stay there: what is set ends with its transaction, and no statement is prepared under a name.
    """

    def __init__(
        self, connection: psycopg.Connection[Row], blocks: Mapping[str, Block], clock: str, settings: bytes
    ) -> None:
        super().__init__(connection, blocks, clock)
        connection.prepare_threshold = None
        self._settings = settings

    def begin(self) -> None:
        self._connection.execute(b"BEGIN; " + self._settings)

    def _execute(self, name: str, rows: Rows | None, scalars: dict[str, Any]) -> psycopg.Cursor[Row]:
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            return super()._execute(name, rows, scalars)
        # Sent as one message, both are one transaction and cost one round trip; such a message has no parameters.
        block = self._blocks[name]
        if rows is not None:
            scalars.update(arrays(block, rows))
        return self._connection.execute(self._settings + self.filled(block, scalars))

    def filled(self, block: Block, scalars: Mapping[str, Any]) -> bytes:
        """Return a block with its values in the text."""
        text, names = statement(block, self._clock)
        return filled(text, [sql.Literal(scalars[name]).as_bytes(self._connection) for name in names])

    def _found(self, name: str, cursor: psycopg.Cursor[Row]) -> list[Row]:
        while cursor.nextset():
            pass
        return super()._found(name, cursor)

    _in_utc = staticmethod(_from_any_zone)


class Postgresql:
    """A PostgreSQL database. A test may give another expression for the server's clock."""

    name = "postgresql"
    errors = (psycopg.Error,)
    single_statements_commit = True
    answers_later = True
    sessions_survive_fork = True
    at_once = AT_ONCE

    def __init__(
        self,
        url: DatabaseUrl,
        statement_timeout: float = 5.0,
        clock: str = CLOCK,
        connect: Callable[..., psycopg.Connection[Row]] = Patient.connect,
    ) -> None:
        self._url = url
        self._timeout = statement_timeout
        self._clock = clock
        self._connect = connect

    def connect(self) -> PostgresqlSession:
        milliseconds, where = max(1, round(self._timeout * 1000)), self._url.libpq()
        connection = self._connect(
            **{
                # Of several hosts the one that can be written to. Of one, the server itself says so in the greeting.
                "target_session_attrs": "read-write" if "," in where.get("host", "") else "any",
                "connect_timeout": max(2, round(self._timeout)),  # whole seconds; libpq takes 1 for 2
                # A connection that lost its other end is noticed about when a statement would have timed out.
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
            return PostgresqlSession(connection, with_chains(), self._clock)
        return PooledSession(connection, with_chains(), self._clock, of_transaction(milliseconds))

    def pooling(self) -> str | None:
        """What a pooler before the server gives its clients; None where there is none."""
        from celery_sqlbeat.store.postgresql_pooler import pooling

        return pooling(self.connect)

    def is_spent(self, session: PostgresqlSession) -> bool:
        return False

    def classify(self, error: BaseException) -> Fault:
        return fault_of(error) if isinstance(error, psycopg.Error) else Fault.FATAL

    def explain(self, error: BaseException) -> str:
        return self._url.mask(" ".join(str(error).split()))


class StandbyOnly(psycopg.OperationalError):
    """The server can only be read."""


def _read_only(connection: psycopg.Connection[Row]) -> str:
    return (
        f"the server {connection.info.host or 'here'}, port {connection.info.port}, {READ_ONLY}: it is a standby, or "
        "its role or database is read-only"
    )
