"""A statement of the store on a connection of the shop: in its transaction, never beyond it."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

import psycopg
import pymysql
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from pymysql.cursors import DictCursor
from sqlalchemy import orm

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import UnusableConnection
from celery_sqlbeat.store.keyvalue.memory import memory_store
from celery_sqlbeat.store.sql.foreign import ForeignSession, session_in
from tests.contract.conftest import Place
from tests.mariadb import arguments
from tests.support.world import NOON, World

pytestmark = pytest.mark.parametrize("place", ["sqlite", "postgresql", "mysql"], indirect=True)

ALCHEMY = {"sqlite": "sqlite://", "postgresql": "postgresql+psycopg://", "mysql": "mysql+pymysql://"}


def connect(place: Place) -> Any:
    """Connect as a shop does, whose rows, zone and modes are not ours."""
    kind = place.dialect().name
    if kind == "sqlite":
        connection = sqlite3.connect(place.address.removeprefix("sqlite:///"), detect_types=sqlite3.PARSE_DECLTYPES)
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        return connection
    if kind == "postgresql":
        return psycopg.connect(database_url(place.address).text, options="-c timezone=Asia/Tokyo", row_factory=dict_row)
    mode = "STRICT_TRANS_TABLES,ANSI_QUOTES,NO_BACKSLASH_ESCAPES"
    return pymysql.connect(**arguments(place.address), cursorclass=DictCursor, sql_mode=mode)


def plain(place: Place) -> Any:
    """Connect as SQLAlchemy wants it."""
    kind = place.dialect().name
    if kind == "mysql":
        return pymysql.connect(**arguments(place.address))
    return psycopg.connect(place.address) if kind == "postgresql" else sqlite3.connect(place.address[10:])


def engine_of(place: Place, **options: Any) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(
        ALCHEMY[place.dialect().name], creator=lambda: plain(place), poolclass=sqlalchemy.NullPool, **options
    )


@pytest.fixture
def shop(place: Place) -> Iterator[Callable[[], Any]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(connect(place)))


def take(session: ForeignSession, world: World, key: str = "it's \\ 100 %\n;\n-- ü") -> tuple[Any, ...]:
    """Write by a statement that several parameters and a clock are in."""
    given = {"namespace": world.namespace, "lock_key": key, "token": str(uuid4()), "holder": "shop"}
    return session.fetch("take_lock", lease_seconds=30.5, **given)[0]


def held(world: World) -> list[str]:
    return [lock.key for lock in world.store.locks()]


def test_what_is_written_is_there_once_the_shop_commits(world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    fence, now = take(session_in(world.store, connection), world)
    assert (fence, now) == (1, NOON)
    assert held(world) == []
    connection.commit()
    assert held(world) == ["it's \\ 100 %\n;\n-- ü"]


def test_what_is_written_is_gone_once_the_shop_rolls_back(world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    take(session_in(world.store, connection), world)
    connection.rollback()
    assert held(world) == []


def test_a_batch_is_written_in_the_transaction_too(world: World, shop: Callable[[], Any]) -> None:
    own = world.store.take_lock("stock", token := str(uuid4()), "shop", 30)
    connection = shop()
    session = session_in(world.store, connection)
    assert own is not None
    assert session.fetch("extend_locks", [("stock", token, own.fence, 60.0)], namespace=world.namespace) == [(token,)]
    connection.rollback()
    assert (world.store.locks()[0].lease_ends_at - NOON).total_seconds() == 30
    session.fetch("extend_locks", [("stock", token, own.fence, 60.0)], namespace=world.namespace)
    connection.commit()
    assert (world.store.locks()[0].lease_ends_at - NOON).total_seconds() == 60


def test_values_come_as_the_store_has_them_whatever_the_connection_makes_of_them(
    world: World, shop: Callable[[], Any]
) -> None:
    world.store.take_lock("stock", token := str(uuid4()), "shop", 30)
    [row] = session_in(world.store, shop()).fetch("read_lock", namespace=world.namespace, lock_key="stock")
    assert row[:4] == ("stock", token, "shop", 1)
    assert row[4] == NOON and row[4].tzinfo is timezone.utc


def test_a_statement_may_run_while_the_shop_reads(world: World, shop: Callable[[], Any]) -> None:
    if world.store.database.dialect.name != "sqlite":
        pytest.skip("the other drivers have read all rows by then")
    connection = shop()
    reading = connection.execute("SELECT 1 UNION SELECT 2")
    reading.fetchone()
    take(session_in(world.store, connection), world, "first")
    take(session_in(world.store, connection), world, "second")
    connection.commit()
    assert held(world) == ["first", "second"]


def test_a_connection_in_autocommit_simply_commits(place: Place, world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    if isinstance(connection, sqlite3.Connection):
        connection.isolation_level = None
    elif isinstance(connection, psycopg.Connection):
        connection.autocommit = True
    else:
        connection.autocommit(True)
    take(session_in(world.store, connection), world, "stock")
    assert held(world) == ["stock"]


@pytest.mark.parametrize("kind", ["connection", "session", "scoped"])
@pytest.mark.parametrize("has_begun", [True, False])
def test_sqlalchemy_commits_and_rolls_back(place: Place, world: World, kind: str, has_begun: bool) -> None:
    engine = engine_of(place)

    def write(key: str, end: str) -> None:
        make: Callable[[], Any] = engine.connect if kind == "connection" else lambda: orm.Session(engine)
        if kind == "scoped":
            make = orm.scoped_session(orm.sessionmaker(engine))
        with closing(make()) as connection:
            if has_begun:
                connection.begin()
            take(session_in(world.store, connection), world, key)
            getattr(connection, end)()

    write("kept", "commit")
    write("gone", "rollback")
    write("closed", "close")
    assert held(world) == ["kept"]
    engine.dispose()


def test_sqlalchemys_autocommit_commits(place: Place, world: World) -> None:
    engine = engine_of(place, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        take(session_in(world.store, connection), world, "stock")
        assert held(world) == ["stock"]
    with closing(engine.raw_connection()) as raw:
        assert session_in(world.store, raw).store_id() == world.store.store_id
    with pytest.raises(UnusableConnection, match=r"Engine is no connection: give one of its connections"):
        session_in(world.store, engine)
    with pytest.raises(UnusableConnection, match="of SQLAlchemy is closed"):
        session_in(world.store, connection)
    engine.dispose()


def test_psycopg2_is_a_way_to_postgresql(place: Place, world: World) -> None:
    if place.dialect().name != "postgresql":
        pytest.skip("psycopg2 leads to PostgreSQL alone")
    import psycopg2
    from psycopg2.extras import RealDictCursor

    with closing(psycopg2.connect(place.address, cursor_factory=RealDictCursor)) as connection:
        assert take(session_in(world.store, connection), world) == (1, NOON)
        connection.rollback()
        assert held(world) == []
        take(session_in(world.store, connection), world, "stock")
        connection.commit()
        assert held(world) == ["stock"]


def test_a_closed_connection_is_refused(world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    connection.close()
    with pytest.raises(UnusableConnection, match="the connection is closed"):
        session_in(world.store, connection)
    if isinstance(connection, pymysql.Connection):
        connection.connect()  # what closes it at the end wants it open


def test_a_connection_that_can_only_read_is_refused(world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA query_only = 1")
    elif isinstance(connection, psycopg.Connection):
        connection.read_only = True
    else:
        connection.cursor().execute("START TRANSACTION READ ONLY")
    session = session_in(world.store, connection)
    with pytest.raises(UnusableConnection, match="the connection can only read"):
        take(session, world)
    connection.rollback()
    assert held(world) == []


def test_a_connection_to_another_database_is_refused(
    world: World, shop: Callable[[], Any], place: Place, tmp_path: Any
) -> None:
    said = "leads to another database than sqlbeat_database_url"
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        with pytest.raises(UnusableConnection, match=said):
            session_in(world.store, other)
        assert not other.in_transaction
    connection = shop()
    name, own = "StoreId", world.store.store_id
    mark = "%s" if not isinstance(connection, sqlite3.Connection) else "?"
    cursor = connection.cursor()
    cursor.execute(f"UPDATE StoreInfo SET {name} = {mark}", [str(uuid4())])
    with pytest.raises(UnusableConnection, match=f"{said} .*{own}"):
        session_in(world.store, connection)
    connection.rollback()


def test_what_the_driver_raises_is_passed_on(world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    session = session_in(world.store, connection)
    with pytest.raises((sqlite3.Error, psycopg.Error, pymysql.Error)):
        session.fetch("take_lock", namespace=world.namespace, lock_key="k", token=None, holder=None, lease_seconds=1.0)
    connection.rollback()


def test_a_store_without_transactions_has_none_to_share(shop: Callable[[], Any]) -> None:
    with pytest.raises(UnusableConnection, match="no transaction to share: leave connection= and using= out"):
        session_in(memory_store("foreign", "default", lambda: datetime.now(timezone.utc)), shop())


DJANGO = """
import sys, uuid
import django
from django.conf import settings
from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import UnusableConnection
from celery_sqlbeat.store import dialect_for
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.foreign import session_in
from celery_sqlbeat.store.sql.store import SqlStore

address, engine, name, namespace = sys.argv[1:]
url = database_url(address)
host, port = url.hosts[0] if url.hosts else ("", "")
where = dict(ENGINE=f"django.db.backends.{engine}", NAME=name, USER=url.user, PASSWORD=url.password)
where |= dict(HOST=host, PORT=port)
settings.configure(DATABASES={"default": where}, USE_TZ=True, TIME_ZONE="Asia/Tokyo")
django.setup()
from django.db import connection, connections, transaction

store = SqlStore(Database(dialect_for(url, 5.0)), namespace)

def take(key, **given):
    session = session_in(store, **given)
    holder = {"namespace": namespace, "lock_key": key, "token": str(uuid.uuid4()), "holder": "shop"}
    session.fetch("take_lock", lease_seconds=30.0, **holder)

take("autocommit", using="default")
with transaction.atomic():
    take("atomic", using="default")
    assert [lock.key for lock in store.locks()] == ["autocommit"]
try:
    with transaction.atomic():
        take("rolled back", connection=connection)
        raise KeyError
except KeyError:
    pass
with transaction.atomic():
    try:
        with transaction.atomic():
            take("savepoint", connection=connections["default"])
            raise KeyError
    except KeyError:
        pass
    take("after the savepoint", using="default")
assert [lock.key for lock in store.locks()] == ["after the savepoint", "atomic", "autocommit"], store.locks()
try:
    take("both", connection=connection, using="default")
except UnusableConnection as error:
    print(error)
store.close()
"""


def test_djangos_transactions_hold_what_is_written(place: Place, world: World) -> None:
    kind = place.dialect().name
    if kind == "mysql":
        pytest.skip("Django's way to MySQL is mysqlclient, which is no wheel")
    name = place.address.removeprefix("sqlite:///") if kind == "sqlite" else str(database_url(place.address).name)
    command = [sys.executable, "-c", DJANGO, place.address, kind.replace("sqlite", "sqlite3"), name, world.namespace]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "both connection= and using='default' were given: give one of them\n"
