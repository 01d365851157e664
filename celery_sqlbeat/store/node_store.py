"""Who is there: beats and workers register themselves, and everybody can look. Also the store's own identity."""

from datetime import datetime

from celery_sqlbeat.model import Node, SeenNode
from celery_sqlbeat.store.database import Database


class SqlNodeStore:
    """The nodes of one namespace."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    def note(self, node: Node) -> datetime:
        """Say that this node is alive; returns the server's clock."""
        at: datetime = self._database.fetch("note_node", namespace=self._namespace, **node._asdict())[0][0]
        return at

    def stop(self, node_id: str) -> None:
        """Say that this node has stopped in order."""
        self._database.fetch("stop_node", namespace=self._namespace, node_id=node_id)

    def seen(self, memory_seconds: float) -> list[SeenNode]:
        """The nodes that were alive within so many seconds."""
        rows = self._database.read("read_nodes", namespace=self._namespace, memory_seconds=memory_seconds)
        return [SeenNode._make(row) for row in rows]

    def clock(self) -> datetime:
        """The server's clock."""
        at: datetime = self._database.read("read_clock")[0][0]
        return at

    def identity(self) -> tuple[str, int]:
        """The id that `init` gave to this store, and its epoch, which grows with every recovery."""
        store_id, epoch = self._database.read("read_store")[0]
        return str(store_id), int(epoch)
