"""The scripts beside the migrations, as a DBA runs them: each by itself, and each again."""

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.store import dialect_for
from celery_sqlbeat.store.sql import migrations
from celery_sqlbeat.store.sql.dialects.mssql_text import split_batches
from celery_sqlbeat.store.sql.session import sql_folder
from tests import mssql
from tests.servers import server
from tests.support.by_hand import by_hand


class Shell(NamedTuple):
    """An empty database, as sqlite3, psql or sqlcmd sees it."""

    database: str
    run: Callable[[str], Any]  # a script, batch by batch
    ask: Callable[[str], list[Any]]

    def script(self, name: str) -> str:
        return (sql_folder(self.database) / f"{name}.sql").read_text(encoding="utf-8")

    def tables(self) -> set[str]:
        ask = {
            "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'",
            "mssql": "SELECT name FROM sys.tables",
            "mysql": "SHOW TABLES",
        }
        return {row[0].lower() for row in self.ask(ask[self.database])}


@pytest.fixture(params=["sqlite", "mysql", "mssql"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    if request.param == "sqlite":
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as file:
            yield Shell("sqlite", file.executescript, lambda text: file.execute(text).fetchall())
        return
    if request.param == "mysql":
        session = dialect_for(database_url(request.getfixturevalue("mysql_database")()), 10.0).connect()
        with closing(session):
            yield Shell("mysql", session.script, partial(by_hand, session))
        return
    server("mssql")
    with closing(mssql.connect(request.getfixturevalue("mssql_database")())) as connection:

        def run(script: str) -> None:
            for batch in split_batches(script):
                cursor = connection.execute(batch)
                while cursor.nextset():
                    pass

        run("SET QUOTED_IDENTIFIER OFF")  # as sqlcmd connects, unless it is told -I
        yield Shell("mssql", run, lambda text: list(connection.execute(text).fetchall()))


def test_every_script_runs_and_runs_again(shell: Shell) -> None:
    for _ in range(1 if shell.database == "sqlite" else 2):  # SQLite's is for an empty file
        shell.run(migrations.creation_script(shell.database))
        assert "jobs" in shell.tables()
    for _ in range(2):
        shell.run(shell.script("seed"))
        assert [tuple(row) for row in shell.ask("SELECT Namespace, JobName FROM Jobs")] == [("default", "sample")]
    for _ in range(2):
        shell.run(shell.script("grants"))
    for _ in range(2):
        shell.run(shell.script("cleanup"))
        assert shell.tables() == set()


@pytest.mark.parametrize("shell", ["mssql"], indirect=True)
def test_the_role_takes_the_name_that_is_written_into_the_script(shell: Shell) -> None:
    """A login stands for a managed identity, which only Azure knows."""
    who = f"sqlbeat_test_{os.getpid()}_{secrets.token_hex(4)}"
    shell.run(migrations.creation_script("mssql"))
    shell.run(f"CREATE LOGIN [{who}] WITH PASSWORD = N'Throw-away-{secrets.token_hex(8)}'")
    try:
        for _ in range(2):
            shell.run(shell.script("grants").replace("@who sysname = N''", f"@who sysname = N'{who}'"))
        members = shell.ask(
            "SELECT m.name FROM sys.database_role_members AS r"
            " INNER JOIN sys.database_principals AS m ON m.principal_id = r.member_principal_id"
            " WHERE r.role_principal_id = DATABASE_PRINCIPAL_ID(N'sqlbeat_runner')"
        )
        assert [row[0] for row in members] == [who]
        shell.run(shell.script("cleanup"))
        assert shell.ask("SELECT 1 WHERE DATABASE_PRINCIPAL_ID(N'sqlbeat_runner') IS NOT NULL") == []
        shell.run(f"DROP USER [{who}]")
    finally:
        shell.run(f"DROP LOGIN [{who}]")
