"""Migrations: applied once, by one of many, whole or not at all, and recognised afterwards."""

import itertools
import multiprocessing
import secrets
import sqlite3
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import celery_sqlbeat
from celery_sqlbeat.config import redaction
from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import DatabaseUnavailable, MigrationChanged, ReleaseTooOld, SchemaError, StoreError
from celery_sqlbeat.store import dialect_for
from celery_sqlbeat.store.records import JobQuery
from celery_sqlbeat.store.sql import migrations
from celery_sqlbeat.store.sql.dialects.mssql_text import split_batches
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.migrations import Migration
from celery_sqlbeat.store.sql.session import sql_folder
from celery_sqlbeat.store.sql.store import SqlStore
from tests import mssql
from tests.servers import server
from tests.support.by_hand import by_hand
from tests.support.views import AdminView

TABLES = {"changes", "jobruns", "jobs", "nodes", "storeinfo", "schemamigrations"}


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "mssql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    if request.param == "mssql":
        server("mssql")
        return f"mssql+odbc:{request.getfixturevalue('mssql_database')()}"
    if request.param == "mysql":
        server("mariadb")
        return cast(str, request.getfixturevalue("mysql_database")())
    server("postgresql")
    return cast(str, request.getfixturevalue("postgresql_database")())


def store_at(address: str) -> SqlStore:
    return SqlStore(Database(dialect_for(database_url(address), 10.0)))


@pytest.fixture
def store(empty: str) -> Iterator[SqlStore]:
    some = store_at(empty)
    yield some
    some.close()


def run(store: SqlStore, text: str) -> list[Any]:
    return store.database.write(lambda session: by_hand(session, text))


def write(store: SqlStore, text: str) -> None:
    store.database.write(lambda session: by_hand(session, text))


def tables(store: SqlStore) -> set[str]:
    if store.database.dialect.name == "sqlite":
        return {row[0].lower() for row in run(store, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    if store.database.dialect.name == "mssql":
        return {row[0] for row in run(store, "SELECT LOWER(name) FROM sys.tables")}
    if store.database.dialect.name == "mysql":
        return {row[0].lower() for row in run(store, "SHOW TABLES")}
    return {row[0] for row in run(store, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


def numbers(store: SqlStore) -> list[int]:
    return [row[0] for row in run(store, "SELECT Number FROM SchemaMigrations ORDER BY Number")]


def known(store: SqlStore) -> Sequence[Migration]:
    return migrations.migrations(store.database.dialect.name)


def with_another(store: SqlStore, monkeypatch: pytest.MonkeyPatch, text: str) -> int:
    """Let this package be a version newer, whose last migration runs this script.

    Return the version it was.
    """
    before = len(known(store))
    more = (*known(store), Migration(len(known(store)) + 1, "more", text, "checksum"))
    monkeypatch.setattr(migrations, "migrations", lambda _: more)
    return before


def test_migrating_an_empty_database_creates_everything(store: SqlStore) -> None:
    told: list[str] = []
    applied = store.migrate(told.append)
    assert applied == [f"{one.number:04d}_{one.name}" for one in known(store)]
    assert len(told) == len(applied)
    assert tables(store) >= TABLES
    assert len(run(store, "SELECT StoreId FROM StoreInfo")) == 1
    store.check_schema()


def test_asking_for_a_file_that_is_not_there_says_so_and_makes_none(tmp_path: Path) -> None:
    """An empty file would look like a database without tables, perhaps at the wrong place."""
    path = tmp_path / "a name? with % and #.db"
    some = store_at(f"sqlite:///{urllib.parse.quote(str(path))}")
    for _ in range(2):
        with pytest.raises(SchemaError, match=r"there is no database at .*: run celery -A app sqlbeat init"):
            some.check_schema()
        assert not path.exists()
    some.migrate()
    some.check_schema()
    path.unlink()
    some.close()
    with pytest.raises(SchemaError, match="there is no database at"):
        some.check_schema()
    assert not path.exists()
    elsewhere = store_at(f"sqlite:///{tmp_path / 'no-such-folder' / 'jobs.db'}")
    with pytest.raises(DatabaseUnavailable, match="cannot be made: unable to open"):
        elsewhere.migrate()


def test_migrating_again_applies_nothing_and_keeps_the_id_of_the_store(store: SqlStore) -> None:
    store.migrate()
    before = store.check_schema()
    assert store.migrate() == []
    assert store.check_schema() == before


def test_two_stores_have_different_ids(store: SqlStore, tmp_path: Path) -> None:
    store.migrate()
    other = store_at(f"sqlite:///{tmp_path / 'other.db'}")
    other.migrate()
    assert other.check_schema().store_id != store.check_schema().store_id
    other.close()


def test_threads_that_migrate_at_once_apply_each_migration_once(empty: str) -> None:
    applied: list[list[str]] = []
    at_once = threading.Barrier(8)

    def migrate() -> None:
        some = store_at(empty)
        at_once.wait(30)
        applied.append(some.migrate())
        some.close()

    threads = [threading.Thread(target=migrate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(applied) == 8
    some = store_at(empty)
    assert sorted(itertools.chain(*applied)) == [f"{one.number:04d}_{one.name}" for one in known(some)]
    some.check_schema()
    some.close()


def _migrate(empty: str, at_once: Any, applied: Any) -> None:
    some = store_at(empty)
    at_once.wait(30)
    applied.put(some.migrate())
    some.close()


@pytest.mark.slow
def test_processes_that_migrate_at_once_apply_each_migration_once(empty: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    at_once, applied = spawn.Barrier(2), spawn.Queue()
    processes = [spawn.Process(target=_migrate, args=(empty, at_once, applied)) for _ in range(2)]
    for process in processes:
        process.start()
    both = sorted(itertools.chain(*(applied.get(timeout=60) for _ in processes)))
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    some = store_at(empty)
    assert both == [f"{one.number:04d}_{one.name}" for one in known(some)]
    some.close()


def test_a_migration_that_was_changed_is_refused(store: SqlStore) -> None:
    store.migrate()
    write(store, "UPDATE SchemaMigrations SET Checksum = 'other' WHERE Number = 1")
    for refuse in (store.migrate, store.check_schema):
        with pytest.raises(MigrationChanged) as caught:
            refuse()
        assert caught.value.number == 1


def test_a_migration_that_fails_half_way_leaves_nothing_behind(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.migrate()
    before = with_another(store, monkeypatch, "CREATE TABLE Half (A integer);\nINSERT INTO Missing VALUES (1);\n")
    with pytest.raises(StoreError):
        store.migrate()
    if store.database.dialect.name != "mysql":  # where DDL commits as it runs, and each script may be run again
        assert "half" not in tables(store)
    assert len(numbers(store)) == before


@pytest.mark.parametrize("empty", ["mysql"], indirect=True)
def test_a_migration_that_was_interrupted_after_any_of_its_statements_is_completed(store: SqlStore) -> None:
    texts = [text for one in known(store) for text in one.text.split(";\n")]
    for count in range(len(texts) + 1):
        write(store, (sql_folder("mysql") / "cleanup.sql").read_text(encoding="utf-8"))
        for text in texts[:count]:
            if any(line and not line.startswith("--") for line in text.splitlines()):
                write(store, text)
        assert store.migrate() == [f"{one.number:04d}_{one.name}" for one in known(store)]
        store.check_schema()


def test_what_was_applied_before_a_failing_migration_stays(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before = with_another(store, monkeypatch, "INSERT INTO Missing VALUES (1);\n")
    with pytest.raises(StoreError):
        store.migrate()
    assert len(numbers(store)) == before
    assert tables(store) >= TABLES


def test_a_database_without_tables_is_told_apart(store: SqlStore) -> None:
    with pytest.raises(SchemaError, match="run celery -A app sqlbeat init"):
        store.check_schema()


def test_an_older_schema_is_told_apart(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.migrate()
    before = with_another(store, monkeypatch, "CREATE TABLE More (A integer);\n")
    with pytest.raises(SchemaError, match=f"the schema is at version {before}, this package needs {before + 1}"):
        store.check_schema()
    assert store.migrate() == [f"{before + 1:04d}_more"]
    store.check_schema()


def test_a_newer_schema_does_not_stop_this_version(store: SqlStore) -> None:
    """Versions N and N+1 run side by side."""
    store.migrate()
    later = len(known(store)) + 1
    write(
        store,
        "INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)"
        f" VALUES ({later}, 'later', 'unknown here', '2030-01-01 00:00:00')",
    )
    store.check_schema()
    assert store.migrate() == []


def test_a_later_migration_does_not_stand_for_one_that_is_missing(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.migrate()
    before = with_another(store, monkeypatch, "CREATE TABLE More (A integer);\n")
    write(
        store,
        "INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)"
        f" VALUES ({before + 2}, 'later', 'unknown here', '2030-01-01 00:00:00')",
    )
    with pytest.raises(SchemaError):
        store.check_schema()


def test_the_creation_script_makes_the_same_database(store: SqlStore, empty: str) -> None:
    script = migrations.creation_script(store.database.dialect.name)
    if store.database.dialect.name == "sqlite":
        execute: Callable[[str], Any] = sqlite3.connect(database_url(empty).name).executescript
    elif store.database.dialect.name == "mssql":
        execute = mssql.connect(empty.removeprefix(redaction.ODBC)).execute
    elif store.database.dialect.name == "mysql":
        execute = cast(Any, store.database.dialect.connect()).script
    else:
        psycopg = pytest.importorskip("psycopg")
        execute = psycopg.connect(empty, autocommit=True).execute
    for batch in split_batches(script) if store.database.dialect.name == "mssql" else [script]:
        execute(batch)
    execute.__self__.close()  # type: ignore[attr-defined]
    store.check_schema()
    assert store.migrate() == []
    name = f"job-{secrets.token_hex(3)}"
    write(store, f"INSERT INTO Jobs (JobName, TaskName) VALUES ('{name}', 'app.task')")
    assert name in AdminView(store).jobs(JobQuery(names=[name]))


def test_what_was_applied_is_noted_once_however_often_the_script_runs(store: SqlStore) -> None:
    store.migrate()
    before = store.database.read("read_migrations")
    for number, checksum in before:
        store.database.write(
            lambda session, number=number, checksum=checksum: session.fetch(  # type: ignore[misc]
                "note_migration", number=number, name="again", checksum=checksum
            )
        )
    assert store.database.read("read_migrations") == before


def upgrade(store: SqlStore, oldest: str) -> int:
    """Return what a newer release does to the schema, as far as this one can see it.

    Returns the new version.
    """
    store.migrate()
    version = len(known(store)) + 1
    noted = f"VALUES ({version}, 'more', 'checksum', {'CURRENT_TIMESTAMP'})"
    write(store, f"INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt) {noted}")
    write(store, f"UPDATE StoreInfo SET OldestRelease = '{oldest}'")
    return version


def test_a_newer_schema_that_this_release_may_use_is_worth_a_remark(store: SqlStore) -> None:
    store.migrate()
    assert store.check_schema().remark is None
    version = upgrade(store, celery_sqlbeat.__version__)
    assert store.migrate() == []
    found = store.check_schema()
    assert (found.version, found.known) == (version, version - 1)
    assert f"version {version}, newer than version {version - 1}" in str(found.remark)


def test_a_newer_schema_that_left_this_release_behind_is_refused(store: SqlStore) -> None:
    version = upgrade(store, "99.1.0")
    for refuse in (store.check_schema, store.migrate):
        with pytest.raises(ReleaseTooOld, match=rf"version {version} and needs celery-sqlbeat 99\.1\.0 .* this is 0\."):
            refuse()


def test_each_migration_names_the_oldest_release_that_may_use_it(store: SqlStore) -> None:
    store.migrate()
    assert [row[0] for row in run(store, "SELECT OldestRelease FROM StoreInfo")] == ["0.1.0"]
    for one in known(store)[1:]:
        assert "UPDATE" in one.text and "OldestRelease" in one.text
