"""The real azure-identity and the real driver take what they are given."""

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.faults import AWAY, Fault
from celery_sqlbeat.store.sql.dialects import mssql_tokens
from celery_sqlbeat.store.sql.dialects.mssql import Mssql
from celery_sqlbeat.store.sql.dialects.mssql_probe import no_probe
from celery_sqlbeat.store.sql.dialects.mssql_tokens import Identity
from tests.servers import server
from tests.support.credentials import Credential
from tests.support.fake_odbc import FakePyodbc

SCOPE = "https://database.windows.net/.default"


@pytest.mark.parametrize("kind", ["default", "managed", "cli"])
def test_the_real_azure_identity_takes_what_it_is_given(kind: str) -> None:
    pytest.importorskip("azure.identity")
    assert callable(mssql_tokens.token_source(Identity(kind, None, None, SCOPE)))


def test_the_real_driver_takes_the_token_beside_what_else_it_is_told() -> None:
    """It refuses a token beside a login at once; here it gets as far as the network."""
    server("odbc")
    url = database_url("mssql://127.0.0.1:1/shop?identity=managed")
    mssql = Mssql(url, 1.0, tokens=Credential().tokens(), port_probe=no_probe)
    with pytest.raises(mssql.errors) as caught:
        mssql.connect()
    assert mssql.classify(caught.value) in AWAY
    beside = database_url("mssql+odbc:Server=tcp:127.0.0.1,1;UID=sa;PWD=x")
    with pytest.raises(mssql.errors) as caught:
        Mssql(beside, 1.0, tokens=Credential().tokens(), port_probe=no_probe).connect()
    assert mssql.classify(caught.value) is Fault.FATAL


def test_an_identity_that_lacks_its_surroundings_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("azure.identity")
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError, match=r"the workload identity cannot be used: .*tenant_id"):
        mssql_tokens.token_source(Identity("workload", None, None, SCOPE))


def test_stores_that_log_in_alike_share_their_tokens() -> None:
    pytest.importorskip("azure.identity")
    azure = "mssql://shop.database.windows.net/shop"
    one, other = (Mssql(database_url(azure + end), pyodbc=FakePyodbc()) for end in ("", "2"))
    assert one._tokens is other._tokens is not None
    named = Mssql(database_url(azure + "?identity=managed"), pyodbc=FakePyodbc())
    assert named._tokens is not one._tokens
