"""Register beats and workers, and read the register."""

from collections.abc import Iterable
from datetime import datetime

from celery_sqlbeat.model import Node, SeenNode
from celery_sqlbeat.store.sql.engine import Part
from celery_sqlbeat.store.sql.session import Session


class Nodes(Part):
    """The register of beats and workers."""

    def heartbeat(self, node: Node) -> datetime:
        """Record that this node is alive, or has stopped in order; return the server's clock."""
        facts = node._asdict()
        if not facts.pop("is_stopped"):
            at: datetime = self.database.fetch("note_node", namespace=self.namespace, **facts)[0][0]
            return at

        def work(session: Session) -> datetime:
            session.fetch("stop_node", namespace=self.namespace, node_id=node.node_id)
            session.fetch("bump_changes", namespace=self.namespace)
            at: datetime = session.fetch("read_clock")[0][0]
            return at

        return self.database.write(work)

    def nodes(self, memory_seconds: float) -> list[SeenNode]:
        """Return the nodes that were alive within so many seconds."""
        rows = self.database.read("read_nodes", namespace=self.namespace, memory_seconds=memory_seconds)
        return [SeenNode._make(row) for row in rows]

    def tasks(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """Return the JSON lists of the tasks that workers know, by node; None of one without."""
        rows = [(node_id,) for node_id in sorted(node_ids)]
        return dict(self.database.read("read_tasks", rows, namespace=self.namespace)) if rows else {}
