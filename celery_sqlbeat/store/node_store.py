"""Who is there: beats and workers register themselves, and everybody can look. Also the store's own identity."""

from collections.abc import Iterable
from datetime import datetime

from celery_sqlbeat.model import Node, SeenNode
from celery_sqlbeat.store.database import Database
from celery_sqlbeat.store.session import Session


class SqlNodeStore:
    """The NodeStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    def note(self, node: Node) -> datetime:
        at: datetime = self._database.fetch("note_node", namespace=self._namespace, **node._asdict())[0][0]
        return at

    def stop(self, node_id: str) -> None:
        def work(session: Session) -> None:
            session.fetch("stop_node", namespace=self._namespace, node_id=node_id)
            session.fetch("bump_changes", namespace=self._namespace)

        self._database.write(work)

    def seen(self, memory_seconds: float) -> list[SeenNode]:
        rows = self._database.read("read_nodes", namespace=self._namespace, memory_seconds=memory_seconds)
        return [SeenNode._make(row) for row in rows]

    def tasks(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        rows = [(node_id,) for node_id in sorted(node_ids)]
        return dict(self._database.read("read_tasks", rows, namespace=self._namespace)) if rows else {}

    def clock(self) -> datetime:
        at: datetime = self._database.read("read_clock")[0][0]
        return at

    def identity(self) -> tuple[str, int]:
        store_id, epoch = self._database.read("read_store")[0]
        return str(store_id), int(epoch)
