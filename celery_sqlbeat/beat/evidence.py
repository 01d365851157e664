"""Judge whether all consumers of a queue keep leases, so that a copy of a message does no harm.

Pure. Silence is no evidence: an unknown worker may have taken the message and be busy with it.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from celery_sqlbeat.celery_bridge.inspect_workers import QueueConsumers
from celery_sqlbeat.model import SeenNode, nodes
from celery_sqlbeat.model.nodes import read_queues

_SET_SECONDS = 1.0  # a clock that is off by more than this was set


class Evidence(Enum):
    """What is known of the consumers of a queue."""

    KEPT = "everybody keeps leases"
    PLAIN = "a worker without celery-sqlbeat consumes it"
    STRANGERS = "somebody consumes it who is not known to keep leases"
    SILENCE = "nobody can say who consumes it"
    UNDECIDED = "a worker has not been heard of since"


class Reading(NamedTuple):
    """The rows of the workers with the extension, as read at one instant."""

    sent_at: float
    """By the reader's monotonic clock, before the reading."""
    answered_at: float
    now: datetime
    """The server's clock, at an instant between the two."""
    workers: tuple[SeenNode, ...]

    def agrees(self, now: datetime, sent_at: float, answered_at: float) -> bool:
        """Return whether, until a later reading, both clocks went on at the same pace."""
        there = (now - self.now).total_seconds()
        return sent_at - self.answered_at - _SET_SECONDS <= there <= answered_at - self.sent_at + _SET_SECONDS


@dataclass(frozen=True, kw_only=True)
class WorkerRegister:
    """The living workers with the extension, as registered at the instant of a count."""

    heard: int
    """Consumers of the queue that have had a heartbeat before and after that instant."""
    pending: int
    """Those that had one before, and may still live."""
    heard_of_all: int
    """The same for consumers of any queue, but for those whose connections are known by name."""
    pending_of_all: int
    nodes: frozenset[str]
    addresses: frozenset[str]
    """Of their connections, where they know them."""


class Heartbeats:
    """Times the silence of each worker by the reader's clock: the server's may be set."""

    def __init__(self) -> None:
        self._moved: dict[str, tuple[datetime, float]] = {}

    def saw(self, reading: Reading) -> None:
        """Take in a newer reading."""
        known = self._moved
        self._moved = {}
        for node in reading.workers:
            last = known.get(node.node_id)
            is_known = last is not None and last[0] == node.heartbeat_at
            self._moved[node.node_id] = last if last and is_known else (node.heartbeat_at, reading.sent_at)

    def silent_seconds(self, node: SeenNode, now: float) -> float:
        """Return the seconds since this worker's heartbeat was first seen as it is now."""
        last = self._moved.get(node.node_id)
        return now - last[1] if last is not None else 0.0


def register(
    queue: str, before: Reading, since: Reading, latest: Reading, heartbeats: Heartbeats, alive_seconds: float
) -> WorkerRegister:
    """Return the workers at the instant of a count between two readings.

    A heartbeat is later only if it differs from that of `since`. Its instant says nothing: that of
    a dead worker lies in the future where the server's clock was set back.
    """
    known = {node.node_id for node in before.workers}
    earlier = {node.node_id: node.heartbeat_at for node in since.workers}
    heard, pending = [], []
    for node in latest.workers:
        if node.node_id not in known or node.stopped_at is not None:
            continue  # a worker that stopped in order may have stopped consuming before the count
        silent = max(heartbeats.silent_seconds(node, latest.sent_at), (node.now - node.heartbeat_at).total_seconds())
        if node.node_id in earlier and node.heartbeat_at != earlier[node.node_id]:
            heard.append(node)
        elif silent < alive_seconds:
            pending.append(node)
    consumed = {node.node_id: read_queues(node.queues).consumed for node in (*heard, *pending)}
    unnamed = {
        node.node_id for node in (*heard, *pending) if consumed[node.node_id] and not nodes.is_named(node.details)
    }
    return WorkerRegister(
        heard=sum(queue in consumed[node.node_id] for node in heard),
        pending=sum(queue in consumed[node.node_id] for node in pending),
        heard_of_all=sum(node.node_id in unnamed for node in heard),
        pending_of_all=sum(node.node_id in unnamed for node in pending),
        nodes=frozenset(consumed),
        addresses=frozenset(address for node in (*heard, *pending) if (address := nodes.address(node.details))),
    )


def judge_evidence(queue: str, counted: QueueConsumers, register: WorkerRegister, message_age: float) -> Evidence:
    """Judge a count of consumers.

    `message_age`: for how long at most the message had been there at the count.
    """
    workers = counted.roll or ()
    if any(worker.extension is None and queue in worker.queues for worker in workers):
        return Evidence.PLAIN
    if counted.consumers is not None:
        return _by_count(counted.consumers, register.heard, register.pending)
    if counted.clients is not None:
        elsewhere = sum(_is_elsewhere(worker.extension, register) and queue not in worker.queues for worker in workers)
        unnamed = [client for client in counted.clients if not client.keeps_leases]
        unknown = [client for client in unnamed if client.address not in register.addresses]
        able = any(client.is_waiting or client.idle_seconds <= message_age + 1 for client in unknown)
        if not able or len(unknown) <= elsewhere:  # the one that answers may be the busy one
            return Evidence.KEPT
        known, pending = register.heard_of_all + elsewhere, register.pending_of_all
        return _by_count(len(unnamed), known, pending)
    return Evidence.KEPT if any(worker.extension is not None for worker in workers) else Evidence.SILENCE


def _by_count(consumers: int, heard: int, pending: int) -> Evidence:
    if consumers <= heard:
        return Evidence.KEPT
    return Evidence.UNDECIDED if consumers <= heard + pending else Evidence.STRANGERS


def _is_elsewhere(extension: object, register: WorkerRegister) -> bool:
    """Return whether the worker that answered is neither in the register nor known by a name."""
    told = extension if isinstance(extension, dict) else {}
    return told.get("node") not in register.nodes and told.get(nodes.NAMED) is not True
