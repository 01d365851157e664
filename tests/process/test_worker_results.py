"""The ids of earlier attempts in Celery's result backend.

None waits for ever, once its slot has ended.
"""

import os
import signal
from typing import Any

import pytest

from tests.process.conftest import MakeWorkers
from tests.process.workers import PATIENCE, Lane, WorkerShop, assert_calm, lanes, together
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

_FINAL = {"SUCCESS", "FAILURE", "REVOKED"}


def assert_ended(shop: WorkerShop, job: str) -> None:
    """Assert that the results of all attempts but the last name that one."""
    *earlier, last = shop.attempts(job)
    assert earlier

    def are_ended() -> bool:
        found = shop.results()
        return all(found.get(run.run_id, {}).get("status") in _FINAL for run in earlier)

    wait_for(are_ended, PATIENCE, lambda: f"{earlier}\n{shop.results()}\n{shop.logs()}")
    for run in earlier:
        assert last.run_id in str(shop.results()[run.run_id]["result"]), shop.results()[run.run_id]


_LOCKED_FOR_LONG = """
import threading, time
from celery.backends.filesystem import FilesystemBackend

_lock = threading.Lock()  # as kombu's cached properties have one: `client` of the backend for Redis
_get, _set = FilesystemBackend.get_task_meta, FilesystemBackend.set


def _get_slowly(*args, **options):
    with _lock:
        time.sleep(20)
        return _get(*args, **options)


def _set_alone(*args):
    with _lock:
        return _set(*args)


FilesystemBackend.get_task_meta, FilesystemBackend.set = _get_slowly, _set_alone
"""


def test_no_process_inherits_what_a_thread_has_locked_of_the_result_backend(make_workers: MakeWorkers) -> None:
    """It could store no result, and its run would go on for ever."""
    lane = Lane("prefork", "redis", "sqlite", "early")
    shop = make_workers(lane)
    shop.write_app(lane, extra=_LOCKED_FOR_LONG)
    fails = shop.order("work.fail_until", 2)
    worker = shop.work(concurrency=1).ready()
    shop.dispatch_until(lambda: shop.states(fails) == ["retry", "success"])
    [child] = worker.children()
    os.kill(child, signal.SIGKILL)
    follows = shop.order("work.note")
    shop.dispatch()
    shop.wait_for_states(follows, "success")
    worker.stop()


def test_earlier_attempts_get_a_result_that_names_the_last_one(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, task_track_started=True, task_reject_on_worker_lost=True)
        fails = shop.order("work.fail_until", 2)
        never = shop.order("work.fail", policies={"max_retries": 1})
        silent = shop.order("work.fail_until", 2, options={"ignore_result": True})
        killed = shop.order("work.sleep", 600, 0) if lane.pool == "prefork" else None
        worker = shop.work(lane.pool).ready()
        beat = shop.start() if lane.pool in ("prefork", "gevent") else None  # there the worker leaves it to a beat
        if killed is not None:
            os.kill(shop.wait_for_start(killed).pid, signal.SIGKILL)
        jobs: dict[Any, list[str]] = {
            fails: ["retry", "success"],
            never: ["retry", "dlq"],
            silent: ["retry", "success"],
            **({killed: ["retry", "success"]} if killed else {}),
        }
        done = lambda: all(shop.states(job) == states for job, states in jobs.items())  # noqa: E731
        shop.dispatch_until(done) if beat is None else wait_for(done, PATIENCE, shop.logs)
        for job in jobs:
            if job != silent:
                assert_ended(shop, job)
        assert not {run.run_id for run in shop.attempts(silent)} & set(shop.results())
        if beat is not None:
            beat.stop()
        worker.stop()
        assert_calm(worker)

    of_pools = [
        Lane("prefork", "redis", "postgresql", "late"),
        Lane("threads", "rabbitmq", "sqlite", "early"),
        Lane("solo", "redis", "sqlite", "early"),
        Lane("gevent", "redis", "postgresql", "late"),
    ]
    together({lane: make_workers(lane) for lane in lanes(among=of_pools)}, scenario)


@pytest.mark.parametrize("lane", [Lane("prefork", "redis", "postgresql", "late")], ids="-".join)
def test_a_beat_ends_the_results_of_attempts_whose_worker_is_dead(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, task_track_started=True, sqlbeat_max_lost_leases=1)
    job = shop.order("work.sleep", 600)
    beat = shop.start()
    for times in (1, 2):
        worker = shop.work(lane.pool, concurrency=1).ready()
        shop.wait_for_start(job, times)
        worker.signal(signal.SIGKILL)
    shop.wait_for_states(job, "retry", "dlq")
    assert_ended(shop, job)
    beat.stop()
