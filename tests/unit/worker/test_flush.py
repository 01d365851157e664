"""What prefork's pool remembers when the connection is lost."""

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sqlbeat.worker.flush import has_dropped, keep_what_children_have


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
    """A pool that forgets everything when it is flushed, as Celery's does with what no child has accepted."""

    def __init__(self, *jobs: Job) -> None:
        self._pool = self
        self._cache = {job._job: job for job in jobs}
        self._fileno_to_outq: dict[int, Any] = {}
        self.down: list[tuple[Job, int]] = []

    def flush(self) -> None:
        self._cache.clear()

    def on_job_process_down(self, job: Job, pid: int) -> None:
        self.down.append((job, pid))


def execution(job: Job | None) -> Any:
    return SimpleNamespace(pid=None, req=SimpleNamespace(_apply_result=job and weakref.ref(job)))


def test_what_a_child_has_is_kept_and_what_none_has_is_dropped() -> None:
    written, waiting = Job(1, Child()), Job(2, None)
    pool = Pool(written, waiting)
    ours = [execution(written), execution(waiting), execution(None)]
    keep_what_children_have(pool, ours)
    pool.flush()
    assert pool._cache == {1: written} and not pool.down
    assert [has_dropped(pool, one) for one in ours] == [False, True, True]


def test_a_child_that_died_meanwhile_is_told_of() -> None:
    job = Job(1, Child())
    pool = Pool(job)
    keep_what_children_have(pool, [execution(job)])
    assert job._write_to is not None
    job._write_to.lives = False
    pool.flush()
    assert pool.down == [(job, 7)]


def test_a_pool_that_was_ended_has_nothing_to_keep() -> None:
    """A cold end of the worker ends the pool before the consumer is through with its own end."""
    job = Job(1, Child())
    pool = Pool(job)
    ours = [execution(job)]
    keep_what_children_have(pool, ours)
    ended: Any = pool
    ended._pool = None
    pool.flush()
    assert has_dropped(pool, ours[0])


def test_what_the_pool_was_done_with_does_not_come_back() -> None:
    job = Job(1, Child())
    pool = Pool()
    keep_what_children_have(pool, [execution(job)])
    pool.flush()
    assert not pool._cache


def test_what_a_child_accepted_is_not_dropped() -> None:
    accepted = execution(None)
    accepted.pid = 7
    assert not has_dropped(Pool(), accepted)


@pytest.mark.parametrize("flush", [{}, {"flush": None}])
def test_a_pool_without_an_event_loop_has_nothing_to_flush(flush: dict[str, None]) -> None:
    pool = SimpleNamespace(**flush)
    keep_what_children_have(pool, [])
    assert vars(pool) == flush


def test_a_pipe_that_was_closed_is_not_read_any_more() -> None:
    pool = Pool()
    for number, closed in ((5, True), (6, False)):
        pool._fileno_to_outq[number] = SimpleNamespace(outq=SimpleNamespace(_reader=SimpleNamespace(closed=closed)))
    keep_what_children_have(pool, [])
    pool.flush()
    assert list(pool._fileno_to_outq) == [6]
