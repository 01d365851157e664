"""Other schedulers beside ours: a stock beat, or the old one, that sends what these beats send, too.

Workers tell of messages that some beat has sent and none of ours; only what the table has as well runs twice.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from celery_sqlbeat.details import Stranger, strangers
from celery_sqlbeat.model import SeenNode
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.protocol import CodeStore

logger = logging.getLogger(__name__)

SEEN_SECONDS = 600.0  # so long a message of another scheduler is news; one that was stopped is soon forgotten
_MOST_JOBS = 1000  # that are compared
_REMIND_SECONDS = 600.0
REMEDY = "stop that scheduler, or take the entry out of its schedule or out of this one"


class Doubled(NamedTuple):
    """A job that another scheduler sends, too."""

    job_name: str
    stranger: Stranger
    worker: str

    def __str__(self) -> str:
        one = self.stranger
        entry = f" (entry {one.name})" if one.name else ""
        return (
            f"another scheduler, {one.origin or 'of unknown origin'}, sends the task {one.task}{entry} of job "
            f"{self.job_name} as well, so that it runs twice: {self.worker} received it {one.seconds_ago:.0f} s ago"
        )


def doubled(code: CodeStore, nodes: Sequence[SeenNode]) -> list[Doubled]:
    """The jobs of the table that others send, too, as far as living workers tell."""
    beats = {f"gen{node.pid}@{node.host}" for node in nodes if node.kind == "beat"}
    seen = [
        (one, node.node_id)
        for node in nodes
        if node.kind == "worker" and node.stopped_at is None
        for one in strangers(node.details)
        if (node.now - node.heartbeat_at).total_seconds() + one.seconds_ago < SEEN_SECONDS and one.origin not in beats
    ]
    jobs = code.jobs_of(sorted({one.task for one, _ in seen}), _MOST_JOBS)
    found: dict[str, Doubled] = {}
    for one, worker in seen:
        names = [name for name, task in jobs.items() if task == one.task and one.name in (None, name)]
        if names:
            found.setdefault(names[0], Doubled(names[0], one, worker))
    return list(found.values())


class Watch:
    """Says in the log of a beat what is sent twice, and again every now and then."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._next: dict[str, float] = {}

    def look(self) -> None:
        """Ask what the workers have seen."""
        now = self._clock()
        found = doubled(self._store.for_code(), self._store.nodes().seen(SEEN_SECONDS))
        self._next = {one.job_name: self._next.get(one.job_name, now) for one in found}
        for one in found:
            if self._next[one.job_name] <= now:
                logger.warning("%s: %s", one, REMEDY)
                self._next[one.job_name] = now + _REMIND_SECONDS
