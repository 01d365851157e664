"""Celery's pools: their kinds, how capacity is taken and given back, and how one ends a task."""

import os
from collections.abc import Callable, Iterable
from typing import Any, Literal

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.exceptions import WorkerLostError
from celery.worker.request import Request

from celery_sqlbeat import environment

Kind = Literal["prefork", "blocking prefork", "green", "solo", "threads"]


def kind_of(worker: Any) -> Kind:
    """Return the kind of this worker's pool; prefork blocks where the worker has no event loop."""
    kind = type(worker.pool)
    if kind.uses_semaphore:
        return "prefork" if worker.use_eventloop else "blocking prefork"
    if getattr(worker.pool, "is_green", False):
        return "green"
    return "solo" if _library(worker.pool) == "solo" else "threads"


def _library(pool: Any) -> str:
    return type(pool).__module__.rpartition(".")[2]


class Capacity:
    """The processes of prefork beside an event loop; all of it in that loop."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.may_read_ahead = worker.prefetch_multiplier != 1  # who sets 1 wants no message to wait here

    @property
    def is_free(self) -> bool:
        """Whether a process is free."""
        return bool(self._worker.semaphore.value > 0)

    def acquire(self, action: Callable[..., None], *args: Any) -> None:
        """Call this with a process, now or when one comes free."""
        self._worker._quick_acquire(action, *args)

    def release(self) -> None:
        """Give a process back."""
        self._worker._quick_release()

    def call_after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Call this in so many seconds."""
        self._worker.timer.call_after(seconds, action, args)


def wait_for_process(pool: Any) -> None:
    """Block until a process is free; the next task that the pool is handed takes it."""
    free = pool._pool._putlock
    free.acquire()
    free.release()


def keep_handed_over(pool: Any, requests: Callable[[], Iterable[Any]]) -> None:
    """Keep a pool with an event loop from forgetting tasks that it has written to a child.

    When a connection is lost, Celery's pool forgets all tasks that no child has accepted, since the
    broker delivers them again. A child may run one all the same, which would be given back as never
    begun. Where two children end at one moment the pool keeps the number of a pipe that it has
    closed, and would read whatever file has that number next.
    """
    flush: Callable[[], Any] | None = getattr(pool, "flush", None)
    if flush is None:
        return

    def flush_the_rest() -> None:
        inner = pool._pool
        if inner is None:  # a cold end of the worker has ended the pool already
            flush()
            return
        handed_over = [job for req in requests() if (job := _job_of(req)) is not None and job._write_to]
        # What was put back, since its child died, may name the child that has the same pipe now.
        kept = [job for job in handed_over if job._job in inner._cache and job not in inner.outbound_buffer]
        flush()
        for job in kept:
            if job._job not in inner._cache:
                inner._cache[job._job] = job
                if not job._write_to._is_alive():  # the pool has not noticed yet
                    inner.on_job_process_down(job, job._write_to.pid)
        for number, child in list(inner._fileno_to_outq.items()):
            if child.outq._reader.closed:
                del inner._fileno_to_outq[number]

    pool.flush = flush_the_rest


def is_forgotten(pool: Any, req: Any) -> bool:
    """Return whether a pool of processes knows nothing of a task that was handed to it."""
    job = _job_of(req)
    return job is None or pool._pool is None or job._job not in pool._pool._cache


def _job_of(req: Any) -> Any:
    return req._apply_result and req._apply_result()  # a weak reference, dead when the pool is done


def signal_process(pool: Any, pid: int, number: int | None) -> None:
    """Send a signal to a process of the pool; None: the one that ends its task."""
    pool.terminate_job(pid, number)


def can_kill(pool: Any) -> bool:
    """Return whether Celery ends tasks of this pool; its gevent pool does so from 5.5 on."""
    return type(pool).terminate_job is not BasePool.terminate_job


def follow_end(pool: Any, drained: Callable[[], None], terminated: Callable[[], None]) -> None:
    """Call one of these after the pool has ended, warm or cold."""
    pool.stop = _then(pool.stop, drained)
    pool.terminate = _then(pool.terminate, terminated)


def _then(first: Callable[[], Any], after: Callable[[], None]) -> Callable[[], Any]:
    def both() -> Any:
        try:
            return first()
        finally:
            after()

    return both


def spawner(pool: Any) -> Callable[[Callable[[], None]], Any]:
    """Return what runs an action in a green thread of this pool's library."""
    if _library(pool) == "eventlet":
        import eventlet

        return lambda action: eventlet.spawn_n(action)
    import gevent

    return lambda action: gevent.spawn(action)


def current_green(pool: Any) -> Any:
    """Return the green thread that calls; Celery's own gevent pool has no such name before 5.5."""
    if _library(pool) == "eventlet":
        from eventlet import getcurrent
    else:
        from gevent import getcurrent
    return getcurrent()


def killer(pool: Any) -> Callable[[Any, BaseException], None]:
    """Return what raises an error in a green thread; to be called where the loop is served."""
    if _library(pool) == "eventlet":
        from eventlet.greenthread import kill

        return lambda green, error: kill(green, error)
    return lambda green, error: green.kill(error, block=False)


class BodyTimeout(Exception):
    """The time limit of a body in a green thread."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.limit = limit


class PoolCall:
    """What Celery hands to a pool that runs bodies in this process, with its callbacks."""

    def __init__(self, pool: Any, target: Callable[..., Any], options: dict[str, Any]) -> None:
        self._target = target
        self._options = options
        self._pid = getattr(pool, "getpid", os.getpid)
        limit = options.get("timeout") or getattr(pool, "timeout", None)
        self._limit = limit if _library(pool) == "gevent" else None

    def accept(self) -> None:
        """Tell Celery that the task begins; it acknowledges an early one."""
        self._options["accept_callback"](self._pid(), environment.monotonic())

    def run_body(self) -> Any:
        """Run the target; raises BodyTimeout after its time limit."""
        if not self._limit:
            return self._target(*self._options["args"])
        from gevent import Timeout

        timer = Timeout(self._limit)
        try:
            with timer:
                return self._target(*self._options["args"])
        except Timeout as raised:
            if raised is not timer:
                raise
            raise BodyTimeout(self._limit) from None

    def succeed(self, result: Any) -> None:
        """Tell Celery what the target returned."""
        self._options["callback"](result)

    def time_out(self, limit: float) -> None:
        """Tell Celery that the hard time limit has ended the task."""
        self._options["timeout_callback"](False, limit)

    def fail(self) -> None:
        """Tell Celery of the error that is being handled."""
        self._options["error_callback"](ExceptionInfo())

    def lose(self, error: BaseException) -> None:
        """Tell Celery of an error that would end a thread of the pool."""
        try:
            raise WorkerLostError(repr(error)) from error
        except WorkerLostError:
            self.fail()


def is_green_exit(error: BaseException) -> bool:
    """Return whether this error ends a green thread that was killed."""
    return type(error).__name__ == "GreenletExit"


class _Intercepting:
    """A pool that gives what it is handed to `take`."""

    def __init__(self, pool: Any, take: Callable[[PoolCall], Any]) -> None:
        self._pool, self._take = pool, take

    def apply_async(self, target: Callable[..., Any], **options: Any) -> Any:
        return self._take(PoolCall(self._pool, target, options))


def hand_to(req: Any, pool: Any, take: Callable[[PoolCall], Any]) -> None:
    """Give what Celery would hand to the pool to `take`; raises TaskRevokedError."""
    Request.execute_using_pool(req, _Intercepting(pool, take))  # type: ignore[arg-type]  # a stand-in


def run_inside(pool: Any, action: Callable[[], None]) -> Any:
    """Run this in a thread of the pool, which may have to wait for one; no time limit counts."""
    return pool.apply_async(action, args=(), callback=_ignore, timeout=0)  # not even the pool's own limit


def _ignore(_result: Any) -> None:
    """Do nothing: what the pool reports is reported already."""
