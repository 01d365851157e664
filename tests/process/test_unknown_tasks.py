"""A deployment with beats first.

A task that workers do not know yet is no failure of its job, and waits for them.
"""

import json
from datetime import datetime, timedelta

import pytest

from celery_sqlbeat.model.lifecycle import DISPATCHED, SCHEDULED, SKIPPED, SUCCESS
from celery_sqlbeat.store.records import RunQuery
from tests.process.conftest import MakeWorkers
from tests.process.test_command_line import run
from tests.process.workers import PATIENCE, Lane, WorkerShop, lane_name, lanes
from tests.support.beats import wait_for
from tests.support.views import AdminView

pytestmark = pytest.mark.slow

LANES = [
    Lane("prefork", "redis", "postgresql", "late"),
    Lane("threads", "rabbitmq", "sqlite", "early"),
    Lane("gevent", "redis", "sqlite", "late"),
    Lane("solo", "rabbitmq", "postgresql", "early"),
]

# What the next release has, and a worker that has not the package.
_NEXT = """
import os

if os.environ.get("SHOP_NEXT"):

    @app.task(name="work.new", bind=True)
    def new(self):
        tests.process.worker_tasks.tell(self, "new")


if os.environ.get("SHOP_PLAIN"):
    from celery.signals import celeryd_init

    celeryd_init.receivers.clear()
"""


# Keeps a worker busy until the test says so.
_BUSY = """

@app.task(name="work.busy", bind=True)
def busy(self):
    import pathlib
    import time

    tests.process.worker_tasks.tell(self, "busy")
    while not pathlib.Path("free").exists():
        time.sleep(0.05)
"""


def told(shop: WorkerShop) -> list[str]:
    """Return the workers that have told their tasks."""
    return [node.node_id for node in shop.worker_nodes() if "tasks" in (node.details or "")]


def write(shop: WorkerShop, lane: Lane, *names: str, **conf: object) -> None:
    """Order a job for a task that all workers have, and one for a task of the next release."""
    entries = {name: {"task": f"work.{name}", "schedule": 1} for name in names or ("note", "new")}
    policies = {"*": {"cadence": "fixed_rate"}}
    shop.write_app(lane, _NEXT, beat_schedule=entries, sqlbeat_policies=policies, sqlbeat_max_retries=0, **conf)


def assert_nothing_is_counted(shop: WorkerShop) -> None:
    """Neither a failure nor a lost lease, nor a dead letter."""
    assert {(run.failures, run.lost_leases) for run in shop.attempts("new")} == {(0, 0)}, shop.logs()
    assert AdminView(shop.store).runs(RunQuery(only_dead=True, page_size=10)) == [], shop.logs()


@pytest.mark.parametrize("lane", lanes(among=LANES), ids=lane_name)
def test_a_task_that_no_worker_knows_yet_waits_for_one_that_does(make_workers: MakeWorkers, lane: Lane) -> None:
    protocol = 1 if lane.pool in ("threads", "gevent") else 2  # of Celery's messages
    shop = make_workers(lane)
    write(shop, lane, task_protocol=protocol)
    old = shop.work(lane.pool).ready()
    wait_for(lambda: [node for node in shop.worker_nodes() if "tasks" in (node.details or "")], PATIENCE, shop.logs)
    beat = shop.start()
    beat.says("its slots wait for one")
    wait_for(lambda: shop.states("note").count(SUCCESS) >= 3, PATIENCE, shop.logs)
    (waiting,) = shop.attempts("new")
    assert (waiting.attempt, waiting.started_at, waiting.published_at) == (1, None, None), waiting
    explained = run(shop, "explain", "new")
    assert "knows its task work.new" in explained.stdout, explained.stdout + explained.stderr
    found = json.loads(run(shop, "check", "--json", "--timeout", "1").stdout)["findings"]
    assert any(one["name"] == "tasks" and "work.new" in one["says"] for one in found), found
    new = shop.work(lane.pool, SHOP_NEXT="1").ready()  # beside the old one: messages reach either
    wait_for(lambda: shop.states("new").count(SUCCESS) >= 5, 2 * PATIENCE, shop.logs)
    assert shop.attempts("new")[0].run_id == waiting.run_id
    assert_nothing_is_counted(shop)
    for process in (beat, old, new):
        process.stop()
    assert beat.log.count("its slots wait for one") == 1, beat.log
    assert old.log.count("it is not registered in this worker") <= 1, old.log
    assert set(shop.states("new")) <= {SUCCESS, SCHEDULED, SKIPPED, "claimed"}, shop.states("new")
    assert {one.attempt for one in shop.attempts("new") if one.state == SUCCESS} == {1}


@pytest.mark.parametrize("lane", lanes(among=LANES[:2]), ids=lane_name)
def test_a_slot_that_waits_in_vain_ends_as_skipped(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    write(shop, lane, sqlbeat_unknown_task_timeout=4)
    old = shop.work(lane.pool).ready()
    wait_for(lambda: [node for node in shop.worker_nodes() if "tasks" in (node.details or "")], PATIENCE, shop.logs)
    beat = shop.start()
    wait_for(lambda: shop.states("new")[:1] == [SKIPPED], PATIENCE, shop.logs)
    first = shop.attempts("new")[0]
    assert first.reason == "unknown task" and first.finished_at is not None
    assert (first.finished_at - first.created_at).total_seconds() >= 4
    wait_for(lambda: len(shop.attempts("new")) > 1, PATIENCE, shop.logs)  # the job goes on with its next slot
    assert_nothing_is_counted(shop)
    beat.stop()
    old.stop()


@pytest.mark.parametrize("lane", lanes(among=LANES[:1]), ids=lane_name)
def test_messages_that_nobody_holds_back_are_skipped_in_time_as_well(make_workers: MakeWorkers, lane: Lane) -> None:
    """Fired and forgotten before a worker came; the beat would not know that it lacks the task."""
    shop = make_workers(lane)
    write(shop, lane, sqlbeat_unknown_task_timeout=4)
    beat = shop.start()
    wait_for(lambda: shop.states("new").count(DISPATCHED) >= 2, PATIENCE, shop.logs)
    old = shop.work(lane.pool).ready()
    wait_for(lambda: shop.states("new").count(SKIPPED) >= 2, 2 * PATIENCE, shop.logs)
    assert {one.reason for one in shop.attempts("new") if one.state == SKIPPED} <= {"unknown task", "overlap"}
    assert_nothing_is_counted(shop)
    beat.stop()
    old.stop()


@pytest.mark.parametrize("lane", lanes(among=LANES[:1]), ids=lane_name)
def test_a_slot_is_sent_until_the_busy_worker_that_knows_its_task_takes_it(
    make_workers: MakeWorkers, lane: Lane
) -> None:
    """One worker knows the task and is busy for many times the time-out.

    The other takes each message meanwhile.
    """
    shop = make_workers(lane)
    entries = {"new": {"task": "work.new", "schedule": 1}}
    rules = {"sqlbeat_unknown_task_timeout": 2, "sqlbeat_max_retries": 0}
    shop.write_app(lane, _NEXT + _BUSY, beat_schedule=entries, **rules)
    old = shop.work(lane.pool).ready()
    own = shop.place.queue("direct")
    new = shop.work("solo", "--queues", f"{shop.place.queue('default')},{own}", SHOP_NEXT="1").ready()
    wait_for(lambda: len(told(shop)) == 2, PATIENCE, shop.logs)
    shop.send("work.busy", queue=own)
    shop.wait_for_line("busy")
    beat = shop.start()
    wait_for(lambda: shop.attempts("new"), PATIENCE, shop.logs)
    (first, *_) = shop.attempts("new")
    assert isinstance(first.created_at, datetime)
    wait_for(lambda: shop.now() - first.created_at > timedelta(seconds=10), PATIENCE, shop.logs)
    (waiting, *_) = shop.attempts("new")
    assert (waiting.run_id, waiting.finished_at) == (first.run_id, None), shop.logs()
    assert waiting.state != SKIPPED, shop.logs()
    assert old.log.count("it is not registered in this worker") == 1, old.log
    beat.says("is sent until one takes it")
    (shop.folder / "free").touch()
    wait_for(lambda: shop.states("new")[0] == SUCCESS, PATIENCE, shop.logs)
    assert shop.attempts("new")[0].run_id == first.run_id
    assert_nothing_is_counted(shop)
    for process in (beat, old, new):
        process.stop()


@pytest.mark.parametrize("lane", lanes(among=LANES[1:2]), ids=lane_name)
def test_a_worker_without_the_package_may_know_the_task_so_it_is_sent(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    write(shop, lane, "new")
    old = shop.work(lane.pool).ready()
    plain = shop.work(lane.pool, SHOP_NEXT="1", SHOP_PLAIN="1").ready()
    wait_for(lambda: [node for node in shop.worker_nodes() if "tasks" in (node.details or "")], PATIENCE, shop.logs)
    assert len(shop.worker_nodes()) == 1
    beat = shop.start()
    wait_for(lambda: shop.lines("new", what="new"), 2 * PATIENCE, shop.logs)
    for process in (beat, old, plain):
        process.stop()
    assert_nothing_is_counted(shop)
