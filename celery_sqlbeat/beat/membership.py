"""Register a beat as a node, and know which queues have workers with the extension."""

import itertools
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from celery_sqlbeat import events
from celery_sqlbeat.beat.evidence import Reading
from celery_sqlbeat.celery_bridge.app import differ_for_certain
from celery_sqlbeat.environment import THIS_MACHINE, Machine
from celery_sqlbeat.errors import BrokerMismatch
from celery_sqlbeat.model import Node, SeenNode, nodes
from celery_sqlbeat.model.nodes import Queues, mark_in, names_in, nobody_has, read_queues
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import EVERY_SHARE

_MOST_MARKS = 100  # of worker releases whose tasks are remembered
_OUT_OF_ORDER = 1.0  # seconds by which the stamps of two simultaneous statements may be swapped
_KNOWN_SECONDS = 10.0  # for which the list of nodes is kept; a new worker gets leased slots as soon


class BeatMembership:
    """Knows one beat and the other nodes of its namespace."""

    def __init__(
        self,
        store: Store,
        version: str,
        release: str | None,
        worker_memory: float,
        alive_seconds: float,
        owner: str | None = None,
        broker: str | None = None,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self._store = store
        self._memory = worker_memory
        self._alive_seconds = alive_seconds
        self._machine = machine
        self._known: tuple[float, list[tuple[SeenNode, Queues]]] | None = None
        self._beats: list[str] = []
        """The names of the living beats."""
        self.claimed = 0
        self._is_registered = False
        self._told: dict[str, Callable[[], object]] = {}
        self._names: dict[str, frozenset[str] | None] = {}
        """The tasks that workers know, by their mark."""
        self._known_tasks: dict[tuple[str | None, str], bool] = {}
        """Answers about queues and tasks, for as long as the list of nodes is kept."""
        host = socket.gethostname()
        # The random part tells a restarted beat from the one before, even with the same process id.
        name = f"beat@{host}/{os.getpid()}/{machine.ids.random_id()[:8]}"
        self._node = Node(
            node_id=name,
            kind="beat",
            host=host,
            pid=os.getpid(),
            package_version=version,
            code_release=release,
            broker_fingerprint=broker,
            code_owner=owner,
        )

    @property
    def name(self) -> str:
        """The name under which this beat locks jobs."""
        return self._node.node_id

    def join(self, alive_seconds: float) -> datetime:
        """Register beside the other living beats; return the server's clock.

        Raises BrokerMismatch if one of them publishes to another broker. Two beats that start at
        the same moment may not see each other at first: each checks again once it is registered,
        and the later one gives way.
        """
        self._give_way_to(self._living_beats(alive_seconds))
        server_now = self.say_alive()
        in_turn = sorted(self._living_beats(alive_seconds), key=lambda node: (node.started_at, node.node_id))
        try:
            self._give_way_to(itertools.takewhile(lambda node: node.node_id != self.name, in_turn))
        except BrokerMismatch:
            self.say_stopped()
            raise
        return server_now

    def _give_way_to(self, beats: Iterable[SeenNode]) -> None:
        own = self._node.broker_fingerprint
        for node in beats:
            other = node.broker_fingerprint
            if own and other and differ_for_certain(own, other):
                raise BrokerMismatch(own, node.node_id, other)

    def _living_beats(self, alive_seconds: float) -> list[SeenNode]:
        return [node for node in self._store.nodes(alive_seconds) if node.kind == "beat" and node.stopped_at is None]

    def tell(self, key: str, ask: Callable[[], object]) -> None:
        """Add what `ask` returns, unless it is empty, to this beat's row at each registration."""
        self._told[key] = ask

    def say_alive(self) -> datetime:
        """Register with the skew of this host's clock; return the server's clock."""
        told = {key: value for key, ask in self._told.items() if (value := ask())}
        self._node = self._node._replace(claimed=self.claimed, details=json.dumps(told) if self._told else None)
        server_now = self._store.heartbeat(self._node)
        if not self._is_registered:
            events.node_registered(node=self.name, kind="beat")
            self._is_registered = True
        skew = (self._machine.wall() - server_now).total_seconds()
        self._node = self._node._replace(skew_seconds=round(skew, 3))
        return server_now

    def say_stopped(self) -> None:
        """Note in the register that this beat has stopped in order."""
        self._store.heartbeat(self._node._replace(is_stopped=True))

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
        if key not in self._known_tasks:
            known = self._known_by(self._living())
            self._known_tasks[key] = any(names is not None and task_name not in names for names in known)
        return self._known_tasks[key]

    def nobody_knows(self, queue: str | None, task_name: str) -> bool:
        """Return whether living workers consume this queue, none of which knows this task."""
        self._workers()
        key = (queue, task_name)
        if queue is not None and key not in self._known_tasks:
            self._known_tasks[key] = nobody_has(task_name, self._known_by(self._living(queue)))
        return self._known_tasks.get(key, False)

    def somebody_knows(self, queue: str | None, task_name: str) -> bool:
        """Return whether a living worker of this queue has told that it knows this task."""
        if queue is None:
            return False
        return any(names is not None and task_name in names for names in self._known_by(self._living(queue)))

    def share(self) -> str:
        """Return the last digits of the ids of the jobs that this beat is to claim first."""
        self._workers()
        beats = sorted({self.name, *self._beats})
        place, digits = beats.index(self.name), len(EVERY_SHARE)
        return EVERY_SHARE[place % digits :: min(len(beats), digits)]

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

    def told_by_others(self, key: str) -> list[Mapping[str, object]]:
        """Return what beats tell under a key, if they were alive within `worker_memory`."""
        seen = self._store.nodes(self._memory)
        told = [nodes.read_details(node.details).get(key) for node in seen if node.kind == "beat"]
        return [value for value in told if isinstance(value, dict)]

    def workers(self) -> Reading:
        """Read the rows of the workers that were alive within `worker_memory`."""
        sent_at = self._machine.clock()
        seen = self._store.nodes(self._memory)
        now = seen[0].now if seen else self._store.pulse().now
        workers = tuple(node for node in seen if node.kind == "worker")
        return Reading(sent_at, self._machine.clock(), now, workers)

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
            self._beats = [node.node_id for node in seen if node.kind == "beat" and self._is_alive(node)]
            self._known = (now, [(node, read_queues(node.queues)) for node in workers])
            self._known_tasks.clear()
        return self._known[1]


def _silent_seconds(node: SeenNode) -> float:
    return (node.now - node.heartbeat_at).total_seconds()
