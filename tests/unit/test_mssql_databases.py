"""Databases on a SQL Server of somebody's.

Made though others make theirs, removed, and refused with a reason.
"""

from typing import Any

import pytest

from tests import mssql
from tests.conftest import is_left_behind, new_name
from tests.support.fake_odbc import FakePyodbc, ProgrammingError


class Administrator:
    """A connection that fails as it is told."""

    def __init__(self, *failures: str) -> None:
        self.log: list[str] = []
        self.databases: list[str] = []
        self._failures = list(failures)

    def execute(self, text: str) -> Any:
        self.log.append(text)
        if text.startswith("CREATE") and self._failures:
            raise ProgrammingError("42000", self._failures.pop(0))
        if text.startswith("DROP") and "forbidden" in text:
            raise ProgrammingError("42000", "[42000] cannot drop (3701) (SQLExecDirectW)")
        return self

    def fetchall(self) -> list[tuple[str]]:
        return [(name,) for name in self.databases]


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mssql, "load_pyodbc", FakePyodbc)
    monkeypatch.setattr(mssql, "_PAUSE_SECONDS", 0)


def test_a_database_is_made_with_and_without_snapshots() -> None:
    some = Administrator()
    mssql.create(some, "a")
    mssql.create(some, "b", snapshots=True)
    mssql.create(some, "c", snapshots=False)
    assert [text.rpartition(" ")[2] for text in some.log if text.startswith("ALTER")] == ["ON", "OFF"]


def test_a_model_database_that_somebody_uses_is_waited_for() -> None:
    some = Administrator("[42000] exclusive lock on database 'model' (1807) (SQLExecDirectW)")
    mssql.create(some, "a")
    assert some.log == ["CREATE DATABASE a"] * 2


def test_a_login_that_may_not_create_databases_is_told_what_it_lacks() -> None:
    some = Administrator("[42000] CREATE DATABASE permission denied in database 'master'. (262) (SQLExecDirectW)")
    with pytest.raises(pytest.fail.Exception, match="GRANT CREATE ANY DATABASE TO"):
        mssql.create(some, "a")


def test_another_error_is_not_taken_for_either() -> None:
    with pytest.raises(ProgrammingError):
        mssql.create(Administrator("[42000] no room (1105) (SQLExecDirectW)"), "a")


def test_what_killed_runs_left_is_removed_as_far_as_it_may_be() -> None:
    some = Administrator()
    gone = f"sqlbeat_test_{2**22 + 1}_5f000000_00"  # made years ago
    some.databases = [new_name(), gone + "_forbidden", gone, "of_somebody"]
    mssql.drop_remains(some, lambda name: is_left_behind(name.removesuffix("_forbidden")))
    assert [text for text in some.log if text.startswith("DROP")] == [
        f"DROP DATABASE {gone}_forbidden",
        f"DROP DATABASE {gone}",
    ]


def test_the_database_of_the_address_is_replaced() -> None:
    assert mssql.in_database("Server=db;DATABASE=shop;UID=sa;", "x") == "Server=db;UID=sa;Database=x"
