"""Runs of several jobs that share a pool: never more at once than it has places.

Real beats and workers; the tasks write down when their bodies begin and end.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_sqlbeat.model.lifecycle import SUCCESS
from tests.process.conftest import workers
from tests.process.workers import Lane, WorkerShop, lane_name
from tests.support.beats import assert_clean, wait_for

pytestmark = pytest.mark.slow

PLACES = 2
JOBS = [f"job-{number}" for number in range(5)]
EACH = 3  # runs of each job
LANES = [
    Lane("prefork", "redis", "postgresql", "early"),
    Lane("threads", "rabbitmq", "redis", "late"),
]


@pytest.fixture(params=LANES, ids=lane_name)
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WorkerShop]:
    """Yield a shop whose jobs share a pool, and one that does not."""
    with workers(tmp_path, request) as make:
        shop = make(request.param)
        shop.write_app(
            request.param,
            beat_schedule={name: {"task": "work.sleep", "schedule": 1.0, "args": [0.4]} for name in [*JOBS, "free"]},
            sqlbeat_policies={"job-*": {"pool": f"erp:{PLACES}", "overlap": "skip"}},
        )
        yield shop


def most_at_once(shop: WorkerShop) -> int:
    """Return how many bodies of the pool's jobs went on at one moment."""
    steps = [(line.at, 1) for line in shop.lines(*JOBS, what="start")]
    steps += [(line.at, -1) for line in shop.lines(*JOBS, what="end")]
    return max(itertools.accumulate(step for _, step in sorted(steps)))


def test_no_more_run_at_once_than_their_pool_has_places(shop: WorkerShop, request: pytest.FixtureRequest) -> None:
    pool = request.node.callspec.params["shop"].pool
    for _ in range(2):
        shop.work(pool, concurrency=10).ready()
    beats = [shop.start(), shop.start()]
    wait_for(lambda: all(len(shop.lines(name, what="end")) >= EACH for name in JOBS), 90, shop.logs)
    assert len(shop.starts("free")) > EACH, "what names no pool does not wait"
    waited = [run.reason for run in shop.runs() if run.reason and run.reason.startswith("pool erp is full: job-")]
    for beat in beats:
        beat.stop()
    shop.wait_for_outcome(*JOBS)
    assert most_at_once(shop) == PLACES
    assert waited or any("pool erp is full" in worker.log for worker in shop.workers), shop.logs()
    assert {run.state for run in shop.runs() if run.started_at and run.finished_at} == {SUCCESS}
    assert_clean(*beats)


def test_the_place_of_a_worker_that_was_killed_is_taken_over(make_killed_shop: WorkerShop) -> None:
    shop = make_killed_shop
    worker = shop.work("prefork", concurrency=4)
    worker.ready()
    beat = shop.start()
    shop.wait_for_start("long")
    worker.kill()
    shop.work("prefork", concurrency=4).ready()
    shop.wait_for_start("other")
    beat.stop()
    assert_clean(beat)


@pytest.fixture
def make_killed_shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WorkerShop]:
    """Yield a shop with a pool of one, whose long run holds it when its worker dies."""
    lane = Lane("prefork", "redis", "postgresql", "late")
    with workers(tmp_path, request) as make:
        shop = make(lane)
        shop.write_app(
            lane,
            beat_schedule={
                "long": {"task": "work.sleep", "schedule": 2.0, "args": [600]},
                "other": {"task": "work.sleep", "schedule": 4.0, "args": [0.1]},
            },
            sqlbeat_policies={"*": {"pool": "erp:1", "max_retries": 0}, "long": {"max_runtime": 3.0}},
            sqlbeat_lock_timeout=6,
            sqlbeat_heartbeat_interval=1,
        )
        yield shop
