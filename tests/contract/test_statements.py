"""PostgreSQL gives each block the columns and kinds that its header declares."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.store.sql.dialects.postgresql import Postgresql
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import load
from celery_sqlbeat.store.sql.store import SqlStore

KINDS = {
    "bool": "flag",
    "float8": "seconds",
    "int2": "flag",
    "int4": "int",
    "int8": "bigint",
    "numeric": "bigint",  # the sum of bigints; it comes as a whole number
    "text": "text",
    "timestamptz": "instant",
    "uuid": "id",
}


@pytest.mark.slow
def test_the_server_gives_what_a_header_declares(postgresql_database: Callable[[], str]) -> None:
    import psycopg

    dialect = Postgresql(database_url(postgresql_database()))
    database = Database(dialect)
    SqlStore(database).migrate()
    database.close()
    session = dialect.connect()
    server = cast(Any, session)._connection.pgconn
    names = dict(cast(Any, session)._connection.execute("SELECT oid, typname FROM pg_type"))
    for name, block in load("postgresql").items():
        prepared = server.prepare(b"", block.encoded)
        assert prepared.status == psycopg.pq.ExecStatus.COMMAND_OK, f"{name}: {prepared.error_message.decode()}"
        given = server.describe_prepared(b"")
        if not block.returns.names:
            continue
        kinds = [KINDS[names[given.ftype(at)]] for at in range(given.nfields)]
        columns = [given.fname(at).decode() for at in range(given.nfields)]
        assert list(zip(columns, kinds, strict=True)) == [
            (column.lower(), kind.partition("(")[0]) for column, kind in zip(*block.returns[:2], strict=True)
        ], name
    session.close()
