"""The databases that the contract is tested on.

A test that takes `world` runs once for each of them.
"""

import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.store.sql.dialects.mssql_text import scalar
from celery_sqlbeat.store.sql.dialects.sqlite import Sqlite
from celery_sqlbeat.store.sql.dialects.sqlite_values import text_of
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Dialect
from celery_sqlbeat.store.sql.store import SqlStore
from tests import mssql
from tests.pgbouncer import Pooler, pgbouncer
from tests.servers import server
from tests.support.world import World

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
POOLED = "postgresql-pooled"  # behind a PgBouncer whose clients share the server's connections
# Where locks decide, SQL Server is tried with READ_COMMITTED_SNAPSHOT off, as it comes, and on, as
# on Azure SQL.
RACING = ("sqlite", "postgresql", POOLED, "mysql", "mssql-locks", "mssql-snapshots")

Sql = Callable[[str, Sequence[Any]], list[Mapping[str, Any]]]


class Place(NamedTuple):
    """An empty, migrated database: how to make dialects for it, a way in by hand, and its clock."""

    dialect: Callable[[], Dialect]
    sql: Sql
    set_clock: Callable[[datetime], None]
    address: str

    def store(self, namespace: str) -> SqlStore:
        """Return a store of its own, with its own connections."""
        return SqlStore(Database(self.dialect()), namespace)


@pytest.fixture(scope="session", params=DATABASES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Each database in turn."""
    if request.param == "sqlite":
        yield from _sqlite(tmp_path_factory.mktemp("contract") / "jobs.db")
    elif request.param == "postgresql":
        server("postgresql")
        yield from _postgresql(request.getfixturevalue("postgresql_database")())
    elif request.param == "mysql":
        server("mariadb")
        yield from _mysql(request.getfixturevalue("mysql_database")())
    elif request.param == POOLED:
        with pgbouncer(tmp_path_factory.mktemp("pooler"), "transaction") as pooler:
            yield from _postgresql(request.getfixturevalue("postgresql_database")(), pooler)
    else:
        snapshots = {"mssql": None, "mssql-locks": False, "mssql-snapshots": True}[request.param]
        server("mssql")
        yield from _mssql(request.getfixturevalue("mssql_database")(snapshots))


@pytest.fixture
def world(place: Place) -> Iterator[World]:
    """Yield a namespace of the test's own, at noon, in a store that was never recovered."""
    place.sql("UPDATE StoreInfo SET Epoch = 0 WHERE Epoch > 0", [])  # it holds for every namespace
    store = place.store(f"test-{secrets.token_hex(6)}")
    yield World(store, place.sql, place.set_clock)
    store.close()


def _sqlite(path: Path) -> Iterator[Place]:
    now = [datetime.now(timezone.utc)]
    url = database_url(f"sqlite:///{path}")

    def dialect() -> Sqlite:
        return Sqlite(url, clock=lambda: now[0])

    by_hand = sqlite3.connect(path, isolation_level=None, timeout=5)
    by_hand.row_factory = sqlite3.Row

    def sql(text: str, values: Sequence[Any]) -> list[Mapping[str, Any]]:
        plain = [text_of(value) if isinstance(value, datetime) else value for value in values]
        return [{key.lower(): row[key] for key in row.keys()} for row in by_hand.execute(text, plain)]  # noqa: SIM118

    _migrate(dialect())
    yield Place(dialect, sql, lambda instant: now.__setitem__(0, instant), f"sqlite:///{path}")
    by_hand.close()


def _postgresql(where: str, pooler: Pooler | None = None) -> Iterator[Place]:
    import psycopg
    from psycopg.rows import dict_row

    from celery_sqlbeat.store.sql.dialects.postgresql import Postgresql

    url = database_url(where if pooler is None else pooler.url(where))
    by_hand = psycopg.connect(where, autocommit=True, row_factory=dict_row)
    by_hand.execute("SET timezone = 'UTC'")
    by_hand.execute("CREATE TABLE TestClock (At timestamptz NOT NULL)")
    by_hand.execute("INSERT INTO TestClock VALUES (now())")

    def sql(text: str, values: Sequence[Any]) -> list[Mapping[str, Any]]:
        cursor = by_hand.execute(text.replace("%", "%%").replace("?", "%s"), values)
        return list(cursor.fetchall()) if cursor.description else []

    def set_clock(instant: datetime) -> None:
        by_hand.execute("UPDATE TestClock SET At = %s", [instant])

    _migrate(Postgresql(url))
    yield Place(lambda: Postgresql(url, clock="(SELECT At FROM TestClock)"), sql, set_clock, url.text)
    by_hand.close()


def _mysql(where: str) -> Iterator[Place]:
    from celery_sqlbeat.store.sql.dialects.mysql import Mysql
    from tests import mariadb

    url = database_url(where)
    by_hand = mariadb.connect(where)
    sql = partial(mariadb.execute, by_hand)
    sql("CREATE TABLE TestClock (At datetime(6) NOT NULL)")
    sql("INSERT INTO TestClock VALUES (utc_timestamp(6))")

    def set_clock(instant: datetime) -> None:
        sql("UPDATE TestClock SET At = ?", [instant])

    _migrate(Mysql(url))
    yield Place(
        lambda: Mysql(url, clock="(SELECT At FROM TestClock)"),
        sql,
        set_clock,
        url.text,
    )
    by_hand.close()


def _mssql(own: str) -> Iterator[Place]:
    from celery_sqlbeat.store.sql.dialects.mssql import Mssql

    url = database_url(f"mssql+odbc:{own}")
    by_hand = mssql.connect(own)
    by_hand.execute("CREATE TABLE TestClock (At datetime2(6) NOT NULL)")
    by_hand.execute("INSERT INTO TestClock VALUES (SYSUTCDATETIME())")

    def sql(text: str, values: Sequence[Any]) -> list[Mapping[str, Any]]:
        plain = [scalar(value) for value in values]
        cursor = by_hand.execute(text, *plain)
        if cursor.description is None:
            return []
        names = [column[0].lower() for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def set_clock(instant: datetime) -> None:
        by_hand.execute("UPDATE TestClock SET At = ?", scalar(instant))

    _migrate(Mssql(url))
    yield Place(lambda: Mssql(url, clock="(SELECT At FROM TestClock)"), sql, set_clock, f"mssql+odbc:{own}")
    by_hand.close()


def _migrate(dialect: Dialect) -> None:
    database = Database(dialect)
    SqlStore(database).migrate()
    database.close()
