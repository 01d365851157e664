"""Register a worker among the nodes, with the queues that it consumes.

Beats lease what they send to queues that a registered worker consumes.
"""

from collections.abc import Callable, Iterable

from celery_sqlbeat import environment, events
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model import Node
from celery_sqlbeat.model.nodes import tell_queues, with_mark
from celery_sqlbeat.store import Store

_TOLD_SECONDS = 3600.0  # after that the tasks are written again, in case the row was deleted meanwhile
_RETRY_SECONDS = 1.0  # after an error; half of it is jitter


class WorkerMembership:
    """Registers this worker among the nodes: beats lease what they send to the queues of one."""

    def __init__(
        self,
        store: Store,
        describe: Callable[[], Node],
        interval: float,
        clock: Callable[[], float],
        rnd: Callable[[], float] = environment.chance,
    ) -> None:
        """`describe` must not block: each heartbeat calls it, since a worker's queues change."""
        self._store = store
        self._describe = describe
        self._interval = interval
        self._clock = clock
        self._next_at = clock()
        self._random = rnd
        self._is_registered = False
        self._told: tuple[str, float] | None = None
        """The tasks that the database has, and until when they are taken to be there."""

    def step(self) -> float:
        """Register if it is time; return the seconds until the next time."""
        now = self._clock()
        if now >= self._next_at:
            try:
                self._note(self._describe(), now)
            except StoreError as error:
                self._next_at = self._clock() + _RETRY_SECONDS * (0.5 + 0.5 * self._random())
                events.step_failed(step="register this worker", error=error)
            else:
                if not self._is_registered:
                    events.node_registered(node=self._describe().node_id, kind="worker")
                    self._is_registered = True
                self._next_at = now + self._interval
        return max(0.0, self._next_at - self._clock())

    def flush_soon(self) -> None:
        """Register with the next step, since something has changed. From any thread."""
        self._next_at = self._clock()

    def _note(self, node: Node, now: float) -> None:
        """Register; write the names of all tasks only where they have changed."""
        tasks, told = node.tasks, self._told
        if tasks is None:
            self._store.heartbeat(node)
            return
        is_known = told is not None and told[0] == tasks and now < told[1]
        self._store.heartbeat(node._replace(tasks=None if is_known else tasks, details=with_mark(node.details, tasks)))
        if not is_known:
            self._told = tasks, now + _TOLD_SECONDS

    def say_stopped(self) -> None:
        """Record that this worker has stopped in order."""
        self._store.heartbeat(self._describe()._replace(is_stopped=True))


class Consumption:
    """The queues that a worker consumes or has left lately.

    Its method may be called from any thread.
    """

    def __init__(self, memory_seconds: float, clock: Callable[[], float] = environment.monotonic) -> None:
        """`memory_seconds`: after that no beat leases messages of a queue that was left."""
        self._memory = memory_seconds
        self._clock = clock
        self._consumed: frozenset[str] = frozenset()
        self._left_at: dict[str, float] = {}
        self._lock = environment.lock()

    def tell(self, names: Iterable[str]) -> str:
        """Return the text for this worker's row, now that it consumes these queues."""
        consumed, now = frozenset(names), self._clock()
        with self._lock:
            left_at = {**self._left_at, **dict.fromkeys(self._consumed - consumed, now)}
            self._consumed = consumed
            self._left_at = {
                name: at for name, at in left_at.items() if name not in consumed and now - at < self._memory
            }
            return tell_queues(consumed, {name: now - at for name, at in self._left_at.items()})
