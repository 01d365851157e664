"""What prefork's pool remembers when the connection is lost."""

import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_sqlbeat.celery_bridge.pools import is_forgotten, keep_handed_over
from celery_sqlbeat.worker.capacity import Pool as WorkerPool


class Child:
    pid = 7

    def __init__(self) -> None:
        self.lives = True

    def _is_alive(self) -> bool:
        return self.lives


class Job:
    """As much of billiard's job as is asked."""

    def __init__(self, number: int, child: Child | None) -> None:
        self._job, self._write_to = number, child


class Pool:
    """A pool that forgets everything when it is flushed, as Celery's does with unaccepted tasks."""

    def __init__(self, *jobs: Job) -> None:
        self._pool = self
        self._cache = {job._job: job for job in jobs}
        self._fileno_to_outq: dict[int, Any] = {}
        self.outbound_buffer: deque[Job] = deque()
        self.down: list[tuple[Job, int]] = []

    def flush(self) -> None:
        self._cache.clear()
        self.outbound_buffer.clear()

    def on_job_process_down(self, job: Job, pid: int) -> None:
        self.down.append((job, pid))


def execution(job: Job | None) -> Any:
    return SimpleNamespace(_apply_result=job and weakref.ref(job))


def test_what_a_child_has_is_kept_and_what_none_has_is_dropped() -> None:
    written, waiting = Job(1, Child()), Job(2, None)
    pool = Pool(written, waiting)
    ours = [execution(written), execution(waiting), execution(None)]
    keep_handed_over(pool, lambda: ours)
    pool.flush()
    assert pool._cache == {1: written} and not pool.down
    assert [is_forgotten(pool, one) for one in ours] == [False, True, True]


def test_a_child_that_died_meanwhile_is_told_of() -> None:
    job = Job(1, Child())
    pool = Pool(job)
    keep_handed_over(pool, lambda: [execution(job)])
    assert job._write_to is not None
    job._write_to.lives = False
    pool.flush()
    assert pool.down == [(job, 7)]


def test_what_waits_for_another_child_is_dropped_though_its_first_one_is_named() -> None:
    """Its child died and it was put back; a new child with the same pipe takes that one's name."""
    put_back = Job(1, Child())
    pool = Pool(put_back)
    pool.outbound_buffer.append(put_back)
    ours = [execution(put_back)]
    keep_handed_over(pool, lambda: ours)
    pool.flush()
    assert is_forgotten(pool, ours[0]) and not pool.down


def test_a_pool_that_was_ended_has_nothing_to_keep() -> None:
    """A cold end of the worker ends the pool before the consumer is through with its own end."""
    job = Job(1, Child())
    pool = Pool(job)
    ours = [execution(job)]
    keep_handed_over(pool, lambda: ours)
    ended: Any = pool
    ended._pool = None
    pool.flush()
    assert is_forgotten(pool, ours[0])


def test_what_the_pool_was_done_with_does_not_come_back() -> None:
    job = Job(1, Child())
    pool = Pool()
    keep_handed_over(pool, lambda: [execution(job)])
    pool.flush()
    assert not pool._cache


def test_what_a_child_accepted_is_not_dropped() -> None:
    pool = WorkerPool(cast(Any, None), print, Pool(), has_processes=True)
    for pid, is_dropped in ((7, False), (None, True)):
        assert pool.has_dropped(cast(Any, SimpleNamespace(pid=pid, req=execution(None)))) is is_dropped


@pytest.mark.parametrize("flush", [{}, {"flush": None}])
def test_a_pool_without_an_event_loop_has_nothing_to_flush(flush: dict[str, None]) -> None:
    pool = SimpleNamespace(**flush)
    keep_handed_over(pool, list)
    assert vars(pool) == flush


def test_a_pipe_that_was_closed_is_not_read_any_more() -> None:
    pool = Pool()
    for number, closed in ((5, True), (6, False)):
        pool._fileno_to_outq[number] = SimpleNamespace(outq=SimpleNamespace(_reader=SimpleNamespace(closed=closed)))
    keep_handed_over(pool, list)
    pool.flush()
    assert list(pool._fileno_to_outq) == [6]
