"""Which addresses name a port that may be asked before the driver is, and what a refusal means."""

import pytest

from celery_sqlbeat.config.database_url import DatabaseUrl, database_url
from celery_sqlbeat.errors import DatabaseUnavailable
from celery_sqlbeat.store.faults import AWAY
from celery_sqlbeat.store.sql.dialects.mssql import Mssql
from celery_sqlbeat.store.sql.dialects.mssql_probe import PortRefused, named_port
from celery_sqlbeat.store.sql.engine import Database
from tests.support.fake_odbc import FakePyodbc


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("mssql://db:1434/shop", ("db", 1434)),
        ("mssql://db/shop", ("db", 1433)),
        ("mssql://[::1]:1434/shop", ("::1", 1434)),
        ("mssql://db:1434/prod/shop", ("db", 1434)),
        ("mssql://db/prod/shop", None),
        ("mssql://db/shop?Failover_Partner=other", None),
        ("mssql+odbc:Server=db,1434;UID=sa;PWD=x", ("db", 1434)),
        ("mssql+odbc:Server=tcp:db.example, 1434", ("db.example", 1434)),
        ("mssql+odbc:SERVER={tcp:db\\prod,1434};Server=other,1", ("db", 1434)),
        ("mssql+odbc:Address=[::1],1434", ("::1", 1434)),
        ("mssql+odbc:Server=db", None),
        ("mssql+odbc:Server=db\\prod", None),
        ("mssql+odbc:Server=np:\\\\.\\pipe\\sql\\query", None),
        ("mssql+odbc:Server=db,1434;Failover_Partner=other", None),
        ("mssql+odbc:DSN=shop", None),
    ],
)
def test_only_a_port_that_the_address_settles_is_asked(address: str, expected: tuple[str, int] | None) -> None:
    assert named_port(database_url(address)) == expected


def test_a_refused_port_is_an_outage_that_the_driver_is_not_asked_about() -> None:
    fake = FakePyodbc()

    def refused(url: DatabaseUrl, seconds: float) -> None:
        raise PortRefused("connection refused by db, port 1433")

    mssql = Mssql(database_url("mssql://sa:s3kr1t@db/shop"), pyodbc=fake, port_probe=refused)
    assert mssql.classify(PortRefused("")) in AWAY
    database = Database(mssql, patience=0.0, sleep=lambda _: None)
    with pytest.raises(DatabaseUnavailable, match="connection refused by db, port 1433"):
        database.read("read_clock")
    assert fake.asked == []
    database.close()
