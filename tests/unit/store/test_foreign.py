"""Which connections of a shop are taken, and what goes to those that no server answers here."""

from typing import Any

import psycopg
import pytest

from celery_sqlbeat.errors import UnusableConnection
from celery_sqlbeat.store.sql.foreign import ForeignSession, driver_connection
from celery_sqlbeat.store.sql.foreign_transactions import transaction_on
from celery_sqlbeat.store.sql.guard import guard_script
from celery_sqlbeat.store.sql.migrations import migrations
from tests.support.fake_odbc import FakeConnection, FakeCursor


class Recorded(FakeCursor):
    """A cursor whose statements give one row."""

    description: Any = (("StoreId", str),)

    def fetchall(self) -> list[Any]:
        return [("6F9619FF-8B86-D011-B42D-00C04FC964FF",)]

    def close(self) -> None:
        pass


class OdbcConnection(FakeConnection):
    """Something like a connection of pyodbc, that gives ids in upper case as it does."""

    def cursor(self) -> Recorded:
        return Recorded(self.log)


OdbcConnection.__module__ = "pyodbc"


class MysqlConnection:
    """Something like a connection of mysqlclient."""

    open = 1

    def __init__(self) -> None:
        self.log: list[str] = []

    def cursor(self) -> Recorded:
        return Recorded(self.log)


MysqlConnection.__module__ = "MySQLdb.connections"


class Counting(Recorded):
    """A cursor of a server that has a transaction from its begin to its end."""

    def __init__(self, connection: "CountingConnection") -> None:
        super().__init__(connection.log)
        self.connection = connection

    def execute(self, text: str, values: Any = ()) -> "Counting":
        super().execute(text, values)
        self.connection.open += {"BEGIN TRANSACTION": 1, "COMMIT": -1, "ROLLBACK": -1}.get(text, 0)
        return self

    def fetchall(self) -> list[Any]:
        return [(self.connection.open,)]


class CountingConnection(OdbcConnection):
    """Something like a connection of pyodbc in autocommit."""

    autocommit = True

    def __init__(self) -> None:
        super().__init__()
        self.open = 0

    def cursor(self) -> Counting:
        return Counting(self)


def seen(connection: CountingConnection) -> list[str]:
    """Return what was sent, but for what only asks."""
    return [text for text in connection.log if text != "SELECT @@TRANCOUNT"]


SAVE = "SAVE TRANSACTION sqlbeat_guard"


def test_sql_server_gets_a_transaction_of_its_own_that_is_committed() -> None:
    connection = CountingConnection()
    with transaction_on(connection, None, lambda _: connection.log.append("last")):
        connection.log.append("body")
    assert seen(connection) == ["BEGIN TRANSACTION", SAVE, "body", SAVE, "last", "COMMIT"]


def test_sql_servers_own_transaction_is_rolled_back_after_a_raise() -> None:
    connection = CountingConnection()
    with pytest.raises(KeyError), transaction_on(connection, None, lambda _: None):
        raise KeyError
    assert seen(connection) == ["BEGIN TRANSACTION", SAVE, "ROLLBACK"]


def test_a_transaction_of_sql_server_that_was_open_stays_open() -> None:
    connection = CountingConnection()
    connection.open = 1
    with transaction_on(connection, None, lambda _: None):
        pass
    assert seen(connection) == [SAVE, SAVE]
    with pytest.raises(KeyError), transaction_on(connection, None, lambda _: None):
        raise KeyError
    assert seen(connection)[2:] == [SAVE, "ROLLBACK TRANSACTION sqlbeat_guard"] and connection.open == 1


def test_a_connection_that_does_not_tell_of_its_transaction_holds_none_of_ours() -> None:
    with pytest.raises(UnusableConnection, match=r"does not tell whether a transaction is open: give Django's"):
        transaction_on(MysqlConnection(), None, lambda _: None).__enter__()


def test_sql_server_gets_the_statement_of_its_kind_and_nothing_is_committed() -> None:
    connection = OdbcConnection()
    session = ForeignSession(driver_connection(connection))
    assert session.database == "mssql"
    assert session.store_id() == "6f9619ff-8b86-d011-b42d-00c04fc964ff"
    assert connection.log == ["SELECT StoreId, Epoch FROM dbo.StoreInfo"]


def test_mysqlclient_gets_statement_after_statement() -> None:
    connection = MysqlConnection()
    session = ForeignSession(driver_connection(connection))
    assert session.database == "mysql"
    session.fetch("list_locks", namespace="n", after_key="", page_size=5)
    assert [text.split()[0] for text in connection.log] == ["SET", "SELECT"]


def test_a_subclass_of_a_drivers_connection_is_one() -> None:
    connection = type("Traced", (OdbcConnection,), {"__module__": "shop.tracing"})()
    assert ForeignSession(driver_connection(connection)).database == "mssql"


def test_an_asynchronous_connection_is_refused_with_what_helps() -> None:
    asynchronous = type("Connection", (), {"__module__": "asyncpg.connection"})()
    for connection in (asynchronous, object.__new__(psycopg.AsyncConnection)):
        with pytest.raises(UnusableConnection, match=r"asynchronous, and the statements here wait: give .*psycopg"):
            driver_connection(connection)


@pytest.mark.parametrize("thing", [None, "postgresql://", object()])
def test_what_is_no_connection_is_refused_with_what_is_one(thing: Any) -> None:
    with pytest.raises(UnusableConnection, match=r"is no connection that is known: give a connection of psycopg"):
        driver_connection(thing)


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mysql", "mssql"])
def test_the_script_of_the_guard_makes_the_table_that_the_migration_makes(database: str) -> None:
    (migration,) = (each.text for each in migrations(database) if each.name == "effects")
    script = guard_script(database)
    assert script[script.index("CREATE TABLE") :] in migration
