"""The register of beats and workers."""

from collections.abc import Iterable
from datetime import datetime

from celery_sqlbeat.model import Node, SeenNode
from celery_sqlbeat.store.keyvalue.reading import read_rows
from celery_sqlbeat.store.keyvalue.rows import Key, Place, Row, Scan
from celery_sqlbeat.store.keyvalue.tables import NODE, NODES, TASKS, after, instant, record_of
from celery_sqlbeat.store.keyvalue.units import View, carry_out, sure

BEAT = "beat"
_SAID_ONCE = ("kind", "host", "pid", "package_version", "started_at")  # by its first heartbeat


class NodeRegister:
    """What a store is asked about nodes."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def heartbeat(self, node: Node) -> datetime:
        """Record that a node is alive, or has stopped in order; return the server's clock."""
        if node.is_stopped:
            return sure(carry_out(self._place, [node], _keys, _stop))[0]
        return sure(carry_out(self._place, [node], _keys, _note))[0]

    def nodes(self, memory_seconds: float) -> list[SeenNode]:
        """Return the nodes that were alive within so many seconds."""
        now, rows = nodes_alive(self._place, memory_seconds)
        seen = [record_of(SeenNode, row, {"node_id": node_id, "now": instant(now)}) for node_id, row in rows.items()]
        return sorted(seen, key=lambda node: (node.kind, node.node_id))

    def tasks(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """Return the JSON lists of the tasks that workers know, by node; None of one without."""
        ids = sorted(set(node_ids))
        tasks = read_rows(self._place, TASKS, ids)
        return {node_id: tasks.get(node_id, {}).get("tasks") for node_id in read_rows(self._place, NODE, ids)}


def nodes_alive(place: Place, seconds: float) -> tuple[int, dict[str, Row]]:
    """Return the clock, and the nodes that were alive within so many seconds, by id."""
    now = place.read().now
    since = after(now, -seconds)
    (recent,) = place.read(scans=[Scan(NODES, low=since + 1)]).scanned
    rows = read_rows(place, NODE, [node_id for node_id, _ in recent.ids])
    return now, {node_id: row for node_id, row in rows.items() if row["heartbeat_at"] > since}


def beats_alive(place: Place, seconds: float) -> tuple[int, dict[str, Row]]:
    """Return the clock, and the beats that are alive and have not stopped, by id."""
    now, rows = nodes_alive(place, seconds)
    alive = {node_id: row for node_id, row in rows.items() if row["kind"] == BEAT and row.get("stopped_at") is None}
    return now, alive


def _keys(node: Node) -> list[Key]:
    return [(NODE, node.node_id), *([] if node.tasks is None else [(TASKS, node.node_id)])]


def _note(view: View, node: Node) -> datetime:
    """Write what a living node tells. Tasks and details that it does not tell again stay."""
    told = node._asdict()
    for field in ("node_id", "tasks", "is_stopped"):
        del told[field]
    before = view.row(NODE, node.node_id) or {"started_at": view.now}
    kept = {field: before[field] for field in _SAID_ONCE if field in before}
    if node.details is None:
        kept["details"] = before.get("details")
    view.add(NODE, node.node_id, {**told, **kept, "heartbeat_at": view.now})
    if node.tasks is not None:
        view.add(TASKS, node.node_id, {"tasks": node.tasks})
    return instant(view.now)


def _stop(view: View, node: Node) -> datetime:
    row = view.row(NODE, node.node_id)
    if row is not None:
        row["stopped_at"] = view.now
        view.is_news = True
    return instant(view.now)
