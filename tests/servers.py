"""The servers that tests talk to.

Where they are, and whether their absence skips a test or fails it.
"""

import functools
import glob
import os
import shutil
import socket
import urllib.parse
from collections.abc import Mapping
from typing import NoReturn

import pytest

from celery_sqlbeat.errors import DriverMissing
from celery_sqlbeat.store.sql.dialects.mssql_driver import load_pyodbc

DEFAULTS = {
    "postgresql": "postgresql://postgres@127.0.0.1:5432/postgres",
    "mariadb": "mysql://root@127.0.0.1:3306/test",
    "redis": "redis://127.0.0.1:6379/0",
    "rabbitmq": "amqp://guest:guest@127.0.0.1:5672//",
    "mssql": "",  # only where the variable names one
    "odbc": "unixODBC",  # no server: what pyodbc needs of the operating system, which no wheel brings
    "pgbouncer": "pgbouncer",  # a program that tests start by themselves
    "replication": "initdb",  # the same: the programs of a PostgreSQL server, and of a MariaDB server
}
PATIENCE_SECONDS = 5
PGBOUNCER = "/usr/sbin/pgbouncer"  # where Debian puts it, which is not on everybody's path


def server(name: str) -> str:
    """Return the address of a server that answers.

    Otherwise skip the test, or fail it if the server is required.
    """
    missing = _reason_missing(name)
    if missing is not None:
        absent(name, missing)
    return address(name)


def absent(name: str, reason: str) -> NoReturn:
    """Skip the test for want of a server, or fail it if the server is required."""
    if name in required(os.environ):
        pytest.fail(f"{reason}, and SQLBEAT_REQUIRE names it", pytrace=False)
    pytest.skip(reason)


def address(name: str) -> str:
    """Where a server is, if it is there."""
    return os.environ.get(_variable(name), "") or DEFAULTS[name]


def required(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the servers that SQLBEAT_REQUIRE names; a name that no test knows is an error."""
    names = frozenset(filter(None, (name.strip() for name in environ.get("SQLBEAT_REQUIRE", "").split(","))))
    if unknown := names - DEFAULTS.keys():
        raise pytest.UsageError(
            f"SQLBEAT_REQUIRE names {', '.join(sorted(unknown))}; the servers are {', '.join(DEFAULTS)}"
        )
    return names


def _variable(name: str) -> str:
    return f"SQLBEAT_TEST_{name.upper()}"


@functools.cache  # asked once per session: a server that is away is waited for only once
def _reason_missing(name: str) -> str | None:
    where = address(name)
    if not where:
        return f"{_variable(name)} names no server"
    if name == "odbc":
        try:
            load_pyodbc()
        except DriverMissing as error:
            return str(error)
        return None
    if name == "pgbouncer":
        found = shutil.which("pgbouncer") or shutil.which(PGBOUNCER)
        return None if found else "there is no program pgbouncer: run make pgbouncer, or apt-get install pgbouncer"
    if name == "replication":
        lacking = [each for each in ("initdb", "pg_ctl", "pg_basebackup") if postgresql_program(each) is None]
        return f"{lacking[0]} is missing: run apt-get install postgresql" if lacking else None
    if name == "mssql":  # an ODBC string; what is wrong with a server that somebody names shows in the test itself
        return None
    try:
        (_answers_sql if name == "postgresql" else _accepts)(where)
    except (OSError, ImportError) as error:
        shown = where.rpartition("@")[2]  # without user and password
        return f"{name} does not answer at {shown} ({type(error).__name__}: {' '.join(str(error).split())})"
    return None


def postgresql_program(name: str) -> str | None:
    """Where a program of the PostgreSQL server is.

    Debian keeps them off everybody's path, the newest version last.
    """
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    return shutil.which(name, path=os.pathsep.join([*reversed(folders), os.environ.get("PATH", "")]))


def _accepts(where: str) -> None:
    url = urllib.parse.urlsplit(where)
    with socket.create_connection((url.hostname or "127.0.0.1", url.port or 0), PATIENCE_SECONDS):
        pass


def _answers_sql(where: str) -> None:
    import psycopg

    try:
        psycopg.connect(where, connect_timeout=PATIENCE_SECONDS).close()
    except psycopg.OperationalError as error:
        raise ConnectionError(error) from error
