"""How a SQL Server is reached.

The connection string, the driver, the session's settings, and no secret shown.
"""

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.config.redaction import odbc_pairs
from celery_sqlbeat.errors import DriverMissing, StoreError, TransientError
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.dialects.mssql import Mssql, _result
from celery_sqlbeat.store.sql.dialects.mssql_driver import connection_string, find_driver
from celery_sqlbeat.store.sql.engine import Database
from tests.support.fake_odbc import Error, FakeConnection, FakeCursor, FakePyodbc, OperationalError, ProgrammingError

DRIVER = "ODBC Driver 18 for SQL Server"


def pairs(text: str, driver: Callable[[], str] = lambda: DRIVER) -> dict[str, str]:
    written = odbc_pairs(connection_string(database_url(text), driver))
    assert written is not None
    return {pair.key: pair.value for pair in reversed(written)}  # of two equal keywords the first counts


def dialect(text: str, *answers: FakeConnection) -> Mssql:
    return Mssql(database_url(text), pyodbc=FakePyodbc(*answers))


def no_driver() -> str:
    raise AssertionError("the driver was looked for")


def test_a_url_connects_encrypted_verified_and_without_the_drivers_own_retries() -> None:
    found = pairs("mssql://sa:secret@db/shop")
    assert found["driver"] == DRIVER and found["server"] == "tcp:db" and found["database"] == "shop"
    assert (found["uid"], found["pwd"]) == ("sa", "secret")
    assert (found["encrypt"], found["trustservercertificate"], found["connectretrycount"]) == ("yes", "no", "0")


def test_a_url_without_a_user_names_none() -> None:
    assert not {"uid", "pwd"} & pairs("mssql://shop.database.windows.net/shop").keys()


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("mssql://db:1434/shop", "tcp:db,1434"),
        ("mssql://db/prod/shop", "tcp:db\\prod"),
        ("mssql://db:1434/prod/shop", "tcp:db\\prod,1434"),
    ],
)
def test_a_url_may_name_port_and_instance(url: str, server: str) -> None:
    assert pairs(url)["server"] == server


@pytest.mark.parametrize("password", ["a;b", "a}b", "{a}", "}}", "a=b;Encrypt=no", "x y", "'\"", "pässwört", "a{b"])
def test_whatever_a_password_holds_stays_in_it(password: str) -> None:
    found = pairs(f"mssql://sa:{quote(password, safe='')}@db/shop")
    assert (found["pwd"], found["encrypt"]) == (password, "yes")


def test_an_option_wins_over_the_default_in_any_case() -> None:
    found = pairs("mssql://db/shop?encrypt=strict&KEEPALIVE=30&Driver=FreeTDS", no_driver)
    assert (found["encrypt"], found["keepalive"], found["driver"]) == ("strict", "30", "FreeTDS")


@pytest.mark.parametrize(
    "text",
    [
        "mssql://db/shop?CONNECTRETRYCOUNT=3&Driver=x",
        "mssql+odbc:Driver={x};Server=db;ConnectRetryCount=3",
        "mssql+odbc:DSN=shop;connectretrycount=3",
    ],
)
def test_the_drivers_own_retries_never_multiply_ours(text: str) -> None:
    assert pairs(text, no_driver)["connectretrycount"] == "0"


def test_a_raw_string_stays_as_it_is_and_is_completed() -> None:
    text = "Driver={X};Server=db,1433;UID=sa;PWD={a;b};Encrypt=no;"
    string = connection_string(database_url("mssql+odbc:" + text), no_driver)
    assert ";Driver={X};Server=db,1433;UID=sa;PWD={a;b};Encrypt=no;" in string
    found = pairs("mssql+odbc:" + text)
    assert (found["encrypt"], found["connectretrycount"], found["app"]) == ("no", "0", "celery-sqlbeat")


def test_a_raw_string_without_a_driver_gets_one() -> None:
    assert pairs("mssql+odbc:Server=db;Database=shop")["driver"] == DRIVER


def test_what_a_data_source_says_about_encryption_holds() -> None:
    found = pairs("mssql+odbc:DSN=shop;UID=sa;PWD=x", no_driver)
    assert not {"driver", "encrypt"} & found.keys()
    assert found["connectretrycount"] == "0"


def library(folder: Path, *parts: str) -> str:
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True)
    path.touch()
    return str(path)


def test_an_installed_driver_is_preferred_and_the_newest_of_them() -> None:
    known = ["SQLite3", "ODBC Driver 17 for SQL Server", DRIVER]
    assert find_driver(lambda: known, libraries=no_folder) == DRIVER
    assert find_driver(lambda: known[:2], libraries=no_folder) == known[1]


def no_folder() -> Path | None:
    raise AssertionError("the wheel was looked for")


@pytest.mark.parametrize(
    ("machine", "family", "parts"),
    [
        ("x86_64", "rhel", ("rhel", "x86_64")),
        ("AMD64", "debian_ubuntu", ("debian_ubuntu", "x86_64")),
        ("aarch64", "alpine", ("debian_ubuntu", "arm64")),  # the wheel for this libc holds no such family
    ],
)
def test_the_wheel_gives_the_library_of_the_platform(
    tmp_path: Path, machine: str, family: str, parts: tuple[str, str]
) -> None:
    name = "libmsodbcsql-18.6.so.2.1"
    for other in ("debian_ubuntu", "rhel"):
        for arch in ("x86_64", "arm64"):
            if (other, arch) != parts:
                library(tmp_path, "linux", other, arch, "lib", name)
    wanted, loaded = library(tmp_path, "linux", *parts, "lib", name), list[str]()
    assert find_driver(list, "Linux", machine, family, lambda: tmp_path, loaded.append) == wanted


def test_the_wheel_gives_the_library_for_a_mac(tmp_path: Path) -> None:
    wanted, loaded = library(tmp_path, "macos", "arm64", "lib", "libmsodbcsql.18.dylib"), list[str]()
    assert find_driver(list, "Darwin", "arm64", None, lambda: tmp_path, loaded.append) == wanted


def test_a_driver_that_lacks_a_library_names_it_and_the_command_that_helps(tmp_path: Path) -> None:
    library(tmp_path, "linux", "debian_ubuntu", "x86_64", "lib", "libmsodbcsql-18.6.so.2.1")

    def load(path: str) -> None:
        raise OSError("libgssapi_krb5.so.2: cannot open shared object file: No such file or directory")

    with pytest.raises(DriverMissing, match=r"libgssapi_krb5.*: run .*krb5"):
        find_driver(list, "Linux", "x86_64", "debian_ubuntu", lambda: tmp_path, load)


@pytest.mark.parametrize(
    ("system", "command"),
    [("Linux", "pip install mssql-python-odbc"), ("Windows", "winget install Microsoft.msodbcsql.18")],
)
def test_a_missing_driver_is_an_error_with_the_command_that_helps(system: str, command: str) -> None:
    with pytest.raises(DriverMissing, match=command):
        find_driver(list, system, "x86_64", "rhel", lambda: None)


def test_a_session_has_its_settings_and_time_outs() -> None:
    made = FakeConnection()
    pyodbc = FakePyodbc(made)
    url = database_url("mssql://sa:hidden@db/shop")
    Mssql(url, 2.5, pyodbc=pyodbc).connect()
    [(string, settings)] = pyodbc.asked
    assert settings == {"autocommit": True, "timeout": 3, "attrs_before": {}}
    assert f"Driver={{{DRIVER}}}" in string
    assert made.timeout == 3
    for setting in ("XACT_ABORT", "ARITHABORT", "QUOTED_IDENTIFIER", "LOCK_TIMEOUT 1250", "READ COMMITTED"):
        assert setting in made.log[0]


def test_a_connection_that_breaks_at_once_is_closed() -> None:
    made = FakeConnection(OperationalError("08S01", "[08S01] broken (0) (SQLExecDirectW)"))
    with pytest.raises(OperationalError):
        dialect("mssql://sa:x@db/shop?driver=x", made).connect()
    assert made.closed


def test_a_migration_waits_longer_and_only_until_its_end() -> None:
    made = FakeConnection()
    session = dialect("mssql://sa:x@db/shop?driver=x", made).connect()
    session.begin()
    session._cursors["migration_lock"] = FakeCursor(made.log)
    session.migration_lock()
    assert made.timeout == 0 and "SET LOCK_TIMEOUT 600000" in made.log
    session.commit()
    assert made.timeout == 5 and made.log[-1] == "SET LOCK_TIMEOUT 2500"


def test_the_server_is_never_asked_for_the_type_of_a_null() -> None:
    """For None pyodbc asks; in a transaction an error of that question would undo everything."""
    made = FakeConnection()
    session = dialect("mssql://sa:x@db/shop?driver=x", made).connect()
    session.fetch("stop_node", namespace="n", node_id=None)
    values = session._cursors["stop_node"].values
    assert [value for value in values if value is not FakePyodbc.BinaryNull] == ["n"]
    assert FakePyodbc.BinaryNull in values


def test_an_error_is_explained_in_one_line_without_a_secret() -> None:
    mssql = dialect("mssql://sa:hidd3n;x@db/shop".replace(";", "%3B"))
    error = Error("08001", "[08001] cannot connect with\n PWD={hidd3n;x} (0) (SQLDriverConnect)")
    assert "hidd3n" not in mssql.explain(error) and "\n" not in mssql.explain(error)
    assert mssql.explain(error).startswith("[08001] cannot connect with PWD=***")


@pytest.mark.parametrize("error", [Error(), ProgrammingError("no state"), OperationalError("HY000", "whatever (0)")])
def test_an_error_without_a_number_may_be_a_lost_connection(error: Exception) -> None:
    assert dialect("mssql://sa:x@db/shop").classify(error) is Fault.UNKNOWN


def test_what_is_no_error_of_the_driver_is_fatal() -> None:
    assert dialect("mssql://sa:x@db/shop").classify(ValueError()) is Fault.FATAL


class Failing(FakeConnection):
    """A connection whose statements fail, all of them."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def cursor(self) -> FakeCursor:
        cursor = super().cursor()
        cursor.execute = self._fail  # type: ignore[method-assign]
        return cursor

    def _fail(self, text: str, values: object = ()) -> FakeCursor:
        raise self.error


def said(state: str, text: str, number: int, function: str = "SQLExecDirectW") -> OperationalError:
    made = f"[{state}] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]{text} ({number}) ({function})"
    return OperationalError(state, made)


def test_in_a_fail_over_an_ending_goes_over_new_connections_until_it_is_written() -> None:
    """What a server or a gateway says then is on no list.

    Nothing that is to be written is dropped for it.
    """
    cut = Failing(said("HY000", "Connection may have been terminated by the server.", 0))
    odd = Failing(said("42000", "Said by no list.", 99999))
    there = FakeConnection()
    fake = FakePyodbc(
        cut,
        said("42000", "Database 'x' cannot be opened: it is not started.", 941, "SQLDriverConnect"),
        said("42000", "Said by no list.", 99999, "SQLDriverConnect"),
        odd,
        there,
    )
    database = Database(Mssql(database_url("mssql://sa:x@db/shop"), pyodbc=fake), sleep=lambda _: None)
    looked = []

    def settle(session: Any) -> None:
        looked.append(session)

    database.fetch(
        "finish_at_once",
        [],
        settle,
        namespace="n",
        only_unstarted=0,
        only_ended=0,
        only_replaceable=0,
    )
    assert len(fake.asked) == 5 and cut.closed and odd.closed and not there.closed
    assert looked, "the first try may have been committed"
    database.close()


def test_what_can_never_succeed_is_said_at_once() -> None:
    fake = FakePyodbc(Failing(said("42S02", "Invalid object name 'Jobs'.", 208)))
    database = Database(Mssql(database_url("mssql://sa:x@db/shop"), pyodbc=fake), sleep=lambda _: None)
    with pytest.raises(StoreError) as caught:
        database.fetch("finish_at_once", [], namespace="n", only_unstarted=0, only_ended=0, only_replaceable=0)
    assert not isinstance(caught.value, TransientError)
    assert len(fake.asked) == 1
    database.close()


def test_an_error_is_classified_whatever_its_class() -> None:
    text = "[40001] [Microsoft][SQL Server]deadlock (1205) (SQLExecDirectW)"
    for kind in (Error, ProgrammingError, OperationalError):
        assert dialect("mssql://sa:x@db/shop").classify(kind("40001", text)) is Fault.DEADLOCK


class ResultCursor:
    """An answer of several parts, as the driver gives it."""

    def __init__(self, *parts: tuple[Any, list[tuple[Any, ...]]]) -> None:
        self._parts = list(parts)

    @property
    def description(self) -> Any:
        return self._parts[0][0]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._parts[0][1]

    def nextset(self) -> bool:
        del self._parts[0]
        if self._parts and self._parts[0][0] == "error":
            raise Error("23000", "[23000] late (547) (SQLMoreResults)")
        return bool(self._parts)


def test_counts_before_a_result_are_stepped_over_and_instants_are_in_utc() -> None:
    naive = datetime(2027, 1, 1, tzinfo=timezone.utc).replace(tzinfo=None)
    described = [("Now", datetime, None, None, None, None, None), ("Fence", int, None, None, None, None, None)]
    cursor = ResultCursor((None, []), (described, [(naive, 7), (None, 8)]))
    first, second = _result(cursor)
    assert first[0].isoformat() == "2027-01-01T00:00:00+00:00"
    assert (first[1], second) == (7, (None, 8))


def test_an_error_behind_a_result_is_not_missed() -> None:
    with pytest.raises(Error, match="late"):
        _result(ResultCursor(([], []), ("error", [])))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("01000", "[01000] [unixODBC][Driver Manager]Can't open lib 'Foo' : file not found (0) (SQLDriverConnect)"),
        ("IM002", "[IM002] [Microsoft][ODBC Driver Manager] Data source name not found and no default driver (0)"),
        ("IM003", "[IM003] Specified driver could not be loaded due to system error 126: (Foo, foo.dll). (160)"),
    ],
)
def test_a_named_driver_that_is_not_there_is_said_to_be_missing_with_what_helps(state: str, text: str) -> None:
    mssql = Mssql(database_url("mssql://sa:s3kr1t@db/shop?driver=Foo"), pyodbc=FakePyodbc(Error(state, text)))
    with pytest.raises(DriverMissing, match=r"\(ODBC Driver 18 for SQL Server\): leave Driver= out") as caught:
        mssql.connect()
    assert "Foo" in str(caught.value) or state == "IM002"
    assert "s3kr1t" not in str(caught.value)
