"""Databases made for a measurement, and a way to record what the driver is told."""

import os
import secrets
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.sql.dialects.sqlite import Sqlite
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Dialect
from celery_sqlbeat.store.sql.store import SqlStore

POSTGRESQL = os.environ.get("SQLBEAT_TEST_POSTGRESQL", "postgresql://postgres@127.0.0.1:5432/postgres")
MARIADB = os.environ.get("SQLBEAT_TEST_MARIADB", "mysql://root@127.0.0.1:3306/test")

Statement = tuple[str, Any]
Maker = Callable[[], AbstractContextManager["Place"]]


class Place:
    """One empty, migrated database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.recording: list[Statement] | None = None

    def dialect(self, statement_timeout: float = 5.0) -> Dialect:
        """Return a dialect whose statements go to `recording` while that is a list."""
        url = database_url(self.url)
        if url.database == "sqlite":
            return Sqlite(
                url, statement_timeout, connect=lambda *args, **kw: sqlite3.connect(*args, factory=self._sqlite(), **kw)
            )
        if url.database == "mysql":
            from celery_sqlbeat.store.sql.dialects.mysql import Mysql

            return Mysql(url, statement_timeout, connect=self._mariadb())
        from celery_sqlbeat.store.sql.dialects.postgresql import Postgresql

        return Postgresql(url, statement_timeout, connect=self._postgresql().connect)

    def store(self) -> Store:
        """Return a store on this place."""
        return SqlStore(Database(self.dialect()))

    def by_hand(self, text: str) -> None:
        """Run a statement outside of the measurement; it may take long."""
        session = self.dialect(statement_timeout=600.0).connect()
        session.script(text)
        session.close()

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, as the driver gives them."""
        connection: Any = self.dialect().connect()._connection  # type: ignore[attr-defined]  # the driver itself
        cursor = connection.cursor()
        cursor.execute(text)
        found = list(cursor.fetchall())
        connection.close()
        return found

    def bare(self) -> Callable[[Statement], None]:
        """Return a function that runs a statement on the driver, with the store's settings."""
        connection: Any = self.dialect().connect()._connection  # type: ignore[attr-defined]  # the driver itself
        if hasattr(connection, "next_result"):
            return partial(_run_on_mariadb, connection)
        execute = super(type(connection), connection).execute  # type: ignore[misc]  # past the recording

        def run(statement: Statement) -> None:
            cursor = execute(*statement)
            if cursor.description is not None:
                cursor.fetchall()

        return run

    def _sqlite(self) -> type[sqlite3.Connection]:
        place = self

        class Recorded(sqlite3.Connection):
            def execute(self, text: str, values: Any = (), /) -> sqlite3.Cursor:
                if place.recording is not None:
                    place.recording.append((text, values))
                return super().execute(text, values)

        return Recorded

    def _mariadb(self) -> Any:
        import pymysql

        place = self

        class Recorded(pymysql.Connection):
            def query(self, sql: Any, unbuffered: bool = False) -> int:
                if place.recording is not None:
                    place.recording.append((sql, None))
                return super().query(sql, unbuffered)

        return Recorded

    def _postgresql(self) -> Any:
        from celery_sqlbeat.store.sql.dialects.postgresql_connection import Patient

        place = self

        class Recorded(Patient):  # with its way to wait, which costs more than the driver's own
            def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
                if place.recording is not None:
                    place.recording.append((query, params))
                return super().execute(query, params, **options)

        return Recorded


def _run_on_mariadb(connection: Any, statement: Statement) -> None:
    super(type(connection), connection).query(statement[0])  # past the recording
    while connection._result.has_next:
        connection.next_result()


@contextmanager
def sqlite_place() -> Iterator[Place]:
    """Yield a file in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="sqlbeat-bench-") as folder:
        place = Place(f"sqlite:///{Path(folder) / 'bench.db'}")
        place.store().migrate()
        yield place


@contextmanager
def postgresql_place() -> Iterator[Place]:
    """Yield a database of its own on the server of the tests."""
    import psycopg

    name = f"sqlbeat_bench_{secrets.token_hex(4)}"
    with psycopg.connect(POSTGRESQL, autocommit=True) as administrator:
        administrator.execute(f"CREATE DATABASE {name}")
        try:
            place = Place(POSTGRESQL.rpartition("/")[0] + f"/{name}")
            place.store().migrate()
            yield place
        finally:
            administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def mariadb_place() -> Iterator[Place]:
    """Yield a database of its own on the server of the tests."""
    from tests import mariadb

    name = f"sqlbeat_bench_{secrets.token_hex(4)}"
    place = Place(mariadb.make(MARIADB, name))
    with closing(mariadb.connect(MARIADB)) as administrator:
        try:
            place.store().migrate()
            yield place
        finally:
            mariadb.execute(administrator, f"DROP DATABASE {name}")


@cache
def mariadb_answers() -> bool:
    """Whether there is a MariaDB server to measure on."""
    try:
        from tests import mariadb

        mariadb.connect(MARIADB).close()
    except Exception as error:
        print(f"MariaDB is left out: {' '.join(str(error).split())}")
        return False
    return True


@cache
def postgresql_answers() -> bool:
    """Whether there is a PostgreSQL server to measure on."""
    try:
        import psycopg

        psycopg.connect(POSTGRESQL, connect_timeout=3).close()
    except Exception as error:
        print(f"PostgreSQL is left out: {' '.join(str(error).split())}")
        return False
    return True


def available_places() -> dict[str, Maker]:
    """Return what makes a place, for each database that is there."""
    return {"SQLite": sqlite_place, **({"PostgreSQL": postgresql_place} if postgresql_answers() else {})}
