"""What the living workers say that they know: their queues and their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from celery_sqlbeat.knowledge import mark_in, names_in
from celery_sqlbeat.model import SeenNode
from celery_sqlbeat.queues import read
from celery_sqlbeat.store import Store


class Knower(NamedTuple):
    """One worker."""

    queues: frozenset[str]
    tasks: frozenset[str] | None
    """None where it has not told, as workers of an older release do."""


def knowers(store: Store, nodes: Sequence[SeenNode], alive_seconds: float) -> list[Knower]:
    """The workers that live; their tasks are read once for all that know the same."""
    living = [
        node
        for node in nodes
        if node.kind == "worker"
        and node.stopped_at is None
        and (node.now - node.heartbeat_at).total_seconds() <= alive_seconds
    ]
    marks = {mark: node.node_id for node in living if (mark := mark_in(node.details)) is not None}
    texts = store.nodes().tasks(marks.values())
    names = {mark: names_in(texts.get(node_id), mark) for mark, node_id in marks.items()}
    return [Knower(frozenset(read(node.queues).consumed), names.get(mark_in(node.details) or "")) for node in living]


def known_in(workers: Sequence[Knower], queue: str | None) -> list[frozenset[str] | None]:
    """What the workers of a queue know, each by itself."""
    return [worker.tasks for worker in workers if queue in worker.queues]
