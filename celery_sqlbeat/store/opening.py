"""Opens the store that the settings name. No connection is made before the first statement."""

from collections.abc import Callable

from celery_sqlbeat.config import Settings
from celery_sqlbeat.errors import DriverMissing
from celery_sqlbeat.store import migrations, recovery
from celery_sqlbeat.store.admin_store import SqlAdminStore
from celery_sqlbeat.store.beat_store import SqlBeatStore
from celery_sqlbeat.store.breaker import Breaker
from celery_sqlbeat.store.code_store import SqlCodeStore
from celery_sqlbeat.store.database import Database
from celery_sqlbeat.store.node_store import SqlNodeStore
from celery_sqlbeat.store.protocol import (
    AdminStore,
    BeatStore,
    CodeStore,
    NodeStore,
    ResultStore,
    TransferStore,
    WorkerStore,
)
from celery_sqlbeat.store.result_store import SqlResultStore
from celery_sqlbeat.store.session import Dialect
from celery_sqlbeat.store.sqlite import Sqlite
from celery_sqlbeat.store.transfer_store import SqlTransferStore
from celery_sqlbeat.store.worker_store import SqlWorkerStore
from celery_sqlbeat.url import DatabaseUrl


class Store:
    """One database and one namespace, in the parts that beats, workers and administrators see."""

    def __init__(self, database: Database, namespace: str = "default") -> None:
        self.database = database
        self.namespace = namespace

    def for_beat(self, beat: str) -> BeatStore:
        """What a beat of this name needs."""
        return SqlBeatStore(self.database, self.namespace, beat)

    def for_code(self) -> CodeStore:
        """What a beat needs to import its `beat_schedule`."""
        return SqlCodeStore(self.database, self.namespace)

    def for_worker(self, worker: str) -> WorkerStore:
        """What a worker of this name needs."""
        return SqlWorkerStore(self.database, self.namespace, worker)

    def for_admin(self) -> AdminStore:
        """What an administrator needs."""
        return SqlAdminStore(self.database, self.namespace)

    def for_transfer(self) -> TransferStore:
        """What jobs need that come from elsewhere."""
        return SqlTransferStore(self.database, self.namespace)

    def results(self) -> ResultStore:
        """What is needed to end the results of earlier attempts."""
        return SqlResultStore(self.database, self.namespace)

    def nodes(self) -> NodeStore:
        """Who is there, and whose store this is."""
        return SqlNodeStore(self.database, self.namespace)

    def migrate(self, progress: Callable[[str], None] = lambda _: None) -> list[str]:
        """Create or upgrade the schema; returns the names of the migrations applied."""
        return migrations.migrate(self.database, progress)

    def recover(self, progress: Callable[[int], None] = lambda _: None) -> int:
        """Raise every fence by an epoch, after a restore; returns the new epoch."""
        return recovery.recover(self.database, progress)

    def check_schema(self) -> migrations.SchemaVersion:
        """Raise a SchemaError unless this release can work on the schema; returns which one that is."""
        return migrations.check_schema(self.database)

    def close(self) -> None:
        """Close the idle connections."""
        self.database.close()


def open_store(settings: Settings) -> Store:
    """The store of these settings."""
    dialect = dialect_for(settings.database_url, settings.statement_timeout)
    breaker = Breaker(longest=settings.heartbeat_interval / 2)
    return Store(Database(dialect, patience=settings.statement_timeout, breaker=breaker), settings.namespace)


def dialect_for(url: DatabaseUrl, statement_timeout: float) -> Dialect:
    """The dialect of an address; its driver is imported here, so that the others need not be installed."""
    if url.database == "sqlite":
        return Sqlite(url, statement_timeout)
    try:
        if url.database == "postgresql":
            from celery_sqlbeat.store.postgresql import Postgresql

            return Postgresql(url, statement_timeout)
        from celery_sqlbeat.store.mssql import Mssql

        return Mssql(url, statement_timeout)
    except ImportError as error:
        raise DriverMissing(
            f"the driver for {url.database} is not installed ({error.name}): "
            f'run pip install "celery-sqlbeat[{url.database}]"'
        ) from error
