"""Tasks with a strategy of their own.

Whatever that does with a message, each attempt runs once, and none is lost.
"""

from collections import Counter

import pytest

from celery_sqlbeat.model.lifecycle import DISPATCHED, DLQ, RETRY, SUCCESS
from tests.process.conftest import MakeWorkers
from tests.process.strategies import FLUSH_SECONDS
from tests.process.workers import PATIENCE, Lane, WorkerShop, assert_calm
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

EXTRA = "import tests.process.strategies"
LANES = (Lane("prefork", "redis", "postgresql", "early"), Lane("solo", "rabbitmq", "sqlite", "early"))


@pytest.mark.parametrize("lane", LANES, ids="-".join)
def test_a_batch_task_runs_each_slot_once_and_the_job_goes_on_meanwhile(make_workers: MakeWorkers, lane: Lane) -> None:
    """A batch gathers for longer than a lease.

    Its messages are fired and forgotten, and never published again.
    """
    shop = make_workers(lane)
    shop.write_app(lane, EXTRA, beat_schedule={"often": {"task": "own.batch", "schedule": 1.0}})
    worker = shop.work(lane.pool).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    beat = shop.start()
    wait_for(lambda: len(shop.starts("often")) >= 1.5 * FLUSH_SECONDS, PATIENCE, shop.logs)
    beat.stop()
    counts = Counter(start.run for start in shop.starts("often"))
    assert set(counts.values()) == {1}, shop.logs()
    ended = {run.run_id: run.state for run in shop.attempts("often")}
    wait_for(
        lambda: {run.state for run in shop.attempts("often") if run.run_id in counts} == {DISPATCHED},
        PATIENCE,
        lambda: f"{ended}\n{shop.logs()}",
    )
    assert {run.attempt for run in shop.attempts("often")} == {1}
    assert "own.batch has its own strategy" in beat.log
    assert not beat.events("runs_republished")
    assert_calm(worker)


def test_a_copy_of_a_message_that_a_strategy_has_is_dropped_by_each_worker(make_workers: MakeWorkers) -> None:
    shop = make_workers(Lane("threads", "redis", "postgresql", "early"))
    shop.write_app(None, EXTRA)
    shop.work("threads").ready()
    job = shop.order("own.small_batch")
    claims = shop.claim()
    shop.publish(*claims.values())
    shop.publish(*claims.values(), mark=False)
    shop.wait_for_start(job)
    wait_for(lambda: shop.states(job) == [DISPATCHED], PATIENCE, shop.logs)
    shop.work("threads").ready()
    for _ in range(4):
        shop.publish(*claims.values(), mark=False)
    wait_for(lambda: sum(len(worker.events("start_rejected")) for worker in shop.workers) >= 5, PATIENCE, shop.logs)
    assert len(shop.starts(job)) == 1


def test_what_a_strategy_has_when_its_worker_ends_is_another_attempt(make_workers: MakeWorkers) -> None:
    shop = make_workers(Lane("threads", "rabbitmq", "postgresql", "early"))
    shop.write_app(None, EXTRA)
    first = shop.work("threads").ready()
    job = shop.order("own.small_batch")  # one more is missing to a batch
    kept = shop.order("own.keeps")
    shop.dispatch()
    wait_for(lambda: "running" in shop.states(job) + shop.states(kept), PATIENCE, shop.logs)
    wait_for(lambda: shop.states(kept) == ["running"], PATIENCE, shop.logs)
    first.stop()
    wait_for(lambda: shop.states(kept)[0] == RETRY, PATIENCE, shop.logs)
    assert shop.attempts(kept)[0].lost_leases == 0


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_each_strategy_starts_an_attempt_once_and_leaves_an_outcome(make_workers: MakeWorkers, pool: str) -> None:
    shop = make_workers(Lane(pool, "redis" if pool == "prefork" else "rabbitmq", "postgresql", "early"))
    shop.write_app(None, EXTRA, sqlbeat_max_retries=0)
    shop.work(pool, concurrency=2).ready()
    expected = {
        "passes on": (SUCCESS, 1),
        "passes on later": (SUCCESS, 1),
        "passes on twice": (SUCCESS, 1),
        "acknowledges and passes on": (DISPATCHED, 1),
        "acknowledges": (DISPATCHED, 0),
        "rejects": (DLQ, 0),
        "requeues": (DLQ, 0),
        "fails": (DLQ, 0),
    }
    jobs = {how: shop.order(f"own.{how}") for how in expected}
    shop.dispatch()
    shop.wait_for_outcome(*jobs.values())
    wait_for(lambda: _ran(shop, jobs) == expected, PATIENCE, lambda: f"{_ran(shop, jobs)}\n{shop.logs()}")


def _ran(shop: WorkerShop, jobs: dict[str, str]) -> dict[str, tuple[str, int]]:
    return {how: (shop.states(job)[-1], len(shop.starts(job))) for how, job in jobs.items()}
