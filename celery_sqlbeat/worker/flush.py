"""What prefork's children have in hand when the connection to the broker is lost: the pool must not forget it.

Celery's pool then forgets every task that no child has reported to have accepted, since the broker delivers it again.
But a child may have it already, and run it; ours would be given back as never begun while its body runs. And where two
children end at one moment it keeps the number of a pipe that it has closed; after the next connection it would read
whatever has that number then.
"""

from collections.abc import Callable, Iterable
from typing import Any

from celery_sqlbeat.worker.execution import Execution


def keep_what_children_have(pool: Any, executions: Iterable[Execution]) -> None:
    """Let a pool with an event loop remember our tasks that it has written to a child, or has begun to."""
    flush: Callable[[], Any] | None = getattr(pool, "flush", None)
    if flush is None:
        return

    def flush_the_rest() -> None:
        inner = pool._pool
        if inner is None:  # a cold end of the worker has ended the pool already
            flush()
            return
        written = [job for execution in executions if (job := job_of(execution)) is not None and job._write_to]
        kept = [job for job in written if job._job in inner._cache]
        flush()
        for job in kept:
            if job._job not in inner._cache:
                inner._cache[job._job] = job
                if not job._write_to._is_alive():  # nobody asked after it meanwhile
                    inner.on_job_process_down(job, job._write_to.pid)
        for number, child in list(inner._fileno_to_outq.items()):
            if child.outq._reader.closed:
                del inner._fileno_to_outq[number]

    pool.flush = flush_the_rest


def has_dropped(pool: Any, execution: Execution) -> bool:
    """Whether the pool has forgotten a task that no child has."""
    if execution.pid is not None:
        return False
    job = job_of(execution)
    return job is None or pool._pool is None or job._job not in pool._pool._cache


def job_of(execution: Execution) -> Any:
    """What the pool calls the task; None before it has it, and when it is done with it."""
    return execution.req._apply_result and execution.req._apply_result()
