"""Who a beat is, and who else is there: registers this beat, and knows which queues have workers with the extension."""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timezone

from celery_sqlbeat.model import Node, SeenNode
from celery_sqlbeat.store.protocol import NodeStore

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._memory = worker_memory
        self._alive_seconds = alive_seconds
        self._clock = clock
        self._known: tuple[float, list[SeenNode]] | None = None
        self.claimed = 0
        host = socket.gethostname()
        # The random part makes it another beat after a restart, even under the same process id.
        name = f"beat@{host}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._node = Node(name, "beat", host, os.getpid(), version, release, code_owner=owner)

    @property
    def name(self) -> str:
        """The name under which this beat locks jobs."""
        return self._node.node_id

    def say_alive(self) -> datetime:
        """Register, with the skew of this host's clock; returns the server's clock."""
        self._node = self._node._replace(claimed=self.claimed)
        server_now = self._nodes.note(self._node)
        skew = (datetime.now(timezone.utc) - server_now).total_seconds()
        self._node = self._node._replace(skew_seconds=round(skew, 3))
        return server_now

    def say_stopped(self) -> None:
        """Leave the register in order."""
        self._nodes.stop(self.name)

    def leases(self, queue: str | None) -> bool:
        """Whether a worker with the extension consumes this queue, or did within the time that is remembered."""
        return any(queue in _queues(node) for node in self._workers())

    def may_republish(self, queue: str | None) -> bool:
        """Whether a worker with the extension that lives now consumes this queue."""
        return any(
            queue in _queues(node)
            for node in self._workers()
            if node.stopped_at is None and (node.now - node.heartbeat_at).total_seconds() < self._alive_seconds
        )

    def _workers(self) -> Iterable[SeenNode]:
        now = self._clock()
        if self._known is None or now - self._known[0] > _KNOWN_SECONDS:
            self._known = (now, [node for node in self._nodes.seen(self._memory) if node.kind == "worker"])
        return self._known[1]


def _queues(node: SeenNode) -> list[str]:
    found: list[str] = json.loads(node.queues or "[]")
    return found
