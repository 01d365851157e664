"""How tests look into a MariaDB server, beside the package's own way."""

import contextlib
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import FIELD_TYPE
from pymysql.converters import conversions

from celery_sqlbeat.store.sql.dialects.mysql_text import literal
from celery_sqlbeat.store.sql.dialects.sqlite_values import instant_of

Connection: TypeAlias = "pymysql.Connection[Any]"


def connect(where: str) -> Connection:
    """Connect as the administrator that an address names."""
    return pymysql.connect(
        **arguments(where),
        autocommit=True,
        charset="utf8mb4",
        collation="utf8mb4_bin",
        conv={**conversions, FIELD_TYPE.DATETIME: instant_of},
        init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    )


def arguments(where: str) -> dict[str, Any]:
    """Return what the driver calls the parts of an address."""
    url = urllib.parse.urlsplit(where)
    return {
        "host": url.hostname,
        "port": url.port or 3306,
        "user": url.username,
        "password": urllib.parse.unquote(url.password or ""),
        "database": url.path[1:],
    }


def make(where: str, name: str) -> str:
    """Make an empty database on a server and return its URL."""
    with contextlib.closing(connect(where)) as administrator:
        execute(administrator, f"CREATE DATABASE {name}")
    return urllib.parse.urlsplit(where)._replace(path=f"/{name}").geturl()


def execute(connection: Connection, text: str, values: Sequence[Any] = ()) -> list[Mapping[str, Any]]:
    """Run a statement in which `?` stands for a value; return its rows by column, lower case."""
    given = iter(values)
    text = re.sub(r"\?", lambda _: literal(next(given)), text)
    with connection.cursor() as cursor:
        cursor.execute(text)
        names = [column[0].lower() for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def drop_remains(connection: Connection, is_left_behind: Callable[[str], bool]) -> None:
    """Drop what runs left behind that were killed."""
    for row in execute(connection, "SHOW DATABASES LIKE 'sqlbeat\\_test\\_%'"):
        (name,) = row.values()
        if is_left_behind(name):
            execute(connection, f"DROP DATABASE IF EXISTS {name}")
