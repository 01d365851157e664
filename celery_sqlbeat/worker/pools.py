"""What the kinds of Celery's pools need: how a slot is taken, how a task is stopped, and who serves the consumer."""

from collections.abc import Callable
from typing import Any

from celery.concurrency.base import BasePool

from celery_sqlbeat.worker.execution import Execution
from celery_sqlbeat.worker.flush import has_dropped
from celery_sqlbeat.worker.gate import Gate
from celery_sqlbeat.worker.loop_slots import LoopSlots
from celery_sqlbeat.worker.loops import Action, Loop, PipedLoop, PlainLoop
from celery_sqlbeat.worker.relay import relay_logs
from celery_sqlbeat.worker.slots import InnerSlots, Process, Slots, ThreadedSlots
from celery_sqlbeat.worker.stopping import ProcessStop, green_window, solo_window, thread_window
from celery_sqlbeat.worker.window import Window, watch_bodies


class Pool:
    """One kind of pool."""

    def __init__(self, slots: Slots, stop: Callable[[Execution], None], pool: Any, has_processes: bool) -> None:
        self.slots = slots
        self.stop = stop
        self.has_processes = has_processes
        """Whether tasks run in processes of their own: a cold end ends those, and no task holds up the event loop."""
        self._pool = pool

    def has_dropped(self, execution: Execution) -> bool:
        """Whether the pool has forgotten a task that no child has: it does so when the connection is lost."""
        return self.has_processes and has_dropped(self._pool, execution)


def loop_for(worker: Any, consumer: Any) -> Loop:
    """How other threads reach the one that serves the consumer."""
    if worker.use_eventloop:
        return PipedLoop()
    if getattr(worker.pool, "is_green", False):
        loop = PipedLoop()
        loop.listen(_spawn(worker.pool))
        relay_logs(loop)
        return loop
    return PlainLoop(consumer.call_soon)


def pool_for(worker: Any, gate: Gate, process: Process, loop: Loop) -> Pool:
    """The kind of this worker's pool."""
    pool = worker.pool
    if type(pool).uses_semaphore:
        kind = LoopSlots if worker.use_eventloop else ThreadedSlots
        return Pool(kind(gate, worker, process), ProcessStop(pool), pool, has_processes=True)
    watch_bodies()
    if getattr(pool, "is_green", False):
        kill, current = _killer(pool), _getcurrent(pool)
        celery_kills = type(pool).terminate_job is not BasePool.terminate_job  # its gevent pool does from 5.5 on

        def window(execution: Execution) -> Window:
            made = green_window(execution, loop, kill, current())
            made.is_killable = celery_kills
            return made

        spawn = _spawn(pool)
        slots = InnerSlots(gate, pool, loop.post, window, lambda action: spawn(action))
    else:
        is_solo = type(pool).__module__.endswith(".solo")
        slots = InnerSlots(gate, pool, _at_once, solo_window if is_solo else thread_window, _at_once)
    return Pool(slots, _stop_window, pool, has_processes=False)


def _stop_window(execution: Execution) -> None:
    if execution.window is not None:
        execution.window.stop()


def _at_once(action: Action) -> None:
    action()


def _spawn(pool: Any) -> Callable[[Action], Any]:
    if type(pool).__module__.endswith(".eventlet"):
        import eventlet

        return lambda action: eventlet.spawn_n(action)
    import gevent

    return lambda action: gevent.spawn(action)


def _getcurrent(pool: Any) -> Callable[[], Any]:
    # From the library itself: before Celery 5.5 its gevent pool has none.
    if type(pool).__module__.endswith(".eventlet"):
        from eventlet import getcurrent
    else:
        from gevent import getcurrent
    found: Callable[[], Any] = getcurrent
    return found


def _killer(pool: Any) -> Callable[[Any, BaseException], None]:
    if type(pool).__module__.endswith(".eventlet"):
        from eventlet.greenthread import kill

        return lambda green, error: kill(green, error)
    return lambda green, error: green.kill(error, block=False)
