"""What a driver's error means: the classifiers of SQLite and PostgreSQL."""

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.store.faults import AGAIN, AWAY, WAITS, Fault
from celery_sqlbeat.store.sql.dialects.postgresql import Postgresql
from celery_sqlbeat.store.sql.dialects.sqlite import Sqlite, SqliteSession, host_clock

POSTGRESQL = Postgresql(database_url("postgresql://beat:s3cret-word@db.example/jobs"))
SQLITE = Sqlite(database_url("sqlite:///jobs.db"))


def test_every_fault_that_is_tried_again_has_a_wait() -> None:
    assert WAITS.keys() == AGAIN
    assert AWAY < AGAIN


def test_what_is_no_error_of_the_driver_is_fatal() -> None:
    assert POSTGRESQL.classify(ValueError()) is Fault.FATAL
    assert SQLITE.classify(ValueError()) is Fault.FATAL


@pytest.mark.parametrize(
    ("sqlstate", "fault"),
    [
        ("40001", Fault.DEADLOCK),
        ("40P01", Fault.DEADLOCK),
        ("55P03", Fault.TRANSIENT),
        ("57014", Fault.TRANSIENT),
        ("53300", Fault.THROTTLED),
        ("53100", Fault.THROTTLED),
        ("57P01", Fault.LOST),
        ("57P03", Fault.LOST),
        ("08006", Fault.LOST),
        ("25P03", Fault.LOST),
        ("25006", Fault.LOST),
        ("58030", Fault.LOST),
        ("08007", Fault.AMBIGUOUS),
        ("40003", Fault.AMBIGUOUS),
        ("23505", Fault.CONFLICT),
        ("23514", Fault.REFUSED),
        ("22008", Fault.REFUSED),
        ("P0001", Fault.REFUSED),
        ("28P01", Fault.FATAL),
        ("28000", Fault.FATAL),
        ("3D000", Fault.FATAL),
        ("42P01", Fault.FATAL),
        ("42501", Fault.FATAL),
        ("42703", Fault.FATAL),
        ("22P02", Fault.REFUSED),
        ("XX000", Fault.UNKNOWN),
        ("0A000", Fault.UNKNOWN),  # a cached plan whose result has another type since: a new connection has no plan
        ("26000", Fault.UNKNOWN),
        ("42P05", Fault.UNKNOWN),
        ("25P02", Fault.UNKNOWN),
        ("ZZ999", Fault.UNKNOWN),
    ],
)
def test_postgresql_errors_are_classified_by_sqlstate(sqlstate: str, fault: Fault) -> None:
    error = psycopg.OperationalError()
    error.sqlstate = sqlstate
    assert POSTGRESQL.classify(error) is fault


def test_an_error_of_libpq_itself_is_a_lost_connection() -> None:
    assert POSTGRESQL.classify(psycopg.OperationalError("server closed the connection unexpectedly")) is Fault.LOST


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('FATAL:  password authentication failed for user "beat"', Fault.FATAL),
        ('FATAL:  role "beat" does not exist', Fault.FATAL),
        ('FATAL:  database "jobs" does not exist', Fault.FATAL),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "beat", database "jobs", no encryption', Fault.FATAL),
        ("fe_sendauth: no password supplied", Fault.FATAL),
        ("FATAL:  sorry, too many clients already", Fault.THROTTLED),
        ("FATAL:  remaining connection slots are reserved for non-replication superuser connections", Fault.THROTTLED),
        ("FATAL:  the database system is starting up", Fault.LOST),
        ("Connection refused", Fault.LOST),
        ("timeout expired", Fault.LOST),
    ],
)
def test_a_refused_connection_is_classified_by_its_text(text: str, fault: Fault) -> None:
    """The driver knows no SQLSTATE for it."""
    assert POSTGRESQL.classify(psycopg.OperationalError(f"connection to server failed: {text}")) is fault


def test_a_mistake_of_the_caller_is_fatal_on_postgresql() -> None:
    assert POSTGRESQL.classify(psycopg.ProgrammingError("the query has 0 placeholders")) is Fault.FATAL


def test_an_error_of_the_driver_that_no_list_has_is_unknown() -> None:
    assert POSTGRESQL.classify(psycopg.InterfaceError("something new")) is Fault.UNKNOWN


def test_an_error_is_told_in_one_line_without_the_password() -> None:
    told = POSTGRESQL.explain(psycopg.OperationalError('connection to "db.example" as beat:s3cret-word\nfailed'))
    assert "s3cret-word" not in told
    assert "\n" not in told


def test_a_busy_file_is_transient(tmp_path: Path) -> None:
    holder = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, timeout=0)
    with pytest.raises(sqlite3.OperationalError) as caught:
        other.execute("BEGIN IMMEDIATE")
    assert SQLITE.classify(caught.value) is Fault.TRANSIENT
    holder.close()
    other.close()


class Locked:
    """Stands in for a connection whose next statements give these errors."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.texts: list[str] = []

    def execute(self, text: str) -> None:
        self.texts.append(text)
        if self.errors:
            raise sqlite3.OperationalError(self.errors.pop(0))


def begun_on(connection: Any, lock_seconds: float) -> None:
    SqliteSession(connection, host_clock, {}, lock_seconds).begin()


def test_a_writer_asks_for_the_lock_of_a_file_until_it_is_free() -> None:
    connection = Locked(*["database is locked"] * 40)
    begun_on(connection, 60.0)
    assert connection.texts == ["BEGIN IMMEDIATE"] * 41


def test_a_writer_asks_no_more_once_its_time_is_over() -> None:
    connection = Locked(*["database is locked"] * 2)
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        begun_on(connection, 0.0)
    assert connection.texts == ["BEGIN IMMEDIATE"]


def test_a_writer_waits_for_nothing_but_the_lock() -> None:
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        begun_on(Locked("disk I/O error"), 60.0)


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # 3.13 says so of one that never opened
def test_a_file_that_cannot_be_opened_is_a_lost_connection(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(tmp_path / "missing" / "jobs.db")
    assert SQLITE.classify(caught.value) is Fault.LOST


@pytest.mark.parametrize("column", ["INTEGER PRIMARY KEY", "TEXT UNIQUE"])
def test_a_key_that_is_taken_is_a_conflict(column: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE t (a {column})")
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError) as caught:
        connection.execute("INSERT INTO t VALUES (1)")
    assert SQLITE.classify(caught.value) is Fault.CONFLICT
    connection.close()


def test_an_error_that_sqlite_says_of_a_session_is_unknown(tmp_path: Path) -> None:
    """A new session mends some of them: the file was moved, a transaction was left open."""
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    connection.execute("BEGIN")
    with pytest.raises(sqlite3.Error) as caught:
        connection.execute("BEGIN")
    assert SQLITE.classify(caught.value) is Fault.UNKNOWN
    connection.close()


def test_a_row_is_refused_by_another_constraint_and_a_missing_table_is_fatal() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a CHECK (a > 0))")
    fatal = (
        "SELECT * FROM missing",
        "SELECT missing FROM t",
        "SELEC",
        "SELECT nix()",
        "SELECT",
        "SELECT * FROM t WHERE",
    )
    wrongs = dict.fromkeys((*fatal, "INSERT INTO t (b) VALUES (1)"), Fault.FATAL)
    for wrong, fault in {**wrongs, "INSERT INTO t VALUES (0)": Fault.REFUSED}.items():
        with pytest.raises(sqlite3.Error) as caught:
            connection.execute(wrong)
        assert SQLITE.classify(caught.value) is fault
    connection.close()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("database is locked", Fault.TRANSIENT),
        ("database or disk is full", Fault.THROTTLED),
        ("disk I/O error", Fault.LOST),
        ("UNIQUE constraint failed: t.a", Fault.CONFLICT),
        ("no such table: t", Fault.FATAL),
        ('near "SELEC": syntax error', Fault.FATAL),
        ("CHECK constraint failed: a > 0", Fault.REFUSED),
        ("attempt to write a readonly database", Fault.UNKNOWN),
        ("cannot start a transaction within a transaction", Fault.UNKNOWN),
        ("said by no list", Fault.UNKNOWN),
    ],
)
def test_where_python_gives_no_code_the_text_decides(text: str, fault: Fault) -> None:
    """Python 3.10."""
    assert SQLITE.classify(sqlite3.OperationalError(text)) is fault
