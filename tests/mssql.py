"""Databases for tests on a SQL Server that somebody named.

Made and removed by an ODBC connection string.
"""

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.store.sql.dialects.mssql_driver import connection_string, find_driver, load_pyodbc

PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_BUSY = ("(1807)", "(40613)", "(40197)")  # another one is being made of the model database; Azure is at it
_FORBIDDEN = "(262)"


def connect(odbc: str) -> Any:
    """Return a connection in autocommit mode, by the driver that the product would take."""
    pyodbc = load_pyodbc()
    string = connection_string(database_url(f"mssql+odbc:{odbc}"), lambda: find_driver(pyodbc.drivers))
    return pyodbc.connect(string, autocommit=True, timeout=15)


def in_database(odbc: str, name: str) -> str:
    """Return the same server, another database."""
    return re.sub(r"(?i);?\s*database=[^;]*", "", odbc).rstrip("; ") + f";Database={name}"


def create(administrator: Any, name: str, snapshots: bool | None = None) -> None:
    """Make an empty database, with or without READ_COMMITTED_SNAPSHOT.

    Else as the server does it by default.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            administrator.execute(f"CREATE DATABASE {name}")
            break
        except load_pyodbc().Error as error:
            text = str(error.args[-1])
            if _FORBIDDEN in text or "permission denied" in text.lower():
                pytest.fail(
                    "the login of SQLBEAT_TEST_MSSQL may not create databases: GRANT CREATE ANY DATABASE TO it, or on "
                    f"Azure SQL ALTER ROLE dbmanager ADD MEMBER it in master ({text})",
                    pytrace=False,
                )
            if not any(number in text for number in _BUSY) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
    if snapshots is not None:
        administrator.execute(f"ALTER DATABASE {name} SET READ_COMMITTED_SNAPSHOT {'ON' if snapshots else 'OFF'}")


def drop_remains(administrator: Any, is_left_behind: Callable[[str], bool]) -> None:
    """Remove what killed runs have left, as far as this login may."""
    for name in filter(is_left_behind, names(administrator)):
        with contextlib.suppress(load_pyodbc().Error):
            drop(administrator, name)


def drop(administrator: Any, name: str) -> None:
    """Remove a database, whoever is still in it."""
    with contextlib.suppress(load_pyodbc().Error):  # Azure SQL does not know it, and drops a database in use anyway
        administrator.execute(f"ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
    administrator.execute(f"DROP DATABASE {name}")


def names(administrator: Any) -> list[str]:
    """Return the databases that tests have made here."""
    found = administrator.execute("SELECT name FROM sys.databases WHERE name LIKE 'sqlbeat!_test!_%' ESCAPE '!'")
    return [name for (name,) in found.fetchall()]
