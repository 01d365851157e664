"""Who a beat is, and who else is there: registers this beat, and knows which queues have workers with the extension."""

import itertools
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from celery_sqlbeat import details
from celery_sqlbeat.beat.evidence import Register
from celery_sqlbeat.brokerage import differ_for_certain
from celery_sqlbeat.errors import OtherBroker
from celery_sqlbeat.knowledge import mark_in, names_in, nobody_has
from celery_sqlbeat.machine import THIS_MACHINE, Machine
from celery_sqlbeat.model import Node, SeenNode
from celery_sqlbeat.queues import Queues, read
from celery_sqlbeat.store.protocol import NodeStore

_MOST_MARKS = 100  # of releases of workers whose tasks are remembered
_KNOWN_SECONDS = 10.0  # how long the list of nodes is taken for true; a new worker gets leased slots within this time


class Standing:
    """This beat among the nodes of its namespace."""

    def __init__(
        self,
        nodes: NodeStore,
        version: str,
        release: str | None,
        worker_memory: float,
        alive_seconds: float,
        owner: str | None = None,
        broker: str | None = None,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self._nodes = nodes
        self._memory = worker_memory
        self._alive_seconds = alive_seconds
        self._machine = machine
        self._known: tuple[float, list[tuple[SeenNode, Queues]]] | None = None
        self.claimed = 0
        self._told: dict[str, Callable[[], object]] = {}
        self._names: dict[str, frozenset[str] | None] = {}
        """What workers know, by its mark."""
        self._verdicts: dict[tuple[str | None, str], bool] = {}
        """About queues and tasks, as long as the list of nodes is taken for true."""
        host = socket.gethostname()
        # The random part makes it another beat after a restart, even under the same process id.
        name = f"beat@{host}/{os.getpid()}/{machine.ids.one()[:8]}"
        self._node = Node(name, "beat", host, os.getpid(), version, release, None, broker, code_owner=owner)

    @property
    def name(self) -> str:
        """The name under which this beat locks jobs."""
        return self._node.node_id

    def join(self, alive_seconds: float) -> datetime:
        """Register beside the other living beats, unless one of them sends to another broker: OtherBroker.

        Two beats that start in one moment may not see each other at first: each looks again once it is registered,
        and the later one gives way.
        """
        self._give_way_to(self._living_beats(alive_seconds))
        server_now = self.say_alive()
        in_turn = sorted(self._living_beats(alive_seconds), key=lambda node: (node.started_at, node.node_id))
        try:
            self._give_way_to(itertools.takewhile(lambda node: node.node_id != self.name, in_turn))
        except OtherBroker:
            self.say_stopped()
            raise
        return server_now

    def _give_way_to(self, beats: Iterable[SeenNode]) -> None:
        own = self._node.broker_fingerprint
        for node in beats:
            other = node.broker_fingerprint
            if own and other and differ_for_certain(own, other):
                raise OtherBroker(own, node.node_id, other)

    def _living_beats(self, alive_seconds: float) -> list[SeenNode]:
        return [node for node in self._nodes.seen(alive_seconds) if node.kind == "beat" and node.stopped_at is None]

    def tell(self, key: str, ask: Callable[[], object]) -> None:
        """Tell others this of this beat, asked anew whenever it registers; what is empty is left out."""
        self._told[key] = ask

    def say_alive(self) -> datetime:
        """Register, with the skew of this host's clock; returns the server's clock."""
        details = {key: found for key, ask in self._told.items() if (found := ask())}
        self._node = self._node._replace(claimed=self.claimed, details=json.dumps(details) if self._told else None)
        server_now = self._nodes.note(self._node)
        skew = (self._machine.wall() - server_now).total_seconds()
        self._node = self._node._replace(skew_seconds=round(skew, 3))
        return server_now

    def say_stopped(self) -> None:
        """Leave the register in order."""
        self._nodes.stop(self.name)

    def leases(self, queue: str | None) -> bool:
        """Whether a worker with the extension consumes this queue, or did within the time that is remembered."""
        return queue is not None and any(
            queue in queues.consumed or queues.left.get(queue, self._memory) + _silent_seconds(node) < self._memory
            for node, queues in self._workers()
        )

    def unleasable(self) -> frozenset[str]:
        """The tasks of which a worker has said that it cannot keep their leases: they have a strategy of their own."""
        return frozenset().union(*(details.unleasable(node.details) for node, _ in self._workers()))

    def lacks(self, task_name: str) -> bool:
        """Whether some living worker is known not to know this task."""
        self._workers()
        key = (None, task_name)
        if key not in self._verdicts:
            known = self._known_by(self._living())
            self._verdicts[key] = any(names is not None and task_name not in names for names in known)
        return self._verdicts[key]

    def nobody_knows(self, queue: str | None, task_name: str) -> bool:
        """Whether living workers with the extension consume this queue, and each is known not to know this task."""
        self._workers()
        key = (queue, task_name)
        if queue is not None and key not in self._verdicts:
            self._verdicts[key] = nobody_has(task_name, self._known_by(self._living(queue)))
        return self._verdicts.get(key, False)

    def _living(self, queue: str | None = None) -> list[SeenNode]:
        """The workers that live, of this queue or of any."""
        return [
            node
            for node, queues in self._workers()
            if node.stopped_at is None
            and _silent_seconds(node) < self._alive_seconds
            and (queue is None or queue in queues.consumed)
        ]

    def _known_by(self, nodes: Sequence[SeenNode]) -> set[frozenset[str] | None]:
        """What these workers know; None among it where one has not told."""
        marks = {mark_in(node.details): node.node_id for node in nodes}
        new = {mark: node_id for mark, node_id in marks.items() if mark is not None and mark not in self._names}
        if new:
            told = self._nodes.tasks(new.values())
            found = {mark: names_in(told.get(node_id), mark) for mark, node_id in new.items()}
            if len(self._names) > _MOST_MARKS:
                self._names.clear()
            self._names.update({mark: names for mark, names in found.items() if names is not None})
        return {None if mark is None else self._names.get(mark) for mark in marks}

    def told_by_others(self, key: str) -> list[Mapping[str, object]]:
        """What beats tell under a key, those among them that were there within the time that is remembered."""
        seen = self._nodes.seen(self._memory)
        found = [details.read(node.details).get(key) for node in seen if node.kind == "beat"]
        return [each for each in found if isinstance(each, dict)]

    def register(self, queue: str, seconds_ago: float) -> Register:
        """The workers with the extension, beside an instant so many seconds ago at which somebody counted."""
        heard, pending = [], []
        seen = self._nodes.seen(self._memory)
        for node in seen:
            if node.kind != "worker" or (node.now - node.started_at).total_seconds() <= seconds_ago:
                continue
            last = node.stopped_at or node.heartbeat_at
            if (node.now - last).total_seconds() < seconds_ago:
                heard.append(node)
            elif node.stopped_at is None and _silent_seconds(node) < self._alive_seconds:
                pending.append(node)
        consumed = {node.node_id: read(node.queues).consumed for node in (*heard, *pending)}
        return Register(
            sum(queue in consumed[node.node_id] for node in heard),
            sum(queue in consumed[node.node_id] for node in pending),
            sum(bool(consumed[node.node_id]) for node in heard),
            sum(bool(consumed[node.node_id]) for node in pending),
            frozenset(consumed),
            frozenset(address for node in (*heard, *pending) if (address := details.address(node.details))),
            seen[0].now if seen else None,
        )

    def may_republish(self, queue: str | None) -> bool:
        """Whether a worker with the extension that lives now consumes this queue."""
        return any(
            queue in queues.consumed
            for node, queues in self._workers()
            if node.stopped_at is None and _silent_seconds(node) < self._alive_seconds
        )

    def _workers(self) -> Iterable[tuple[SeenNode, Queues]]:
        now = self._machine.clock()
        if self._known is None or now - self._known[0] > _KNOWN_SECONDS:
            workers = [node for node in self._nodes.seen(self._memory) if node.kind == "worker"]
            self._known = (now, [(node, read(node.queues)) for node in workers])
            self._verdicts.clear()
        return self._known[1]


def _silent_seconds(node: SeenNode) -> float:
    return (node.now - node.heartbeat_at).total_seconds()
