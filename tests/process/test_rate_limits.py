"""Messages wait in their worker for a token of their task's rate limit, or for their eta.

No copy of them is sent.
"""

from collections import Counter

import pytest

from celery_sqlbeat.model.lifecycle import SUCCESS
from tests.process.conftest import MakeWorkers
from tests.process.workers import LEASE, PATIENCE, Lane, assert_calm
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

# Each job runs once within the test; the last token comes after more than three leases.
JOBS, RATE = 24, "60/m"
EXTRA = f"""
@app.task(name="own.limited", bind=True, rate_limit={RATE!r})
def limited(self):
    from tests.process.worker_tasks import witnessed
    with witnessed(self):
        pass
"""


@pytest.mark.parametrize(
    ("lane", "prefetch"),
    [
        (Lane("prefork", "redis", "postgresql", "early"), 4),
        (Lane("prefork", "rabbitmq", "postgresql", "early"), 0),
        (Lane("threads", "rabbitmq", "sqlite", "late"), 4),
    ],
)
def test_what_waits_for_a_rate_limit_is_not_published_again_and_runs(
    make_workers: MakeWorkers, lane: Lane, prefetch: int
) -> None:
    """In the worker, which takes all of them (0) or a few; and behind those in the queue."""
    shop = make_workers(lane)
    shop.write_app(lane, EXTRA, worker_prefetch_multiplier=prefetch)
    worker = shop.work(lane.pool, concurrency=2).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    jobs = [shop.order("own.limited") for _ in range(JOBS)]
    beat = shop.start()
    wait_for(lambda: len(shop.starts()) >= JOBS, JOBS + PATIENCE, shop.logs)
    beat.stop()
    assert JOBS > 3 * LEASE
    assert set(Counter(start.run for start in shop.starts()).values()) == {1}
    shop.wait_for_outcome(*jobs)
    assert {job: shop.states(job) for job in jobs} == {job: [SUCCESS] for job in jobs}
    assert not beat.events("runs_republished")
    assert_calm(worker)


def test_a_copy_of_what_waits_in_its_worker_is_dropped_before_it_takes_a_token(make_workers: MakeWorkers) -> None:
    lane = Lane("prefork", "redis", "postgresql", "early")
    shop = make_workers(lane)
    shop.write_app(lane, EXTRA.replace(RATE, "12/m"))
    worker = shop.work(lane.pool).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)  # before that it does not know whose copies are its own
    jobs = [shop.order("own.limited") for _ in range(3)]
    claims = shop.claim()
    shop.publish(*claims.values())
    for _ in range(3):
        shop.publish(*claims.values(), mark=False)
    worker.says("this worker has received its run already", times=9)
    wait_for(lambda: len(shop.starts()) == len(jobs), PATIENCE, shop.logs)
    first, *_, last = sorted(start.at for start in shop.starts())
    assert last - first < 5.0 * len(jobs), "a token every 5 s, and none for a copy"
    shop.wait_for_outcome(*jobs)
    assert {state for job in jobs for state in shop.states(job)} == {SUCCESS}


def test_what_waits_for_its_eta_is_not_published_again(make_workers: MakeWorkers) -> None:
    lane = Lane("threads", "redis", "sqlite", "early")
    shop = make_workers(lane)
    shop.write_app(lane)
    worker = shop.work(lane.pool).ready()
    job = shop.order("work.note", options={"countdown": 1.0})
    (claim,) = shop.claim().values()
    shop.publish(claim._replace(options={"countdown": 2.5 * LEASE}))
    beat = shop.start()
    shop.wait_for_start(job)
    shop.wait_for_outcome(job)
    assert shop.states(job) == [SUCCESS]
    assert not beat.events("runs_republished")
    assert_calm(worker)
