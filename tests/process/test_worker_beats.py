"""Beat and workers together, with nobody else: failures, dead letters, cadences, fail-over."""

import itertools
from datetime import timedelta

import pytest

from celery_sqlbeat.model.nodes import read_queues
from celery_sqlbeat.store.records import RunQuery
from tests.process.conftest import MakeWorkers
from tests.process.outcomes import assert_outcome
from tests.process.workers import LEASE, PATIENCE, Lane, lane_name, lanes
from tests.support.beats import wait_for
from tests.support.views import AdminView

pytestmark = pytest.mark.slow

EACH_DATABASE = [
    Lane("prefork", "redis", "postgresql", "late"),
    Lane("prefork", "rabbitmq", "mysql", "late"),
    Lane("threads", "rabbitmq", "sqlite", "early"),
]
EACH, RARELY = 3.0, 8.0  # seconds between two slots
CADENCES = ("from_start", "fixed_rate", "fixed_delay")


@pytest.mark.parametrize("lane", lanes("prefork", "threads", among=EACH_DATABASE), ids=lane_name)
def test_a_failing_job_goes_through_its_retries_to_the_dead_letters_and_on(
    make_workers: MakeWorkers, lane: Lane
) -> None:
    """Meanwhile three jobs go on by their cadences."""
    shop = make_workers(lane)
    policies = {cadence: {"cadence": cadence} for cadence in CADENCES}
    entries = {cadence: {"task": "work.sleep", "schedule": EACH, "args": [1]} for cadence in CADENCES}
    entries["bad"] = {"task": "work.fail", "schedule": RARELY, "args": []}
    shop.write_app(
        lane,
        beat_schedule=entries,
        sqlbeat_max_retries=2,
        sqlbeat_retry_base=1,
        sqlbeat_policies={**policies, "bad": {"cadence": "fixed_rate"}},
    )
    workers = [shop.work(lane.pool).ready() for _ in range(2)]
    wait_for(lambda: len(shop.worker_nodes()) == 2, PATIENCE, shop.logs)
    beats = [shop.start(), shop.start()]
    wait_for(lambda: len([run for run in shop.attempts("bad") if run.attempt == 3]) == 1, 2 * PATIENCE, shop.logs)
    wait_for(lambda: shop.states("bad")[2:3] == ["dlq"], PATIENCE, shop.logs)
    first, second, dead = shop.attempts("bad")[:3]
    assert [run.state for run in (first, second, dead)] == ["retry", "retry", "dlq"]
    assert [run.failures for run in (first, second, dead)] == [1, 2, 3]
    assert first.scheduled_for == second.scheduled_for == dead.scheduled_for
    assert len({first.run_id, second.run_id, dead.run_id}) == 3
    assert first.fence < second.fence < dead.fence
    for run, following in ((first, second), (second, dead)):
        assert run.finished_at is not None and following.claimed_at is not None
        assert run.finished_at <= following.claimed_at
        assert "no luck today" in str(run.error)
    letters = AdminView(shop.store).runs(RunQuery(only_dead=True))
    assert [letter.run_id for letter in letters] == [dead.run_id]
    wait_for(lambda: len(shop.attempts("bad")) > 3, PATIENCE, shop.logs)
    on_the_grid = (shop.attempts("bad")[3].scheduled_for - first.scheduled_for) % timedelta(seconds=RARELY)
    assert not on_the_grid
    for cadence in CADENCES:
        wait_for(lambda cadence=cadence: shop.states(cadence).count("success") >= 4, PATIENCE, shop.logs)  # type: ignore[misc]
    for beat in beats:
        beat.stop()
    for worker in workers:
        worker.stop()
    for cadence in CADENCES:
        runs = [run for run in shop.attempts(cadence) if run.state == "success"]
        for run, following in itertools.pairwise(runs):
            assert run.finished_at is not None and run.claimed_at is not None
            since = {"from_start": run.claimed_at, "fixed_rate": run.scheduled_for, "fixed_delay": run.finished_at}
            gap = (following.scheduled_for - since[cadence]).total_seconds()
            if cadence == "fixed_rate":
                assert gap % EACH < 0.001 or EACH - gap % EACH < 0.001, f"{cadence}: {run}\n{following}"
            else:
                assert abs(gap - EACH) < 0.1, f"{cadence}: {gap} {run}\n{following}"
            assert following.claimed_at is not None and following.claimed_at >= run.finished_at


@pytest.mark.parametrize("lane", lanes("prefork", "threads", among=EACH_DATABASE), ids=lane_name)
def test_a_killed_worker_is_followed_by_another_without_anybodys_help(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    entries = {"long": {"task": "work.sleep", "schedule": 1, "args": [600, 1]}}
    shop.write_app(lane, beat_schedule=entries)
    first = shop.work(lane.pool).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    beat = shop.start()
    start = shop.wait_for_start("long")
    other = shop.work(lane.pool).ready()
    first.kill()
    wait_for(lambda: len(shop.starts("long")) == 2, PATIENCE, shop.logs)
    beat.stop()  # the next slot follows at once, and takes ten minutes
    wait_for(lambda: shop.states("long")[1:2] == ["success"], PATIENCE, shop.logs)
    lost = assert_outcome(shop, "long", "Its worker is killed, or stands still for longer than the lease")
    second = shop.starts("long")[1]
    assert lost.attempt == 1 and second.attempt == 2 and second.at - start.at > LEASE - 1
    other.stop()


@pytest.mark.parametrize("lane", lanes("threads", among=EACH_DATABASE), ids=lane_name)
def test_a_queue_that_a_worker_has_just_ceased_to_consume_keeps_its_leases(
    make_workers: MakeWorkers, lane: Lane
) -> None:
    """Its slot waits, and only one message does, until somebody consumes the queue again."""
    shop = make_workers(lane)
    shop.write_app(lane, beat_schedule={"waits": {"task": "work.note", "schedule": 1, "args": []}})
    worker = shop.work(lane.pool).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    shop.wait_for_answer()
    queue = shop.place.queue("default")
    shop.control("cancel_consumer", queue=queue)
    wait_for(lambda: queue not in read_queues(shop.worker_nodes()[0].queues).consumed, PATIENCE, shop.logs)
    beat = shop.start()
    wait_for(lambda: shop.states("waits"), PATIENCE, shop.logs)
    wait_for(lambda: shop.job("waits").published_at or shop.states("waits") != ["claimed"], PATIENCE, shop.logs)
    assert shop.states("waits") == ["claimed"], shop.logs()
    shop.control("add_consumer", queue=queue)
    wait_for(lambda: shop.states("waits").count("success") >= 2, PATIENCE, shop.logs)
    assert "dispatched" not in shop.states("waits")
    beat.stop()
    worker.stop()
