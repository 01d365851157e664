"""Workers that end in order, by force or by surprise.

What ran, what had not begun, and what the broker gets back.
"""

import os
import signal
from typing import Any

import celery.app.defaults
import pytest

from celery_sqlbeat.model.lifecycle import RUNNING, SUCCESS
from tests.process.conftest import MakeWorkers
from tests.process.outcomes import assert_outcome
from tests.process.workers import (
    CLOCKS,
    PATIENCE,
    Lane,
    WorkerShop,
    assert_calm,
    lane_name,
    lanes,
    together,
)
from tests.support.beats import wait_for
from tests.support.brokers import Wire

pytestmark = pytest.mark.slow

RETURNS = "It returns"
NOT_BEGUN = "A warm shutdown finds it not begun"
STOPPED = "A soft or cold shutdown ends it"
AN_AGE = 600
UNTOUCHED = 60.0  # seconds of a lease that must not end, even where a busy machine stands still for a while
WARM = [
    Lane("prefork", "redis", "postgresql", "late"),
    Lane("threads", "rabbitmq", "sqlite", "early"),
    Lane("gevent", "rabbitmq", "postgresql", "late"),
    Lane("eventlet", "redis", "postgresql", "early"),
    Lane("solo", "redis", "sqlite", "late"),
]
COLD = [
    Lane("prefork", "rabbitmq", "postgresql", "late"),
    Lane("threads", "redis", "postgresql", "late"),
    Lane("gevent", "redis", "postgresql", "early"),
]


def test_a_warm_shutdown_lets_tasks_end_and_gives_the_rest_back(make_workers: MakeWorkers) -> None:
    """The task takes longer than its lease: heartbeats go on until the pool is empty."""

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        running = shop.order("work.sleep", 8)
        worker = shop.work(lane.pool, concurrency=1).ready()
        shop.dispatch()
        shop.wait_for_start(running)
        waiting = [shop.order("work.note") for _ in range(3)]
        claims = shop.dispatch()
        if lane.pool in ("prefork", "threads"):  # the others fetch little or nothing while their slots are taken
            for claim in claims.values():
                worker.says(claim.run_id)
        worker.process.send_signal(signal.SIGTERM)
        while worker.process.poll() is None:
            assert shop.reap() == set(), shop.logs()
            shop.now()
        assert worker.wait() == 0, worker.log
        assert_calm(worker)
        assert_outcome(shop, running, RETURNS)
        (node,) = shop.worker_nodes()
        assert node.stopped_at is not None
        assert len(shop.starts()) == 1, shop.logs()
        for name in waiting:
            assert_outcome(shop, name, NOT_BEGUN)
        other = shop.work(lane.pool).ready()
        shop.wait_for_outcome(*waiting)
        for name in waiting:
            assert_outcome(shop, name, RETURNS)
        other.stop()

    together({lane: make_workers(lane) for lane in lanes(among=WARM)}, scenario)


@pytest.mark.parametrize(
    "lane",
    [Lane("prefork", "redis", "postgresql", "late"), Lane("prefork", "rabbitmq", "sqlite", "early")],
    ids=lane_name,
)
def test_a_warm_shutdown_gives_back_what_its_retired_children_would_have_run(
    make_workers: MakeWorkers, lane: Lane
) -> None:
    """Celery frees a slot too many for each retiring child, and starts none in a closing pool."""
    shop = make_workers(lane)
    shop.write_app(lane, sqlbeat_lock_timeout=UNTOUCHED)
    names = [shop.order("work.note") for _ in range(60)]
    worker = shop.work(lane.pool, "--max-tasks-per-child", "2", concurrency=2).ready()
    shop.dispatch()
    wait_for(lambda: len(shop.starts()) >= 12, PATIENCE, shop.logs)
    worker.stop()
    assert_calm(worker)
    begun = {line.job for line in shop.starts()}
    for name in names:
        (run,) = shop.attempts(name)
        expected = ("success",) if name in begun else ("claimed", "scheduled")
        assert run.attempt == 1 and run.state in expected, f"{run}\n{shop.logs()}"
    other = shop.work(lane.pool).ready()
    shop.dispatch_until(lambda: all(shop.states(name) == ["success"] for name in names))
    assert sorted(str(line.job) for line in shop.starts()) == sorted(names)
    other.stop()
    assert shop.place.take() == []


@pytest.mark.parametrize("lane", lanes("prefork", among=WARM[:1]), ids=lane_name)
def test_what_has_not_begun_is_given_back_while_another_task_still_ends(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, sqlbeat_lock_timeout=UNTOUCHED)
    long = shop.order("work.sleep", AN_AGE)
    worker = shop.work(lane.pool, "--max-tasks-per-child", "2", concurrency=2).ready()
    shop.dispatch()
    shop.wait_for_start(long)
    names = [shop.order("work.note") for _ in range(30)]
    shop.dispatch()
    wait_for(lambda: len(shop.starts(*names)) >= 4, PATIENCE, shop.logs)
    worker.signal_main(signal.SIGTERM)
    worker.says("Warm shutdown")
    wait_for(lambda: {run.job_name for run in shop.runs() if run.state == RUNNING} == {long}, PATIENCE, shop.logs)
    assert {run.attempt for run in shop.runs()} == {1}
    assert worker.process.poll() is None


def test_a_cold_shutdown_frees_its_runs_at_once(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        name = shop.order("work.sleep", AN_AGE, 0.5)
        worker = shop.work(lane.pool).ready()
        shop.dispatch()
        start = shop.wait_for_start(name)
        shop.wait_for_answer()
        worker.signal_main(signal.SIGQUIT)
        worker.wait()
        if lane.pool != "gevent":  # there Celery itself breaks off: its handler waits where nothing may wait
            assert_calm(worker)
        (lost,) = shop.attempts(name)
        assert_outcome(shop, name, STOPPED)
        assert not shop.lines(name, what="end")
        other = shop.work(lane.pool).ready()  # the broker gives it the message again, for late acknowledgements
        shop.dispatch_until(lambda: shop.states(name) == ["retry", "success"])
        second = shop.starts(name)[-1]
        assert lost.finished_at is not None and second.at >= lost.finished_at.timestamp() - CLOCKS
        assert second.at - start.at < PATIENCE and len(shop.starts(name)) == 2
        other.stop()
        assert shop.place.take() == []

    together({lane: make_workers(lane) for lane in lanes("prefork", "threads", "gevent", among=COLD)}, scenario)


def test_a_cold_shutdown_of_an_idle_worker_goes_through_all_its_steps(make_workers: MakeWorkers) -> None:
    shop = make_workers(COLD[0])
    worker = shop.work(COLD[0].pool).ready()
    name = shop.order("work.note")
    shop.dispatch()
    shop.wait_for_outcome(name)
    shop.wait_for_answer()
    worker.signal_main(signal.SIGQUIT)
    worker.wait()
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("lane", lanes("prefork", "threads", among=COLD[:2]), ids=lane_name)
def test_a_soft_shutdown_waits_as_long_as_it_was_told_to(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, worker_soft_shutdown_timeout=3)
    brief, long = shop.order("work.sleep", 1.5), shop.order("work.sleep", AN_AGE)
    worker = shop.work(lane.pool).ready()
    shop.dispatch()
    shop.wait_for_start(brief)
    shop.wait_for_start(long)
    shop.wait_for_answer()
    worker.signal_main(signal.SIGQUIT)
    worker.wait()
    assert_calm(worker)
    assert_outcome(shop, brief, RETURNS)
    assert_outcome(shop, long, STOPPED)


@pytest.mark.parametrize("lane", lanes("prefork", among=COLD[:1]), ids=lane_name)
def test_a_signal_to_the_whole_group_is_no_failure_of_its_tasks(make_workers: MakeWorkers, lane: Lane) -> None:
    """Control-C in a terminal, or a container's stop: the children get the signal, too."""
    shop = make_workers(lane)
    name = shop.order("work.sleep", AN_AGE)
    worker = shop.work(lane.pool).ready()
    shop.dispatch()
    shop.wait_for_start(name)
    worker.signal(signal.SIGTERM)
    worker.wait()
    (run,) = shop.attempts(name)
    assert (run.failures, run.lost_leases) == (0, 0), shop.logs()
    assert run.state in ("retry", "running")


KILLED = "Its process in the pool is killed, or ends"
KILLED_CHILDREN = [
    Lane("prefork", "rabbitmq", "postgresql", "late"),
    Lane("prefork", "redis", "sqlite", "late"),
    Lane("prefork", "rabbitmq", "sqlite", "early"),
    Lane("prefork", "redis", "postgresql", "early"),
]
LOST_CONNECTION = "The connection to the broker is lost, with `worker_cancel_long_running_tasks_on_connection_loss`"


@pytest.mark.parametrize("cancels", [True, False], ids=["cancelled", "going on"])
def test_a_lost_connection_to_the_broker_ends_tasks_only_where_that_was_asked_for(
    make_workers: MakeWorkers, cancels: bool
) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        wire = Wire(shop.place.url)
        conf: dict[str, Any] = {"worker_cancel_long_running_tasks_on_connection_loss": cancels}
        shop.write_app(lane, broker_url=wire.url, **conf)
        name = shop.order("work.sleep", AN_AGE if cancels else 6, 0.5)
        worker = shop.work(lane.pool).ready()
        shop.dispatch()
        shop.wait_for_start(name)
        wire.cut()
        worker.says("onnection to broker lost")
        wire.mend()
        if cancels:
            assert_outcome(shop, name, LOST_CONNECTION)
            shop.dispatch_until(lambda: shop.states(name) == ["retry", "success"])
            assert len(shop.starts(name)) == 2
        else:
            shop.wait_for_outcome(name)
            assert_outcome(shop, name, RETURNS)
            assert len(shop.starts(name)) == 1
        good = shop.order("work.note")
        shop.dispatch()
        shop.wait_for_outcome(good)
        worker.stop()
        assert shop.place.take() == []
        wire.close()

    chosen = [Lane("prefork", "rabbitmq", "postgresql", "late"), Lane("prefork", "redis", "sqlite", "late")]
    together({lane: make_workers(lane) for lane in chosen}, scenario)


PUT_BACK = """
from celery.concurrency.asynpool import AsynPool

lost = AsynPool.on_job_process_lost

def on_job_process_lost(self, job, pid, exitcode):
    if job._accepted:
        job._accepted = False  # as if nobody had read yet that the process had taken it
        self._put_back(job)
    else:
        lost(self, job, pid, exitcode)

AsynPool.on_job_process_lost = on_job_process_lost
"""


def test_a_task_that_celery_gives_to_another_process_does_not_run_twice(make_workers: MakeWorkers) -> None:
    """Celery's pool does so if two processes end at once before it reads what the second had begun.

    That moment cannot be hit at will, so the worker's pool is made to take a process for such a
    one.
    """
    lane = Lane("prefork", "rabbitmq", "sqlite", "late")
    shop = make_workers(lane)
    shop.write_app(lane, PUT_BACK)
    killed, done = shop.order("work.die"), shop.order("work.die_after")
    worker = shop.work(lane.pool, concurrency=2).ready()
    shop.dispatch()
    assert_outcome(shop, killed, KILLED)
    assert_outcome(shop, done, "It returns")
    assert len(shop.starts(killed)) == len(shop.starts(done)) == 1
    worker.stop()


READERS = """
import amqp.connection, threading

read = amqp.connection.Connection.blocking_read

def blocking_read(self, timeout=None):
    if threading.current_thread() is not threading.main_thread():
        print("the broker is read by", threading.current_thread().name, flush=True)
    return read(self, timeout)

amqp.connection.Connection.blocking_read = blocking_read
"""


def test_a_green_worker_goes_on_whose_messages_were_lost_before_redis_heard_of_them(make_workers: MakeWorkers) -> None:
    """It holds all messages that it may, so it waits for none, and nothing tells it of the cut."""
    shop = make_workers(Lane("gevent", "redis", "postgresql", "late"))
    wire = Wire(shop.place.url)
    shop.write_app(None, broker_url=wire.url, task_acks_late=True, worker_prefetch_multiplier=1)
    worker = shop.work("gevent", concurrency=2).ready()
    long = [shop.order("work.sleep", 3) for _ in range(2)]
    shop.dispatch()
    for job in long:
        shop.wait_for_start(job)
    wire.cut()
    worker.says("Couldn't ack", times=2, seconds=PATIENCE)
    wire.mend()
    later = shop.order("work.note")
    shop.dispatch()
    shop.wait_for_outcome(*long, later)
    assert [shop.states(job) for job in (*long, later)] == [[SUCCESS]] * 3
    worker.stop()
    wire.close()


def test_after_a_lost_connection_nobody_reads_the_broker_beside_the_consumer(make_workers: MakeWorkers) -> None:
    """Threads have an event loop on RabbitMQ, but Celery raises the prefetch in another thread."""
    lane = Lane("threads", "rabbitmq", "sqlite", "early")
    shop = make_workers(lane)
    wire = Wire(shop.place.url)
    shop.write_app(lane, READERS, broker_url=wire.url)
    long = shop.order("work.sleep", 6, 0.5)
    worker = shop.work(lane.pool, "--loglevel", "INFO").ready()
    shop.dispatch()
    shop.wait_for_start(long)
    wire.cut()
    worker.says("onnection to broker lost")
    wire.mend()
    worker.says("Temporarily reducing the prefetch count")
    shop.wait_for_outcome(long)
    good = [shop.order("work.note") for _ in range(4)]
    shop.dispatch()
    shop.wait_for_outcome(*good)
    worker.says("Prefetch count has been restored to the maximum")
    worker.stop()
    assert "the broker is read by" not in worker.log
    wire.close()


def dropped(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that were dropped, not given back."""
    return [event for event in events if event["type"] == "task-rejected" and not event.get("requeue")]


def test_a_killed_child_is_a_failure_where_celery_would_give_its_message_back(make_workers: MakeWorkers) -> None:
    """The message of a task that kills its process would come again and again.

    A new attempt has one of its own.
    """

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, task_reject_on_worker_lost=True, sqlbeat_lock_timeout=UNTOUCHED)
        name = shop.order("work.die", policies={"max_retries": 1})
        worker = shop.work(lane.pool).ready()
        with shop.events() as events:
            shop.dispatch_until(lambda: shop.states(name) == ["retry", "dlq"])
        assert assert_outcome(shop, name, "It raises, and no retries are left", 2).error
        assert len(shop.starts(name)) == 2
        worker.stop()
        assert shop.place.take() == []
        assert not [event for event in events if event["type"] == "task-rejected"]

    chosen = [Lane("prefork", "rabbitmq", "postgresql", "late"), Lane("prefork", "redis", "sqlite", "late")]
    together({lane: make_workers(lane) for lane in chosen}, scenario)


@pytest.mark.parametrize(
    "setting", ["", "task_reject_on_worker_lost", "task_retry_on_worker_lost"], ids=lambda name: name or "acknowledged"
)
def test_a_child_killed_from_outside_is_followed_by_one_new_attempt(make_workers: MakeWorkers, setting: str) -> None:
    """What an out-of-memory killer does.

    Whatever Celery would do with the message, it has one successor.
    """
    if setting and setting.removeprefix("task_") not in celery.app.defaults.NAMESPACES["task"]:
        pytest.skip(f"this Celery has no {setting}")

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        conf: dict[str, Any] = {"sqlbeat_lock_timeout": UNTOUCHED, **({setting: True} if setting else {})}
        shop.write_app(lane, task_annotations={"work.sleep": {"default_retry_delay": 1}}, **conf)
        name, other = shop.order("work.sleep", AN_AGE, 0.5), shop.order("work.sleep", 4)
        worker = shop.work(lane.pool).ready()
        with shop.events() as events:
            claims = shop.dispatch()
            child = shop.wait_for_start(name).pid
            shop.wait_for_start(other)
            os.kill(child, signal.SIGKILL)
            assert_outcome(shop, name, KILLED)
            shop.dispatch_until(lambda: shop.states(name) == ["retry", "success"])
            shop.wait_for_outcome(other)
        assert not dropped(events), f"{claims}\n{shop.logs()}"
        assert len(shop.starts(name)) == 2 and len(shop.starts(other)) == 1
        assert_outcome(shop, other, RETURNS)
        worker.stop()
        assert_calm(worker)
        assert shop.place.take() == []

    together({lane: make_workers(lane) for lane in KILLED_CHILDREN}, scenario)
