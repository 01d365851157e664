"""The kinds of pools: when one has capacity, how it stops a task, who serves the consumer."""

from collections.abc import Callable, Collection
from typing import Any

from celery_sqlbeat.celery_bridge import pools
from celery_sqlbeat.celery_bridge.event_loop import Action, Loop, PipedLoop, PlainLoop, relay_logs
from celery_sqlbeat.worker.admission import Admission
from celery_sqlbeat.worker.capacity.inline import InlineCapacity, PoolCapacity
from celery_sqlbeat.worker.capacity.prefork import BlockingPreforkCapacity, PreforkCapacity, Process
from celery_sqlbeat.worker.task.stopping import (
    InterruptibleBody,
    ProcessStop,
    green_guard,
    solo_guard,
    thread_guard,
    watch_bodies,
)
from celery_sqlbeat.worker.task.tracking import TrackedRequest


class Pool:
    """The pool of one worker."""

    def __init__(
        self, capacity: PoolCapacity, stop: Callable[[TrackedRequest], None], pool: Any, has_processes: bool
    ) -> None:
        self.capacity = capacity
        self.stop = stop
        self.has_processes = has_processes
        """Whether tasks run in processes of their own, which a cold end of the worker kills."""
        self._pool = pool

    def keep_handed_over(self, executions: Collection[TrackedRequest]) -> None:
        """Keep the pool from forgetting which of these its processes have, at a lost connection."""
        if self.has_processes:
            pools.keep_handed_over(self._pool, lambda: [execution.req for execution in executions])

    def has_dropped(self, execution: TrackedRequest) -> bool:
        """Return whether the pool has forgotten a task that no process has."""
        return self.has_processes and execution.pid is None and pools.is_forgotten(self._pool, execution.req)


def loop_for(worker: Any, consumer: Any) -> Loop:
    """Return how other threads reach the one that serves the consumer."""
    if worker.use_eventloop:
        return PipedLoop()
    if pools.kind_of(worker) == "green":
        loop = PipedLoop()
        loop.listen(pools.spawner(worker.pool))
        relay_logs(loop)
        return loop
    return PlainLoop(consumer.call_soon)


def pool_for(worker: Any, admission: Admission, process: Process, loop: Loop) -> Pool:
    """Return this worker's pool, by its kind."""
    pool, kind = worker.pool, pools.kind_of(worker)
    if kind == "prefork":
        return Pool(PreforkCapacity(admission, worker, process), ProcessStop(pool), pool, has_processes=True)
    if kind == "blocking prefork":
        return Pool(BlockingPreforkCapacity(admission, worker, process), ProcessStop(pool), pool, has_processes=True)
    watch_bodies()
    if kind == "green":
        kill, spawn = pools.killer(pool), pools.spawner(pool)

        def body_guard(execution: TrackedRequest) -> InterruptibleBody:
            made = green_guard(execution, loop, kill, pools.current_green(pool))
            made.is_killable = pools.can_kill(pool)
            return made

        capacity = InlineCapacity(admission, pool, loop.post, body_guard, spawn)
    else:
        guard = solo_guard if kind == "solo" else thread_guard
        capacity = InlineCapacity(admission, pool, _at_once, guard, _at_once)
    return Pool(capacity, _stop_body, pool, has_processes=False)


def _stop_body(execution: TrackedRequest) -> None:
    if execution.body_guard is not None:
        execution.body_guard.stop()


def _at_once(action: Action) -> None:
    action()
