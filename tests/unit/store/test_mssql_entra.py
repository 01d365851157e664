"""Who logs in to SQL Server without a password, with what, and what a refused login means."""

import importlib.util
import logging
import struct
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import DatabaseUnavailable, DriverMissing, SettingError, StoreError
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.dialects import mssql_tokens
from celery_sqlbeat.store.sql.dialects.mssql import Mssql
from celery_sqlbeat.store.sql.dialects.mssql_tokens import (
    ACCESS_TOKEN,
    RETIRE_SECONDS,
    Identity,
    Token,
    Tokens,
    TokenUnavailable,
    identity_of,
    tokens_for,
)
from celery_sqlbeat.store.sql.engine import Database
from tests.support.credentials import HOUR, SECRET, Credential, shown
from tests.support.fake_odbc import FakeConnection, FakePyodbc, InterfaceError

AZURE = "mssql://shop.database.windows.net/shop"
SCOPE = "https://database.windows.net/.default"


def refusal() -> InterfaceError:
    text = (
        "[28000] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]Login failed for user '<token-identified "
        "principal>'. (18456) (SQLDriverConnect)"
    )
    return InterfaceError("28000", text)


@pytest.mark.parametrize(
    ("options", "who"),
    [
        ("", ("default", None, None)),
        ("?client_id=6f0c", ("default", "6f0c", None)),
        ("?identity=managed", ("managed", None, None)),
        ("?Identity=managed&Client_Id=6f0c", ("managed", "6f0c", None)),
        ("?identity=workload&client_id=6f0c&tenant_id=77aa", ("workload", "6f0c", "77aa")),
        ("?identity=cli&tenant_id=77aa", ("cli", None, "77aa")),
        ("?Trusted_Connection=no", ("default", None, None)),
    ],
)
def test_an_address_without_a_user_may_name_its_identity(options: str, who: tuple[str, str | None, str | None]) -> None:
    assert identity_of(database_url(AZURE + options)) == Identity(*who, SCOPE)


@pytest.mark.parametrize(
    "text",
    [
        "mssql://sa:x@db/shop",
        "mssql://sa@db/shop",
        "mssql://db/shop?Trusted_Connection=yes",
        "mssql://db/shop?authentication=ActiveDirectoryMsi",
        "mssql+odbc:Server=db;UID=sa;PWD=x",
        "mssql+odbc:Server=db;Authentication=ActiveDirectoryMsi",
        "mssql+odbc:Server=db;trusted_connection=Yes",
        "mssql+odbc:DSN=shop",
    ],
)
def test_an_address_with_a_login_of_its_own_needs_no_token(text: str) -> None:
    assert identity_of(database_url(text)) is None


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("mssql://db/shop", SCOPE),
        ("mssql+odbc:Server=tcp:shop.database.windows.net,1433;Database=shop", SCOPE),
        ("mssql://x.database.usgovcloudapi.net/shop", "https://database.usgovcloudapi.net/.default"),
        ("mssql+odbc:Server=x.database.chinacloudapi.cn,1433", "https://database.chinacloudapi.cn/.default"),
    ],
)
def test_a_token_is_for_the_cloud_of_the_server(text: str, scope: str) -> None:
    identity = identity_of(database_url(text))
    assert identity is not None and identity.scope == scope


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (AZURE + "?identity=nobody", "identity is one of default, managed, workload, cli"),
        (AZURE + "?identity=managed&tenant_id=77aa", "tenant_id says nothing about identity=managed"),
        (AZURE + "?identity=cli&client_id=6f0c", "client_id says nothing about identity=cli"),
        ("mssql://sa:x@db/shop?identity=managed", "identity is for addresses without a user"),
        ("mssql://db/shop?client_id=6f0c&Authentication=ActiveDirectoryMsi", "client_id is for addresses without"),
    ],
)
def test_an_identity_that_cannot_be_is_refused_when_the_address_is_read(text: str, reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        database_url(text)


def test_an_identity_is_no_secret_and_is_not_told_to_the_driver() -> None:
    url = database_url(AZURE + "?identity=managed&client_id=6f0c")
    assert str(url) == url.text
    pyodbc = FakePyodbc()
    Mssql(url, pyodbc=pyodbc, tokens=Credential().tokens()).connect()
    string = pyodbc.asked[0][0].lower()
    assert "identity" not in string and "client_id" not in string
    assert "encrypt=yes" in string and "trustservercertificate=no" in string


def test_the_driver_gets_the_token_as_a_length_and_utf_16() -> None:
    [(name, value)] = Token("aé☕", 0, 1).attributes().items()
    assert name == ACCESS_TOKEN == 1256
    assert value == struct.pack("<I", 6) + "aé☕".encode("utf-16-le")


class FakeAzure:
    """The module azure.identity: which credentials were made, and how."""

    def __init__(self) -> None:
        self.made: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def make(**named: Any) -> Any:
            self.made.append((name, named))
            return SimpleNamespace(get_token=lambda scope: (scope, 0))

        return make


@pytest.mark.parametrize(
    ("identity", "made"),
    [
        (Identity("default", None, None, SCOPE), ("DefaultAzureCredential", {})),
        (
            Identity("default", "6f0c", None, SCOPE),
            (
                "DefaultAzureCredential",
                {"managed_identity_client_id": "6f0c", "workload_identity_client_id": "6f0c"},
            ),
        ),
        (Identity("managed", "6f0c", None, SCOPE), ("ManagedIdentityCredential", {"client_id": "6f0c"})),
        (
            Identity("workload", "6f0c", "77aa", SCOPE),
            ("WorkloadIdentityCredential", {"client_id": "6f0c", "tenant_id": "77aa"}),
        ),
        (Identity("cli", None, None, SCOPE), ("AzureCliCredential", {"tenant_id": ""})),
    ],
)
def test_each_identity_is_asked_as_azure_does_it(
    monkeypatch: pytest.MonkeyPatch, identity: Identity, made: tuple[str, dict[str, Any]]
) -> None:
    azure = FakeAzure()
    monkeypatch.setitem(sys.modules, "azure.identity", azure)
    assert mssql_tokens.token_source(identity)() == (SCOPE, 0)
    assert azure.made == [made]


def test_without_azure_identity_an_address_that_needs_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    tokens_for.cache_clear()
    with pytest.raises(DriverMissing, match=r"azure-identity is not installed: run pip install .*\[mssql\]"):
        Mssql(database_url(AZURE), pyodbc=FakePyodbc())
    Mssql(database_url("mssql://sa:x@db/shop"), pyodbc=FakePyodbc())
    tokens_for.cache_clear()


def dialect(tokens: Tokens, *answers: FakeConnection | Exception) -> tuple[Mssql, FakePyodbc]:
    pyodbc = FakePyodbc(*answers)
    return Mssql(database_url(AZURE), 1.0, pyodbc=pyodbc, tokens=tokens), pyodbc


def test_a_connection_is_recycled_before_its_token_ends() -> None:
    credential = Credential()
    mssql, pyodbc = dialect(credential.tokens())
    database = Database(mssql)
    for _ in range(2):
        database.read("read_clock")
    assert len(pyodbc.asked) == 1
    credential.now += HOUR - RETIRE_SECONDS
    database.read("read_clock")
    first, second = (settings["attrs_before"][ACCESS_TOKEN] for _, settings in pyodbc.asked)
    assert first.endswith("1".encode("utf-16-le")) and second.endswith("2".encode("utf-16-le"))


def test_a_token_that_the_server_refuses_is_replaced_and_the_work_done() -> None:
    credential = Credential()
    mssql, pyodbc = dialect(credential.tokens(), refusal())
    assert mssql._tokens is not None
    mssql._tokens.current(1)
    credential.now += HOUR / 2  # old enough to have ended by the server's clock
    Database(mssql, sleep=lambda _: None).read("read_clock")
    assert len(pyodbc.asked) == 2 and credential.asked == 2


def test_a_new_token_that_the_server_refuses_is_an_error_that_says_what_to_look_at() -> None:
    mssql, pyodbc = dialect(Credential().tokens(), refusal())
    with pytest.raises(
        StoreError, match=r"token-identified principal.*is this identity a user of the database"
    ) as caught:
        Database(mssql).read("read_clock")
    assert not isinstance(caught.value, DatabaseUnavailable)
    assert len(pyodbc.asked) == 1


def test_a_refused_password_is_no_matter_of_tokens() -> None:
    mssql = Mssql(database_url("mssql://sa:x@db/shop"), pyodbc=FakePyodbc(refusal()))
    with pytest.raises(InterfaceError):
        mssql.connect()
    assert mssql.classify(refusal()) is Fault.FATAL


def test_a_failing_credential_is_a_database_that_is_away() -> None:
    credential = Credential()
    credential.answers = [RuntimeError("az login, please")] * 9
    mssql, pyodbc = dialect(credential.tokens())
    assert mssql.classify(TokenUnavailable("x")) is Fault.LOST
    with pytest.raises(DatabaseUnavailable, match="az login, please"):
        Database(mssql, patience=0.0, sleep=lambda _: None).read("read_clock")
    assert pyodbc.asked == []
    assert credential.asked == 1  # however often the work is tried


def test_a_login_that_fails_shows_no_token(caplog: pytest.LogCaptureFixture) -> None:
    mssql, _ = dialect(Credential().tokens(), refusal())
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError) as caught:
        Database(mssql).read("read_clock")
    for form in (SECRET, SECRET.encode("utf-16-le").decode("latin-1"), repr(SECRET.encode("utf-16-le"))[2:-1]):
        assert form not in shown(caught.value) + caplog.text
