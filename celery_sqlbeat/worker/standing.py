"""Says that this worker is alive and which queues it consumes, so that beats lease what they send there."""

import logging
import random
from collections.abc import Callable

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.knowledge import with_mark
from celery_sqlbeat.model import Node
from celery_sqlbeat.store.protocol import NodeStore
from celery_sqlbeat.worker.waiting import Pause

logger = logging.getLogger(__name__)


_TOLD_SECONDS = 3600.0  # a row that was deleted meanwhile has them again by then


class Standing:
    """This worker among the nodes of its namespace. Used by the thread that extends leases."""

    def __init__(
        self,
        nodes: NodeStore,
        describe: Callable[[], Node],
        interval: float,
        clock: Callable[[], float],
        rnd: Callable[[], float] = random.random,
    ) -> None:
        """`describe` is asked at every heartbeat, since a worker's queues change while it runs; it must not block."""
        self._nodes = nodes
        self._describe = describe
        self._interval = interval
        self._clock = clock
        self._next_at = clock()
        self._pause = Pause(rnd)
        self._told: tuple[str, float] | None = None
        """The tasks that the database has, and until when that is taken for true."""

    def step(self) -> float:
        """Say so if it is time; returns the seconds until the next time."""
        now = self._clock()
        if now >= max(self._next_at, self._pause.until):
            try:
                self._note(self._describe(), now)
            except StoreError as error:
                self._pause.failed(self._clock())
                logger.warning("this worker could not say that it is alive: %s", error)
            else:
                self._pause.succeeded()
                self._next_at = now + self._interval
        return max(0.0, max(self._next_at, self._pause.until) - self._clock())

    def hurry(self) -> None:
        """Say so with the next step: something has changed. From any thread."""
        self._next_at = self._clock()

    def _note(self, node: Node, now: float) -> None:
        """Register; with the names of all tasks only where they have changed, since they may be many."""
        tasks, told = node.tasks, self._told
        if tasks is None:
            self._nodes.note(node)
            return
        is_known = told is not None and told[0] == tasks and now < told[1]
        self._nodes.note(node._replace(tasks=None if is_known else tasks, details=with_mark(node.details, tasks)))
        if not is_known:
            self._told = tasks, now + _TOLD_SECONDS

    def say_stopped(self) -> None:
        """Leave the register in order."""
        self._nodes.stop(self._describe().node_id)
