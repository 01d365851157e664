"""Know which queues have workers with the extension, and which tasks these know."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from celery_sqlbeat.environment import THIS_MACHINE, Machine
from celery_sqlbeat.model import SeenNode, nodes
from celery_sqlbeat.model.nodes import Queues, mark_in, names_in, nobody_has, read_queues
from celery_sqlbeat.store import Store

_MOST_MARKS = 100  # of worker releases whose tasks are remembered
_OUT_OF_ORDER = 1.0  # seconds by which the stamps of two simultaneous statements may be swapped
_KNOWN_SECONDS = 10.0  # for which the list of nodes is kept; a new worker gets leased slots as soon
_LEAST_SECONDS = 1.0  # between two readings of the list, whoever asks


class KnownWorkers:
    """Knows the other nodes of a namespace, for a process that has no row among them."""

    def __init__(
        self, store: Store, worker_memory: float, alive_seconds: float, machine: Machine = THIS_MACHINE
    ) -> None:
        self._store = store
        self._memory = worker_memory
        self._alive_seconds = alive_seconds
        self._machine = machine
        self._known: tuple[float, list[tuple[SeenNode, Queues]]] | None = None
        self._beats: list[SeenNode] = []
        """The living beats."""
        self._names: dict[str, frozenset[str] | None] = {}
        """The tasks that workers know, by their mark."""
        self._known_tasks: dict[tuple[str | None, str], bool] = {}
        """Answers about queues and tasks, for as long as the list of nodes is kept."""

    def tell(self, key: str, ask: Callable[[], object]) -> None:
        """Tell nobody: there is no row to tell it in."""

    def say_alive(self) -> datetime | None:
        """Say nothing: there is no row to say it in."""
        return None

    def brokers(self) -> list[str]:
        """Return where the living beats send their messages."""
        self._workers()
        return [node.broker_fingerprint for node in self._beats if node.broker_fingerprint]

    def read_again(self) -> None:
        """Read the list of nodes with the next question: what it lacks may be there by now."""
        if self._known is not None and self._machine.clock() - self._known[0] > _LEAST_SECONDS:
            self._known = None

    def leases(self, queue: str | None) -> bool:
        """Return whether a leasing worker consumes this queue, or did within `worker_memory`."""
        return queue is not None and any(
            queue in queues.consumed or queues.left.get(queue, self._memory) + _silent_seconds(node) < self._memory
            for node, queues in self._workers()
        )

    def unleasable(self) -> frozenset[str]:
        """Return the tasks whose leases workers cannot keep: they have their own strategies."""
        return frozenset().union(*(nodes.unleasable(node.details) for node, _ in self._workers()))

    def lacks(self, task_name: str) -> bool:
        """Return whether some living worker is known not to know this task."""
        self._workers()
        key = (None, task_name)
        answer = self._known_tasks.get(key)  # another thread may forget the answers at any time
        if answer is None:
            known = self._known_by(self._living())
            answer = self._known_tasks[key] = any(names is not None and task_name not in names for names in known)
        return answer

    def nobody_knows(self, queue: str | None, task_name: str) -> bool:
        """Return whether living workers consume this queue, none of which knows this task."""
        self._workers()
        if queue is None:
            return False
        key = (queue, task_name)
        answer = self._known_tasks.get(key)
        if answer is None:
            answer = self._known_tasks[key] = nobody_has(task_name, self._known_by(self._living(queue)))
        return answer

    def somebody_knows(self, queue: str | None, task_name: str) -> bool:
        """Return whether a living worker of this queue has told that it knows this task."""
        if queue is None:
            return False
        return any(names is not None and task_name in names for names in self._known_by(self._living(queue)))

    def _living(self, queue: str | None = None) -> list[SeenNode]:
        """Return the living workers, of this queue or of any."""
        return [
            node
            for node, queues in self._workers()
            if self._is_alive(node) and (queue is None or queue in queues.consumed)
        ]

    def _known_by(self, nodes: Sequence[SeenNode]) -> set[frozenset[str] | None]:
        """Return the sets of tasks that these workers know, with None for one that told none."""
        marks = {mark_in(node.details): node.node_id for node in nodes}
        new = {mark: node_id for mark, node_id in marks.items() if mark is not None and mark not in self._names}
        if new:
            told = self._store.tasks(new.values())
            read = {mark: names_in(told.get(node_id), mark) for mark, node_id in new.items()}
            if len(self._names) > _MOST_MARKS:
                self._names.clear()
            self._names.update({mark: names for mark, names in read.items() if names is not None})
        return {None if mark is None else self._names.get(mark) for mark in marks}

    def may_republish(self, queue: str | None) -> bool:
        """Return whether a living worker with the extension consumes this queue."""
        return any(queue in queues.consumed for node, queues in self._workers() if self._is_alive(node))

    def _is_alive(self, node: SeenNode) -> bool:
        """Return whether a node lives; a heartbeat in the future is no evidence of it."""
        return node.stopped_at is None and -_OUT_OF_ORDER <= _silent_seconds(node) < self._alive_seconds

    def _workers(self) -> Iterable[tuple[SeenNode, Queues]]:
        now = self._machine.clock()
        if self._known is None or now - self._known[0] > _KNOWN_SECONDS:
            seen = self._store.nodes(self._memory)
            workers = [node for node in seen if node.kind == "worker"]
            self._beats = [node for node in seen if node.kind == "beat" and self._is_alive(node)]
            self._known = (now, [(node, read_queues(node.queues)) for node in workers])
            self._known_tasks.clear()
        return self._known[1]


def _silent_seconds(node: SeenNode) -> float:
    return (node.now - node.heartbeat_at).total_seconds()
