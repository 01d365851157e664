"""What all tests share.

The check of SQLBEAT_REQUIRE, that of what they leave behind, and databases of their own.
"""

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator

import pytest

from tests.servers import required, server
from tests.surroundings import hear_stop_signals, surroundings

STALE_SECONDS = 86400  # no run lasts longer; by then the process id in a name may be somebody else's
_NAME = re.compile(r"sqlbeat_test_(?P<pid>\d+)_(?P<made>[0-9a-f]+)_(?P<host>[0-9a-f]{4})?[0-9a-f]+")
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]


def pytest_configure() -> None:
    """Refuse a wrong SQLBEAT_REQUIRE at once: a mistyped one would require nothing."""
    required(os.environ)
    hear_stop_signals()


@pytest.fixture(autouse=True)
def unchanged_surroundings() -> Iterator[None]:
    """Fail the test that leaves something behind, and not one of those that come later."""
    before = surroundings()
    yield
    after = surroundings()
    assert {what: found for what, found in after.items() if found != before[what]} == {}


@pytest.fixture(scope="session")
def postgresql_database() -> Iterator[Callable[[], str]]:
    """Make an empty PostgreSQL database and return its URL.

    All of them are dropped when the session ends.
    """
    import psycopg
    from psycopg import sql

    where = server("postgresql")
    made: list[str] = []
    with psycopg.connect(where, autocommit=True) as connection:
        for (name,) in connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'sqlbeat!_test!_%' ESCAPE '!'"
        ):
            if is_left_behind(name):
                connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def make() -> str:
        name = new_name()
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        made.append(name)
        return urllib.parse.urlsplit(where)._replace(path=f"/{name}").geturl()

    yield make
    with psycopg.connect(where, autocommit=True) as connection:
        for name in made:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def mysql_database() -> Iterator[Callable[[], str]]:
    """Make an empty MariaDB database and return its URL.

    All of them are dropped when the session ends.
    """
    from tests import mariadb

    where = server("mariadb")
    made: list[str] = []
    with contextlib.closing(mariadb.connect(where)) as administrator:
        mariadb.drop_remains(administrator, is_left_behind)

    def make() -> str:
        made.append(new_name())
        return mariadb.make(where, made[-1])

    yield make
    with contextlib.closing(mariadb.connect(where)) as administrator:
        for name in made:
            mariadb.execute(administrator, f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture(scope="session")
def redis_database() -> Iterator[Callable[[], str]]:
    """Return the URL of an empty database of a Redis of the session's own."""
    from tests.support.private_servers import private_redis

    with private_redis("--databases", "1000") as made:
        numbers = itertools.count(1)
        yield lambda: f"{made.url.removesuffix('/0')}/{next(numbers)}"


@pytest.fixture(scope="session")
def mssql_database() -> Iterator[Callable[..., str]]:
    """Make an empty SQL Server database and return its ODBC string.

    All of them are dropped when the session ends.
    """
    from tests import mssql

    where = server("mssql")
    made: list[str] = []
    with contextlib.closing(mssql.connect(where)) as administrator:
        mssql.drop_remains(administrator, is_left_behind)

    def make(snapshots: bool | None = None) -> str:
        name = new_name()
        with contextlib.closing(mssql.connect(where)) as administrator:
            mssql.create(administrator, name, snapshots)
        made.append(name)
        return mssql.in_database(where, name)

    yield make
    with contextlib.closing(mssql.connect(where)) as administrator:
        for name in made:
            mssql.drop(administrator, name)


def new_name() -> str:
    """Return a name for a database that tells who made it, where and when."""
    return f"sqlbeat_test_{os.getpid()}_{int(time.time()):x}_{_HOST}{secrets.token_hex(4)}"


def is_left_behind(name: str) -> bool:
    """Whether the run that made this database was killed before it could drop it."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    if time.time() - int(match["made"], 16) > STALE_SECONDS:
        return True
    if match["host"] != _HOST:  # another machine tests on the same server, and its processes cannot be seen from here
        return False
    try:
        os.kill(int(match["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it lives, under another user
        return False
    return False
