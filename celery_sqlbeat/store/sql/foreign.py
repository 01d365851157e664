"""Run the store's statements on an open connection of the shop, in the shop's own transaction.

Nothing here commits or rolls back. What an object is, the module of its class tells: neither
SQLAlchemy nor Django nor a driver is imported unless the object is theirs.
"""

from collections.abc import Sequence
from typing import Any

from celery_sqlbeat.errors import UnusableConnection
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.sql.dialects.sqlite import host_clock
from celery_sqlbeat.store.sql.foreign_drivers import DRIVERS, NO_TABLE, READ_ONLY, begin_late, typed
from celery_sqlbeat.store.sql.session import Call, Row, Rows, load
from celery_sqlbeat.store.sql.store import SqlStore

_ASYNCHRONOUS = frozenset(("asyncpg", "aiosqlite", "aiomysql", "asyncmy", "aioodbc", "aiopg"))
_WAYS = "a connection of psycopg, psycopg2, sqlite3, pymysql, mysqlclient or pyodbc, a SQLAlchemy connection or session"


class ForeignSession:
    """Somebody else's connection, with the statements of its kind of database."""

    def __init__(self, connection: Any) -> None:
        """Use a connection as a driver made it; `driver_connection` finds it."""
        self._connection = connection
        self._driver = DRIVERS[package_of(connection)]
        self._blocks = load(self._driver.database)
        self._clock = host_clock
        if self._driver.is_closed(connection):
            raise UnusableConnection("the connection is closed: give one that is open")

    @property
    def database(self) -> str:
        """The kind of database, as `sql/` names its folder."""
        return self._driver.database

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        """Run a named block and return what it gives; instants are aware datetimes in UTC.

        What the driver raises is passed on, since the transaction and its retries are the shop's.
        """
        block = self._blocks[name]
        try:
            return typed(block, self._driver.run(self._connection, block, rows, scalars, self._clock))
        except Exception as error:
            if not READ_ONLY.isdisjoint(self._driver.codes(error)):
                raise UnusableConnection(
                    f"the connection can only read ({_line(error)}): give one that may write, in a transaction that may"
                ) from error
            raise

    def fetch_together(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run blocks one after the other."""
        return [self.fetch(call.block, call.rows, **call.scalars) for call in calls]

    def begin_late(self) -> None:
        """Begin the transaction that sqlite3 begins late, before a statement that writes."""
        begin_late(self._connection)

    def lacks_table(self, error: BaseException) -> bool:
        """Return whether a driver's error says that a table is not there."""
        return not NO_TABLE.isdisjoint(self._driver.codes(error))

    def store_id(self) -> str | None:
        """Return the id of the store in this database; None where it has no tables of ours."""
        try:
            rows = self.fetch("read_store")
        except Exception as error:
            if not self.lacks_table(error):
                raise
            return None
        return str(rows[0][0]) if rows else None

    def use_as(self, store: SqlStore) -> None:
        """Use the statements and the clock of a store, whose database this must be.

        It is looked at each time: a pool may give another connection, and a driver lead another
        way.
        """
        dialect, own = store.database.dialect, store.store_id
        if self.database != dialect.name or self.store_id() != own:
            raise UnusableConnection(
                f"the connection leads to another database than sqlbeat_database_url (a {dialect.name} database, store "
                f"{own}), or sees its tables under no such names: give one to that database, or leave connection= out"
            )
        self._blocks = dialect.blocks
        self._clock = getattr(dialect, "clock", self._clock)


def session_in(store: Store, connection: Any = None, using: str | None = None) -> ForeignSession:
    """Return a session on the shop's connection, which leads to the store's own database.

    `using`: the alias of a database of Django, in place of a connection.
    """
    if not isinstance(store, SqlStore):
        raise UnusableConnection(
            "the jobs are not in a SQL database, so there is no transaction to share: leave connection= and using= "
            "out, and call this after your commit"
        )
    session = ForeignSession(driver_connection(connection, using))
    session.use_as(store)
    return session


def driver_connection(connection: Any = None, using: str | None = None) -> Any:
    """Return the driver's own connection of what the shop has, which stays the shop's."""
    if using is not None:
        if connection is not None:
            raise UnusableConnection(f"both connection= and using={using!r} were given: give one of them")
        connection = _django_connection(using)
    root = package_of(connection)
    if root in _ASYNCHRONOUS or type(connection).__name__.startswith("Async"):
        raise UnusableConnection(
            f"{_kind(connection)} is asynchronous, and the statements here wait: give {_WAYS}, or leave connection= "
            "out and call this after your commit"
        )
    if root == "django":
        return driver_connection(_of_django(connection))
    if root == "sqlalchemy":
        return driver_connection(_of_sqlalchemy(connection))
    if root not in DRIVERS:
        raise UnusableConnection(f"{_kind(connection)} is no connection that is known: give {_WAYS}, or using=")
    return connection


def _django_connection(alias: str) -> Any:
    try:
        from django.db import connections
    except ImportError as error:
        raise UnusableConnection(f"using={alias!r} needs Django, which is not installed: give a connection=") from error
    return connections[alias]


def _of_django(connection: Any) -> Any:
    connection.ensure_connection()
    connection.validate_no_broken_transaction()
    return connection.connection


def _of_sqlalchemy(connection: Any) -> Any:
    """Return the driver's connection of a session or connection, whose transaction has begun.

    SQLAlchemy commits nothing where it has begun nothing, and does not see what goes past it.
    """
    if hasattr(connection, "driver_connection"):  # as its pool lends it
        return connection.driver_connection
    if hasattr(connection, "flush"):
        connection = connection.connection()
    if not hasattr(connection, "in_transaction"):
        raise UnusableConnection(f"{_kind(connection)} is no connection: give one of its connections, or a session")
    if connection.closed or connection.invalidated:
        raise UnusableConnection("the connection of SQLAlchemy is closed: give one that is open")
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.driver_connection


def package_of(thing: Any) -> str:
    """Return the first package that the classes of an object come from and that is known.

    `__class__` is what a tracing tool's proxy stands for.
    """
    known = {*DRIVERS, *_ASYNCHRONOUS, "sqlalchemy", "django"}
    roots: list[str] = [kind.__module__.partition(".")[0] for kind in thing.__class__.__mro__]
    return next((root for root in roots if root in known), roots[0])


def _kind(thing: Any) -> str:
    return f"{thing.__class__.__module__}.{thing.__class__.__name__}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
