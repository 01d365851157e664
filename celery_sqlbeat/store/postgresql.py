"""PostgreSQL through psycopg 3. Batches travel as arrays; a session has its own time-outs and plans by index."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any, NamedTuple

import psycopg
from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.string import TextLoader

from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.postgresql_chains import AT_ONCE, with_chains
from celery_sqlbeat.store.postgresql_faults import fault_of, is_beyond_the_calendar
from celery_sqlbeat.store.postgresql_patience import Patient
from celery_sqlbeat.store.session import Row, Rows, instant_positions
from celery_sqlbeat.store.statements import Block
from celery_sqlbeat.url import DatabaseUrl

logger = logging.getLogger(__name__)

CLOCK = "statement_timestamp()"
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT = re.compile(r"--.*")
_SPECIAL = str.maketrans({"\\": "\\\\", '"': '\\"', "\0": "\ufffd"})  # in an array's text; PostgreSQL has no NUL

_FIRST, _LAST = datetime.min.replace(tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc)


class _EdgeLoader(TimestamptzLoader):
    """Reads an instant beyond Python's calendar, such as infinity, as the calendar's edge."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            written = bytes(data)
            return _FIRST if written.startswith(b"-") or written.endswith(b"BC") else _LAST


class PostgresqlSession:
    """One connection."""

    def __init__(self, connection: psycopg.Connection[Row], blocks: Mapping[str, Block], clock: str) -> None:
        self._connection = connection
        self._blocks = blocks
        self._clock = clock
        self._instants: dict[str, tuple[int, ...]] = {}  # by block: which columns of its rows are instants

    def begin(self) -> None:
        self._connection.execute("BEGIN")

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
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

    @property
    def file(self) -> int:
        return self._connection.pgconn.socket

    def _execute(self, name: str, rows: Rows | None, scalars: dict[str, Any]) -> psycopg.Cursor[Row]:
        block = self._blocks[name]
        if rows is not None:
            scalars.update(_arrays(block, rows))
        text, names = _statement(block, self._clock)
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
        return _in_utc(found, self._instants[name])

    def script(self, text: str) -> None:
        self._connection.execute(text)

    def migration_lock(self) -> None:
        self.fetch("migration_lock")

    def close(self) -> None:
        self._connection.close()


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
        milliseconds = max(1, round(self._timeout * 1000))
        connection = self._connect(
            **{
                "connect_timeout": max(2, round(self._timeout)),  # whole seconds; libpq takes 1 for 2
                "application_name": "celery-sqlbeat",
                # A connection that lost its other end is noticed about when a statement would have timed out.
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": milliseconds + 1000,
                **self._url.libpq(),
            },
            autocommit=True,
            cursor_factory=psycopg.RawCursor,
        )
        if isinstance(connection, Patient):
            connection.patience = self._timeout + 1.0  # by then the server should have cancelled the statement
        try:
            connection.adapters.register_loader("uuid", TextLoader)
            settings = _settings(milliseconds)
            # One statement for all, so that a new connection costs one round trip.
            connection.execute(
                "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS s (name, value)",
                [list(settings), list(settings.values())],
            )
        except BaseException:
            connection.close()
            raise
        return PostgresqlSession(connection, with_chains(), self._clock)

    def is_spent(self, session: PostgresqlSession) -> bool:
        return False

    def classify(self, error: BaseException) -> Fault:
        return fault_of(error) if isinstance(error, psycopg.Error) else Fault.FATAL

    def explain(self, error: BaseException) -> str:
        return self._url.mask(" ".join(str(error).split()))


def _settings(milliseconds: int) -> dict[str, str]:
    """What a new session is told, of statements that may take so long.

    Our statements go by key and in batches: without statistics (new tables) the planner would read whole tables, lock
    in their order, and sort all that is due before it takes the first of it.
    """
    return {
        "timezone": "UTC",
        "statement_timeout": str(milliseconds),
        "lock_timeout": str(max(1, milliseconds // 2)),
        "idle_in_transaction_session_timeout": str(4 * milliseconds),
        # The batches are arrays, of which a plan made for one of them knows nothing either.
        "plan_cache_mode": "force_generic_plan",
        "jit": "off",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_sort": "off",
    }


class _Statement(NamedTuple):
    """A block as the server knows it: the driver need not read it, and has no limit to what it remembers."""

    text: bytes
    names: tuple[str, ...]
    """Of the values for `$1`, `$2` and so on."""


@lru_cache(maxsize=1024)  # the blocks, times the clocks of tests
def _statement(block: Block, clock: str) -> _Statement:
    text = " ".join(_COMMENT.sub("", block.text).split())
    if block.columns:
        arrays = ", ".join(f":{name}__rows::{kind}[]" for name, kind in zip(block.columns, block.types, strict=True))
        text = text.replace(":rows", f"SELECT * FROM unnest({arrays})")  # noqa: S608 - names from our own files
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
    return _Statement(numbered.replace(CLOCK, clock).encode(), names)


def _arrays(block: Block, rows: Rows) -> dict[str, str]:
    columns = zip(*rows, strict=True)
    return {
        f"{name}__rows": "{" + ",".join(_elements(kind, column)) + "}"
        for name, kind, column in zip(block.columns, block.types, columns, strict=True)
    }


def _elements(kind: str, column: Sequence[Any]) -> list[str]:
    if kind == "timestamptz":
        return ["NULL" if value is None else value.isoformat() for value in column]
    if kind == "text":
        return ["NULL" if value is None else f'"{value.translate(_SPECIAL)}"' for value in column]
    if kind == "smallint":
        return ["NULL" if value is None else str(int(value)) for value in column]
    return ["NULL" if value is None else str(value) for value in column]


def _in_utc(found: list[Row], places: Sequence[int]) -> list[Row]:
    """The driver gives instants in a ZoneInfo of UTC; the rest of the house knows one UTC only."""
    if not places:
        return found
    columns: list[Any] = list(zip(*found, strict=True))
    for at in places:
        columns[at] = [None if value is None else value.replace(tzinfo=timezone.utc) for value in columns[at]]
    return list(zip(*columns, strict=True))
