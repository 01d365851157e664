"""Register a beat as a node beside the others."""

import itertools
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from celery_sqlbeat import events
from celery_sqlbeat.beat.evidence import Reading
from celery_sqlbeat.beat.known_workers import KnownWorkers
from celery_sqlbeat.celery_bridge.app import differ_for_certain
from celery_sqlbeat.environment import THIS_MACHINE, Machine
from celery_sqlbeat.errors import BrokerMismatch
from celery_sqlbeat.model import Node, SeenNode, nodes
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import EVERY_SHARE


class BeatMembership(KnownWorkers):
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
        super().__init__(store, worker_memory, alive_seconds, machine)
        self.claimed = 0
        self._is_registered = False
        self._told: dict[str, Callable[[], object]] = {}
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

    def share(self) -> str:
        """Return the last digits of the ids of the jobs that this beat is to claim first."""
        self._workers()
        beats = sorted({self.name, *(node.node_id for node in self._beats)})
        place, digits = beats.index(self.name), len(EVERY_SHARE)
        return EVERY_SHARE[place % digits :: min(len(beats), digits)]

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
