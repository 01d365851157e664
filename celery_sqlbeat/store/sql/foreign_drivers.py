"""Run a block on a connection that is not ours, in each driver: the text and values are its own.

Nothing stays on the connection but SQLite's function `sqlbeat_after`: no setting, no loader, no
cursor. Nothing is committed or rolled back, and what a driver raises is passed on as it is.
"""

import re
import sqlite3
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, NamedTuple

from celery_sqlbeat.store.sql.dialects.sqlite_values import after, flat, instant_of, scalar, text_of, with_rows
from celery_sqlbeat.store.sql.session import Block, Clock, Row, Rows

_AFTER, _OUR_AFTER = re.compile(r"\bafter\("), "sqlbeat_after("  # the shop may have an `after` of its own
_BETWEEN = re.compile(r";\n\s*")
_NUMBER = re.compile(r"\((\d{1,6})\)")


class Driver(NamedTuple):
    """What differs between drivers."""

    database: str
    """The kind of its databases, as `sql/` names the folder."""
    run: Callable[[Any, Block, Rows | None, Mapping[str, Any], Clock], list[Any]]
    is_closed: Callable[[Any], bool]
    codes: Callable[[BaseException], tuple[str, ...]]
    """How the driver and its server name an error."""


def typed(block: Block, rows: list[Any]) -> list[Row]:
    """Read rows by the kinds of their columns, whatever the connection makes of values."""
    kinds = block.returns.kinds
    given = (row.values() if isinstance(row, Mapping) else row for row in rows)
    return [tuple(map(_typed, kinds, row)) for row in given]


def _typed(kind: str, value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value).decode(errors="replace")
    if value is None:
        return None
    if kind == "instant":
        instant = instant_of(str(value)) if not isinstance(value, datetime) else value
        naive = isinstance(instant, datetime) and instant.tzinfo is None
        return instant.replace(tzinfo=timezone.utc) if naive else instant.astimezone(timezone.utc)
    if kind in ("flag", "int", "bigint"):
        return int(value)
    if kind == "seconds":
        return float(value)
    return str(value).lower() if kind == "id" else str(value)


def _psycopg(connection: Any, block: Block, rows: Rows | None, scalars: Mapping[str, Any], _: Clock) -> list[Any]:
    from psycopg import RawCursor
    from psycopg.rows import tuple_row
    from psycopg.types.string import TextLoader

    from celery_sqlbeat.store.sql.dialects.postgresql_text import values_of

    with RawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_loader("uuid", TextLoader)
        cursor.execute(block.encoded, values_of(block, rows, scalars))
        return cursor.fetchall() if cursor.description else []


def _psycopg2(connection: Any, block: Block, rows: Rows | None, scalars: Mapping[str, Any], _: Clock) -> list[Any]:
    from celery_sqlbeat.store.sql.dialects.postgresql_text import filled, values_of

    # Of that module, since the connection's own kind may give rows of another shape.
    with connection.cursor(cursor_factory=sys.modules["psycopg2"].extensions.cursor) as cursor:
        values = [cursor.mogrify("%s", (value,)) for value in values_of(block, rows, scalars)]
        cursor.execute(filled(block.encoded, values))
        return list(cursor.fetchall()) if cursor.description else []


def _sqlite(connection: Any, block: Block, rows: Rows | None, scalars: Mapping[str, Any], clock: Clock) -> list[Any]:
    given = {**scalars, "now": text_of(clock())}
    text, values = _AFTER.sub(_OUR_AFTER, block.text), [scalar(given[key]) for key in block.parameters.names]
    if rows is not None:
        text = with_rows(text, len(values), len(block.rows.names), len(rows))
        values += flat(block, rows)
    cursor = connection.cursor()
    cursor.row_factory = None
    if _OUR_AFTER in text:
        _have_after(connection)
    if not text.lstrip().startswith("SELECT"):
        begin_late(connection)
    cursor.execute(text, values)
    answer = cursor.fetchall()
    cursor.close()
    return list(answer)


def _have_after(connection: Any) -> None:
    """Make our function, unless it is there: SQLite refuses that while a statement is read."""
    try:
        connection.execute(f"SELECT {_OUR_AFTER}NULL, NULL)")
    except sqlite3.OperationalError:
        connection.create_function(_OUR_AFTER.rstrip("("), 2, after, deterministic=True)


def begin_late(connection: Any) -> None:
    """Begin a transaction where sqlite3 begins one itself before a statement that writes.

    It knows such a statement by its first word, and takes `WITH ... UPDATE` for none: that would
    commit by itself.
    """
    if not isinstance(connection, sqlite3.Connection):
        return
    legacy = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)  # the only way before Python 3.12
    is_legacy = getattr(connection, "autocommit", legacy) == legacy
    if is_legacy and connection.isolation_level is not None and not connection.in_transaction:
        connection.execute(f"BEGIN {connection.isolation_level}")


def _mysql(connection: Any, block: Block, rows: Rows | None, scalars: Mapping[str, Any], _: Clock) -> list[Any]:
    from celery_sqlbeat.store.sql.dialects.mysql_text import rows_as_json

    values: dict[str, Any] = {}
    text = block.text
    for name in block.parameters.names:
        value = scalars[name]
        if isinstance(value, (list, tuple)):  # what stands between the parentheses of IN; no name is empty
            parts = {f"{name}_{at}": part for at, part in enumerate(value or [""])}
            text = text.replace(f"%({name})s", ", ".join(f"%({key})s" for key in parts))
            values |= parts
        else:
            values[name] = _mysql_value(value)
    if rows is not None:
        values["rows"] = rows_as_json(rows)
    answer: list[Any] = []
    cursor = connection.cursor()
    for statement in _BETWEEN.split(text):  # the shop's connection need not take several at once
        cursor.execute(statement, values)
        answer = list(cursor.fetchall()) if cursor.description else answer
    cursor.close()
    return answer


def _mysql_value(value: Any) -> Any:
    if isinstance(value, float):
        return Decimal(repr(value))  # drivers write it in full
    return text_of(value) if isinstance(value, datetime) else value


def _odbc(connection: Any, block: Block, rows: Rows | None, scalars: Mapping[str, Any], _: Clock) -> list[Any]:
    from celery_sqlbeat.store.sql.dialects.mssql import MssqlSession

    null = getattr(sys.modules.get("pyodbc"), "BinaryNull", None)
    return list(MssqlSession(connection, {block.name: block}, 0, null).fetch(block.name, rows, **scalars))


def _is_sqlite_closed(connection: Any) -> bool:
    try:
        connection.total_changes  # noqa: B018  # to look is what raises
    except sqlite3.ProgrammingError:
        return True
    return False


def _sqlite_codes(error: BaseException) -> tuple[str, ...]:
    # Python 3.10 has SQLite's fixed English texts alone.
    return getattr(error, "sqlite_errorname", ""), str(error).partition(":")[0]


def _odbc_codes(error: BaseException) -> tuple[str, ...]:
    return tuple(_NUMBER.findall(str(error.args[-1]))) if error.args else ()


def _is_shut(connection: Any) -> bool:
    return bool(connection.closed)


def _is_not_open(connection: Any) -> bool:
    return not connection.open


def _sqlstate(error: BaseException) -> tuple[str, ...]:
    return (str(getattr(error, "sqlstate", getattr(error, "pgcode", None))),)


def _first(error: BaseException) -> tuple[str, ...]:
    return tuple(str(part) for part in error.args[:1])


# By the module that a class of connections comes from.
DRIVERS: Mapping[str, Driver] = {
    "psycopg": Driver("postgresql", _psycopg, _is_shut, _sqlstate),
    "psycopg2": Driver("postgresql", _psycopg2, _is_shut, _sqlstate),
    "sqlite3": Driver("sqlite", _sqlite, _is_sqlite_closed, _sqlite_codes),
    **dict.fromkeys(("pymysql", "MySQLdb"), Driver("mysql", _mysql, _is_not_open, _first)),
    "pyodbc": Driver("mssql", _odbc, _is_shut, _odbc_codes),
}
READ_ONLY = frozenset(
    ("25006", "SQLITE_READONLY", "attempt to write a readonly database", "1290", "1792", "1836", "3906")
)
"""How servers name a write where nothing may be written."""
NO_TABLE = frozenset(("42P01", "no such table", "1146", "208"))
