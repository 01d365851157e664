"""Open the store that the settings name. No connection is made before the first statement."""

import os
from collections.abc import Callable, Mapping
from functools import cache

from celery_sqlbeat import events
from celery_sqlbeat.config.database_url import STORES, DatabaseUrl, other_schemes
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.errors import DriverMissing, StoreError
from celery_sqlbeat.store.faults import Breaker
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.sealed import sealed_store
from celery_sqlbeat.store.sql.dialects.sqlite import Sqlite
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Dialect
from celery_sqlbeat.store.sql.store import SqlStore

__all__ = ["Store", "open_store"]


def open_store(settings: Settings) -> Store:
    """Open the store of these settings: one of ours, or one that another package has added."""
    kind = settings.database_url.database
    store = _FACTORIES.get(kind, _open_other)(settings)
    return store if settings.payload_key is None else sealed_store(store, settings.payload_key)


def _open_sql(settings: Settings) -> Store:
    dialect = dialect_for(settings.database_url, settings.statement_timeout)
    breaker = Breaker(longest=settings.heartbeat_interval / 2)
    return SqlStore(Database(dialect, patience=settings.statement_timeout, breaker=breaker), settings.namespace)


def _open_redis(settings: Settings) -> Store:
    try:
        from celery_sqlbeat.store.redis.store import open_redis
    except ImportError as error:
        raise _missing("redis", error) from error
    return open_redis(settings)


def _open_memory(settings: Settings) -> Store:
    from celery_sqlbeat.store.keyvalue.memory import memory_store

    _tell_of_memory(settings.database_url, os.getpid())
    return memory_store(settings.database_url.name, settings.namespace)


@cache  # once in each process
def _tell_of_memory(address: DatabaseUrl, _process: int) -> None:
    events.advice(
        topic="database",
        text=f"{address} is in the memory of this process: no beat, worker or command of another sees it",
        remedy="let beat and workers be threads of one process, or name a database",
    )


def _open_other(settings: Settings) -> Store:
    """Open the store of another package, by its entry point: a function of the settings."""
    scheme = settings.database_url.database
    try:
        factory = other_schemes()[scheme].load()
    except Exception as error:  # whatever its module raises
        text = " ".join(str(error).split())
        raise StoreError(
            f"the entry point {scheme} of {STORES} cannot be loaded ({type(error).__name__}: {text}): "
            "install the package that has it again, or correct sqlbeat_database_url"
        ) from error
    store: Store = factory(settings)
    return store


_FACTORIES: Mapping[str, Callable[[Settings], Store]] = {
    **dict.fromkeys(("sqlite", "postgresql", "mysql", "mssql"), _open_sql),
    "redis": _open_redis,
    "memory": _open_memory,
}


def dialect_for(url: DatabaseUrl, statement_timeout: float) -> Dialect:
    """Return the dialect of an address; no other driver is imported."""
    if url.database == "sqlite":
        return Sqlite(url, statement_timeout)
    try:
        if url.database == "postgresql":
            from celery_sqlbeat.store.sql.dialects.postgresql import Postgresql

            return Postgresql(url, statement_timeout)
        if url.database == "mysql":
            from celery_sqlbeat.store.sql.dialects.mysql import Mysql

            return Mysql(url, statement_timeout)
        from celery_sqlbeat.store.sql.dialects.mssql import Mssql

        return Mssql(url, statement_timeout)
    except ImportError as error:
        raise _missing(url.database, error) from error


def _missing(database: str, error: ImportError) -> DriverMissing:
    return DriverMissing(
        f'the driver for {database} is not installed ({error.name}): run pip install "celery-sqlbeat[{database}]"'
    )
