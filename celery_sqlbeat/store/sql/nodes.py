"""The SQL stores of nodes, and of results to be ended."""

from collections.abc import Iterable
from datetime import datetime

from celery_sqlbeat.model import EndedSlot, Node, SeenNode
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Session


class SqlNodeStore:
    """The NodeStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    def heartbeat(self, node: Node) -> datetime:
        """Record that this node is alive, or has stopped in order; return the server's clock."""
        facts = node._asdict()
        if not facts.pop("is_stopped"):
            at: datetime = self._database.fetch("note_node", namespace=self._namespace, **facts)[0][0]
            return at

        def work(session: Session) -> datetime:
            session.fetch("stop_node", namespace=self._namespace, node_id=node.node_id)
            session.fetch("bump_changes", namespace=self._namespace)
            at: datetime = session.fetch("read_clock")[0][0]
            return at

        return self._database.write(work)

    def seen(self, memory_seconds: float) -> list[SeenNode]:
        """Return the nodes that were alive within so many seconds."""
        rows = self._database.read("read_nodes", namespace=self._namespace, memory_seconds=memory_seconds)
        return [SeenNode._make(row) for row in rows]

    def tasks(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """Return the JSON lists of the tasks that workers know, by node; None of one without."""
        rows = [(node_id,) for node_id in sorted(node_ids)]
        return dict(self._database.read("read_tasks", rows, namespace=self._namespace)) if rows else {}

    def clock(self) -> datetime:
        """Return the server's clock."""
        at: datetime = self._database.read("read_clock")[0][0]
        return at


class SqlResultStore:
    """The ResultStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    def unended(self, page_size: int, since_seconds: float) -> list[EndedSlot]:
        """Return slots that ended recently and whose earlier attempts may have no final result."""
        scope = {"namespace": self._namespace, "page_size": page_size, "since_seconds": since_seconds}
        slots = [EndedSlot(*row) for row in self._database.read("read_unended", **scope)]
        if not slots:
            return []
        earlier: dict[str, list[tuple[str, int]]] = {}
        for run_id, earlier_id, attempt in self._database.read("read_earlier", [(slot.run_id,) for slot in slots]):
            earlier.setdefault(run_id, []).append((earlier_id, attempt))
        return [slot._replace(earlier=tuple(earlier.get(slot.run_id, ()))) for slot in slots]

    def ended(self, run_ids: Iterable[str]) -> None:
        """Say that the results of these attempts are ended, or need no end."""
        self._database.fetch("end_results", [(run_id,) for run_id in sorted(set(run_ids))])
