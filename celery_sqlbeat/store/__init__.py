"""Open the store that the settings name. No connection is made before the first statement."""

from collections.abc import Callable

from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.errors import DriverMissing
from celery_sqlbeat.store.beat_protocol import BeatStore, CodeStore
from celery_sqlbeat.store.protocols import AdminStore, NodeStore, ResultStore, Schema, WorkerStore
from celery_sqlbeat.store.sql import migrations
from celery_sqlbeat.store.sql.beat_schedule import SqlCodeStore
from celery_sqlbeat.store.sql.claims import SqlBeatStore
from celery_sqlbeat.store.sql.dialects.sqlite import Sqlite
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.faults import Breaker
from celery_sqlbeat.store.sql.jobs import SqlAdminStore
from celery_sqlbeat.store.sql.nodes import SqlNodeStore, SqlResultStore
from celery_sqlbeat.store.sql.runs import SqlWorkerStore
from celery_sqlbeat.store.sql.session import Dialect

__all__ = ["Store", "open_store"]


class Store:
    """One database and one namespace, in the parts that beats, workers and administrators see."""

    def __init__(self, database: Database, namespace: str = "default") -> None:
        self.database = database
        self.namespace = namespace

    def for_beat(self, beat: str) -> BeatStore:
        """Return the view of a beat of this name."""
        return SqlBeatStore(self.database, self.namespace, beat)

    def for_code(self) -> CodeStore:
        """Return the view of a beat that imports its `beat_schedule`."""
        return SqlCodeStore(self.database, self.namespace)

    def for_worker(self, worker: str) -> WorkerStore:
        """Return the view of a worker of this name."""
        return SqlWorkerStore(self.database, self.namespace, worker)

    def for_admin(self) -> AdminStore:
        """Return the view of an administrator."""
        return SqlAdminStore(self.database, self.namespace)

    def results(self) -> ResultStore:
        """Return the view that ends the results of earlier attempts."""
        return SqlResultStore(self.database, self.namespace)

    def nodes(self) -> NodeStore:
        """Return the register of nodes."""
        return SqlNodeStore(self.database, self.namespace)

    def migrate(self, progress: Callable[[str], None] = lambda _: None) -> list[str]:
        """Create or upgrade the schema; returns the names of the migrations applied."""
        return migrations.migrate(self.database, progress)

    def recover(self, progress: Callable[[int], None] = lambda _: None) -> int:
        """Raise every fence by an epoch, after a restore; returns the new epoch."""
        return migrations.recover(self.database, progress)

    def check_schema(self) -> Schema:
        """Return the schema and the store's id; a SchemaError: this release cannot use it."""
        return migrations.check_schema(self.database)

    def close(self) -> None:
        """Close the idle connections."""
        self.database.close()


def open_store(settings: Settings) -> Store:
    """Open the store of these settings."""
    dialect = dialect_for(settings.database_url, settings.statement_timeout)
    breaker = Breaker(longest=settings.heartbeat_interval / 2)
    return Store(Database(dialect, patience=settings.statement_timeout, breaker=breaker), settings.namespace)


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
        raise DriverMissing(
            f"the driver for {url.database} is not installed ({error.name}): "
            f'run pip install "celery-sqlbeat[{url.database}]"'
        ) from error
