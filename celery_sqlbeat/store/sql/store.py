"""Keep the promises of a store in a SQL database."""

from collections.abc import Callable
from functools import cached_property

from celery_sqlbeat.store.records import Remark, Schema
from celery_sqlbeat.store.sql import migrations
from celery_sqlbeat.store.sql.beat_schedule import Schedules
from celery_sqlbeat.store.sql.cancel import Cancellations
from celery_sqlbeat.store.sql.claims import Claims
from celery_sqlbeat.store.sql.jobs import Jobs
from celery_sqlbeat.store.sql.locks import Locks
from celery_sqlbeat.store.sql.nodes import Nodes
from celery_sqlbeat.store.sql.one_offs import OneOffs
from celery_sqlbeat.store.sql.runs import Runs


class SqlStore(Claims, Runs, Cancellations, Jobs, OneOffs, Nodes, Locks, Schedules):
    """One namespace of a SQL database."""

    def migrate(self, progress: Callable[[str], None] = lambda _: None) -> list[str]:
        """Create or upgrade the schema; return the names of the migrations applied."""
        return migrations.migrate(self.database, progress)

    def check_schema(self) -> Schema:
        """Return the schema and the store's id; a SchemaError: this release cannot use it."""
        return migrations.check_schema(self.database)

    @cached_property
    def store_id(self) -> str:
        """The id of the store, which stays the same as long as its tables."""
        return str(self.database.read("read_store")[0][0])

    def recover(self, progress: Callable[[int], None] = lambda _: None) -> int:
        """Raise every fence by an epoch, after a restore; return the new epoch."""
        return migrations.recover(self.database, progress)

    def remarks(self) -> list[Remark]:
        """Return a note of a pooler that stands before the server."""
        pooling = self.database.pooling()
        if pooling is None:
            return []
        kept = "each transaction" if pooling == "transactions" else "each session"
        text = (
            f"a pooler stands before the database, and gives {kept} a server connection that others had before: "
            "nothing is set or prepared there beyond a transaction, so each statement is planned anew"
        )
        remedy = "nothing; the server's own port saves that work where beats and workers are few"
        return [Remark("note", "pooler", text, remedy)]

    def close(self) -> None:
        """Close the idle connections."""
        self.database.close()
