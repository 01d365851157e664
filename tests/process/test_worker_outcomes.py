"""Every way a task can end, in every pool: the rows must say what docs/outcomes.md says."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.process.conftest import MakeWorkers
from tests.process.outcomes import assert_outcome, page
from tests.process.workers import (
    LEASE,
    PATIENCE,
    POOLS,
    Lane,
    WorkerShop,
    assert_calm,
    lane_name,
    lanes,
    read_lease,
    together,
)
from tests.servers import server
from tests.support.beats import wait_for
from tests.support.brokers import Wire
from tests.support.views import AdminView

pytestmark = pytest.mark.slow

NO_RETRIES = {"policies": {"max_retries": 0}}
CAN_BE_INTERRUPTED = ("prefork", "threads", "gevent", "eventlet")  # solo hears of nothing while it runs a task
AN_HOUR = 3600.0


class Case(NamedTuple):
    """One way to end: the sentence of the page, and the task that ends so."""

    how: str
    task: str
    args: tuple[Any, ...] = ()
    pools: tuple[str, ...] = POOLS
    late: bool = False
    """Celery does this only where messages are acknowledged late."""
    fields: dict[str, Any] = {}  # noqa: RUF012 - never changed
    bodies: int = 1
    """How often the body begins."""
    result: str | None = "RETRY"
    """The status in the result backend; None where there must be none."""


AGAIN = "It raises, and retries are left"
LAST = "It raises, and no retries are left"
NOT_RETRIED = "It raises an error that is not retried, by `dead_on`, `retry_on` or its retry strategy"
RETURNS_UNSTORED = "It returns, and its result cannot be stored"
RETRIES = "It calls `self.retry()`, or autoretry does"
CASES = {
    "returns": Case("It returns", "note", result="SUCCESS"),
    "catches its soft limit": Case("It returns", "soft_caught", pools=("prefork",), result="SUCCESS"),
    "raises": Case(AGAIN, "fail"),
    "raises what is not retried": Case(
        NOT_RETRIED, "fail", fields={"policies": {"dead_on": ["ValueError"]}}, result="FAILURE"
    ),
    "raises for the last time": Case(LAST, "fail", fields=NO_RETRIES, result="FAILURE"),
    "soft limit": Case("It runs into its soft time limit", "soft", pools=("prefork",)),
    "hard limit": Case("It runs into its hard time limit", "hard", pools=("prefork", "gevent")),
    "killed": Case("Its process in the pool is killed, or ends", "die", pools=("prefork",)),
    "killed after its success": Case("It returns", "die_after", pools=("prefork",), result=""),
    "SystemExit": Case("It raises SystemExit", "leave", result=""),
    "unstorable": Case(RETURNS_UNSTORED, "unstorable", result="FAILURE"),
    "waits for its retry": Case(RETRIES, "retry", (1, AN_HOUR)),
    "retries": Case("It returns", "retry", (2,), bodies=3, result="SUCCESS"),
    "waits for its quiet retry": Case(RETRIES, "retry_quietly", ("returns", 1, AN_HOUR), result="SUCCESS"),
    "retries and returns": Case("It returns", "retry_quietly", ("returns", 2), bodies=3, result="SUCCESS"),
    "retries and catches that": Case("It returns", "retry_quietly", ("catches", 2), bodies=3, result="SUCCESS"),
    "retries from a thread": Case("It returns", "retry_aside", (2,), bodies=3, result="SUCCESS"),
    "retries and raises": Case(
        "It returns", "retry_quietly", ("raises", 2), bodies=3, result="SUCCESS", fields=NO_RETRIES
    ),
    "retries in vain": Case(AGAIN, "retry_in_vain", bodies=2),
    "autoretry": Case("It returns", "autoretry", (2,), bodies=3, result="SUCCESS"),
    "autoretry in vain": Case(AGAIN, "autoretry", (9,), bodies=4),
    "Ignore": Case("It raises `Ignore`", "ignore", result=None),
    "Reject": Case("It raises `Reject`", "reject", late=True, result=""),
    "Reject and requeue": Case("It raises `Reject` with `requeue=True`", "reject", (True,), late=True, result=None),
    "unknown": Case("Its worker does not know its task", "nobody_has_this", bodies=0, result=None),
    "unreadable": Case(
        "Its worker cannot read its message",
        "note",
        fields={"options": {"serializer": "yaml"}},
        bodies=0,
        result=None,
    ),
    "replaced": Case("It calls `self.replace()`", "replace", result="SUCCESS"),
    "revoked before": Case("Its message is revoked before it begins", "note", bodies=0, result="REVOKED"),
    "revoked": Case(
        "It is revoked with `terminate=True` while it runs",
        "sleep",
        (600,),
        pools=("prefork", "gevent", "eventlet"),
        result="REVOKED",
    ),
    "cancelled": Case("It is cancelled by hand while it runs", "sleep", (600,), pools=CAN_BE_INTERRUPTED, result=""),
    "expired": Case(
        "Its message expires before it begins",
        "note",
        fields={"options": {"countdown": 4, "expires": 3}},
        bodies=0,
        result="REVOKED",
    ),
}


class Stage(NamedTuple):
    """A lane on which all the cases were sent."""

    lane: Lane
    shop: WorkerShop
    events: list[dict[str, Any]]


@pytest.fixture(scope="module", params=lanes(), ids=lane_name)
def stage(request: pytest.FixtureRequest, make_shared_workers: MakeWorkers) -> Iterator[Stage]:
    """Yield a worker that was sent all the cases at once; each test waits for its own."""
    lane = request.param
    shop = make_shared_workers(lane)
    for name, case in CASES.items():
        if is_possible(case, lane):
            shop.order(f"work.{case.task}", *case.args, name=name, **case.fields)
    shop.order("work.facts", name="facts")
    claims = shop.claim()
    with shop.events() as events:
        worker = shop.work(lane.pool, concurrency=1 if lane.pool == "solo" else 8).ready()
        shop.publish(claims.pop("expired"))  # first, lest it expires at the broker

        def is_flagged() -> bool:  # green workers are ready before they listen
            shop.control("revoke", task_id=claims["revoked before"].run_id)
            return "flagged as revoked" in worker.log

        wait_for(is_flagged, PATIENCE, shop.logs)
        shop.publish(*claims.values())
        if "revoked" in claims:
            shop.wait_for_start("revoked")
            shop.control("revoke", task_id=claims["revoked"].run_id, terminate=True, signal="SIGTERM")
        if "cancelled" in claims:
            shop.wait_for_start("cancelled")
            AdminView(shop.store).cancel("cancelled")
        yield Stage(lane, shop, events)
        worker.stop()
        assert_calm(worker)


def is_possible(case: Case, lane: Lane) -> bool:
    """Whether Celery can do this in that pool."""
    return lane.pool in case.pools and (lane.late or not case.late)


@pytest.mark.parametrize("name", CASES)
def test_the_rows_say_how_a_task_ended(stage: Stage, name: str) -> None:
    case, shop = CASES[name], stage.shop
    if not is_possible(case, stage.lane):
        pytest.skip("Celery cannot do this here")
    run = assert_outcome(shop, name, case.how)
    assert len(shop.starts(name)) == case.bodies, shop.logs()
    assert [line.retries for line in shop.starts(name)] == list(range(case.bodies))
    if case.result:
        wait_for(
            lambda: shop.results().get(run.run_id, {}).get("status") == case.result,
            PATIENCE,
            lambda: f"{case.result}: {shop.results().get(run.run_id)}\n{shop.logs()}",
        )
    elif case.result is None:
        assert run.run_id not in shop.results(), shop.results()[run.run_id]


def test_error_and_traceback_are_kept(stage: Stage) -> None:
    run = assert_outcome(stage.shop, "raises", AGAIN)
    assert "ValueError" in str(run.error) and "no luck today" in str(run.error)
    assert "in fail" in str(run.traceback)


@pytest.mark.parametrize("name", ["waits for its retry", "waits for its quiet retry"])
def test_the_lease_of_a_waiting_retry_lasts_until_after_its_eta(stage: Stage, name: str) -> None:
    assert_outcome(stage.shop, name, RETRIES)
    wait_for(lambda: read_lease(stage.shop, name) > LEASE, PATIENCE, stage.shop.logs)
    assert AN_HOUR - 300 < read_lease(stage.shop, name) <= AN_HOUR + LEASE + 1


def test_what_goes_on_is_locked_by_its_worker(stage: Stage) -> None:
    assert_outcome(stage.shop, "waits for its retry", CASES["waits for its retry"].how)
    (node,) = stage.shop.worker_nodes()
    (run,) = stage.shop.attempts("waits for its retry")
    assert stage.shop.job("waits for its retry").locked_by == run.started_by == node.node_id


def test_a_task_knows_its_run(stage: Stage) -> None:
    run = assert_outcome(stage.shop, "facts", "It returns")
    (line,) = stage.shop.lines("facts", what="facts")
    assert (line.run, line.attempt, line.fence) == (run.run_id, run.attempt, run.fence)
    assert line.more == {
        "known": True,
        "name": "facts",
        "lost": False,
        "scheduled_for": run.scheduled_for.isoformat(),
    }


def test_a_stopped_task_knows_that_its_lease_is_lost(stage: Stage) -> None:
    if not is_possible(CASES["cancelled"], stage.lane):
        pytest.skip("this pool hears of nothing while it runs a task")
    assert_outcome(stage.shop, "cancelled", CASES["cancelled"].how)
    wait_for(lambda: len(stage.shop.lines("cancelled")) == 2 or stage.lane.pool == "prefork", PATIENCE)


BACKEND_LANES = [
    Lane("prefork", "rabbitmq", "postgresql", "late"),
    Lane("threads", "redis", "sqlite", "late"),
    Lane("threads", "rabbitmq", "postgresql", "early"),
    Lane("solo", "redis", "sqlite", "late"),
    Lane("gevent", "rabbitmq", "postgresql", "early"),
]
BRIEFLY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
"""How often Celery tries again to reach a result backend; of itself twenty times, a second
apart."""


@contextlib.contextmanager
def result_backend(shop: WorkerShop, lane: Lane, tries: dict[str, Any] | None = None, **conf: Any) -> Iterator[Wire]:
    """Yield the shop's results go to Redis, on a way of their own that can be cut."""
    wire = Wire(server("redis"))
    options = {"global_keyprefix": f"{shop.place.prefix}:", **({"retry_policy": tries} if tries else {})}
    shop.write_app(lane, result_backend=wire.url, result_backend_transport_options=options, result_expires=600, **conf)
    try:
        yield wire
    finally:
        wire.close()


def test_a_result_backend_that_comes_back_in_time_costs_nothing(make_workers: MakeWorkers) -> None:
    """For longer than a lease Celery tries to store the result.

    Heartbeats go on until it has done so.
    """

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        with result_backend(shop, lane, result_backend_always_retry=True) as wire:
            name = shop.order("work.sleep", 1)
            worker = shop.work(lane.pool).ready()
            shop.dispatch()
            shop.wait_for_start(name)
            wire.cut()
            shop.wait_for_line("end", name)
            until = time.monotonic() + LEASE + 1
            while time.monotonic() < until:
                assert shop.reap() == set() and shop.states(name) == ["running"], shop.logs()
                time.sleep(0.25)
            wire.mend()
            assert_outcome(shop, name, "It returns")
            assert len(shop.starts(name)) == 1
            worker.stop()
            assert_calm(worker)
        assert shop.place.take() == []

    together({lane: make_workers(lane) for lane in lanes("prefork", "threads", among=BACKEND_LANES)}, scenario)


def test_a_body_that_returned_is_a_success_while_the_result_backend_is_away(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        with result_backend(shop, lane, BRIEFLY) as wire:
            name = shop.order("work.sleep", 1)
            worker = shop.work(lane.pool, concurrency=1).ready()  # a slot that were lost would be missed
            shop.dispatch()
            shop.wait_for_start(name)
            wire.cut()
            run = assert_outcome(shop, name, RETURNS_UNSTORED)
            assert run.reason == "result not stored" and "onnection" in str(run.error), run
            assert run.traceback is None
            wire.mend()
            again = shop.order("work.note")
            shop.dispatch_until(lambda: shop.states(again) == ["success"])
            worker.stop()
            assert_calm(worker)
            assert len(shop.starts(name)) == 1 and shop.states(name) == ["success"]
        assert shop.place.take() == []

    together({lane: make_workers(lane) for lane in lanes(among=BACKEND_LANES)}, scenario)


def test_a_body_that_returned_is_a_success_though_its_process_is_killed_while_its_result_is_stored(
    make_workers: MakeWorkers,
) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        with result_backend(shop, lane, result_backend_always_retry=True) as wire:
            killed = shop.order("work.sleep", 1)
            worker = shop.work(lane.pool).ready()
            shop.dispatch()
            child = shop.wait_for_start(killed).pid
            wire.cut()
            shop.wait_for_line("end", killed)
            os.kill(child, signal.SIGKILL)
            assert_outcome(shop, killed, RETURNS_UNSTORED)
            wire.mend()
            worker.stop()
            assert len(shop.starts(killed)) == 1

    together({lane: make_workers(lane) for lane in lanes("prefork", among=BACKEND_LANES)}, scenario)


def test_a_body_that_could_not_begin_without_a_result_backend_fails_and_the_next_attempt_may_succeed(
    make_workers: MakeWorkers,
) -> None:
    """Where Celery stores that a task has started, the body does not even begin."""

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        with result_backend(shop, lane, BRIEFLY, task_track_started=True) as wire:
            name = shop.order("work.sleep", 1)
            worker = shop.work(lane.pool, concurrency=1).ready()
            wire.cut()
            shop.dispatch()
            run = assert_outcome(shop, name, AGAIN)
            assert "onnection" in str(run.error), run
            assert len(shop.starts(name)) == 0
            wire.mend()
            shop.dispatch_until(lambda: shop.states(name) == ["retry", "success"])
            worker.stop()
            assert_calm(worker, but="callback raised")  # Celery's main process tries to store the failure, too
            assert len(shop.starts(name)) == 1
        assert shop.place.take() == []

    together({lane: make_workers(lane) for lane in lanes("prefork", "threads", among=BACKEND_LANES)}, scenario)


@pytest.mark.parametrize("lane", lanes("prefork", among=BACKEND_LANES[:1]), ids=lane_name)
def test_a_main_process_that_waits_for_a_result_backend_keeps_its_leases(make_workers: MakeWorkers, lane: Lane) -> None:
    """When a child dies, Celery's main process stores that itself, and blocks until it gives up."""
    shop = make_workers(lane)
    with result_backend(shop, lane, result_backend_always_retry=True) as wire:
        killed, other = shop.order("work.sleep", 600), shop.order("work.sleep", LEASE)
        worker = shop.work(lane.pool).ready()
        shop.dispatch()
        child = shop.wait_for_start(killed).pid
        shop.wait_for_start(other)
        wire.cut()
        os.kill(child, signal.SIGKILL)
        assert_outcome(shop, killed, "Its process in the pool is killed, or ends")
        shop.wait_for_line("end", other)
        until = time.monotonic() + LEASE + 1
        while time.monotonic() < until:
            assert shop.reap() == set() and shop.states(other) == ["running"], shop.logs()
            time.sleep(0.25)
        wire.mend()
        assert_outcome(shop, other, "It returns")
        worker.stop()
        assert len(shop.starts()) == 2


def test_a_retry_that_is_revoked_or_expires_while_it_waits_has_that_outcome(make_workers: MakeWorkers) -> None:
    """Its run has begun before, and its message says nothing of that."""

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        waits, runs = shop.order("work.retry", 1, 4.0), shop.order("work.retry_later", 2)
        expires = shop.order("work.retry", 1, 6.0, options={"expires": 5})
        worker = shop.work(lane.pool).ready()
        claims = shop.dispatch()
        shop.wait_for_line("Retry", waits)
        shop.wait_for_start(runs)
        for name in (waits, runs):
            shop.control("revoke", task_id=claims[name].run_id)
        for name in (waits, runs):
            assert_outcome(shop, name, "Its message is revoked before it begins")
        assert_outcome(shop, expires, "Its message expires before it begins")
        worker.stop()
        assert_calm(worker)
        assert all(len(shop.starts(name)) == 1 for name in claims), shop.logs()
        assert shop.place.take() == []

    together({lane: make_workers(lane) for lane in lanes()}, scenario)


def test_every_row_of_the_page_is_held_against_a_worker() -> None:
    folder = Path(__file__).parent
    files = [*folder.glob("test_worker_*.py"), folder / "test_overlap.py", folder / "test_effects.py"]
    sources = "\n".join(file.read_text() for file in files)
    unread = [how for how in page() if f'"{how}"' not in sources]
    assert not unread
    assert len(page()) > len({case.how for case in CASES.values()}) > 15


@pytest.mark.parametrize("lane", lanes(), ids=lane_name)
def test_a_memory_error_is_a_failure_even_where_it_ends_the_worker(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    worker = shop.work(lane.pool).ready()
    job = shop.order("work.out_of_memory")
    shop.dispatch()
    run = assert_outcome(shop, job, AGAIN)
    assert "MemoryError" in str(run.error)
    if lane.pool in ("prefork", "solo"):
        assert worker.wait() == 1
    else:
        worker.stop()
    assert shop.states(job) == ["retry"] and shop.worker_nodes()[0].stopped_at is not None


def test_a_success_is_written_while_the_broker_is_away(make_workers: MakeWorkers) -> None:
    """Celery's event loop does nothing but wait for the broker then.

    The process of the task has noted its success.
    """

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        wire = Wire(shop.place.url)
        shop.write_app(lane, broker_url=wire.url)
        name = shop.order("work.sleep", 1)
        worker = shop.work(lane.pool).ready()
        shop.dispatch()
        shop.wait_for_start(name)
        wire.cut()
        worker.says("onnection to broker lost")
        shop.wait_for_line("end", name)
        assert_outcome(shop, name, "It returns")
        wire.mend()
        good = shop.order("work.note")
        shop.dispatch_until(lambda: shop.states(good) == ["success"])
        worker.stop()
        assert len(shop.starts(name)) == 1
        assert shop.place.take() == []
        wire.close()

    lanes_of = [Lane("prefork", "rabbitmq", "postgresql", "late"), Lane("prefork", "rabbitmq", "sqlite", "early")]
    together({lane: make_workers(lane) for lane in lanes_of}, scenario)


def test_a_message_that_expires_before_its_eta_is_revoked_though_a_beat_has_ended_its_slot(
    make_workers: MakeWorkers,
) -> None:
    """The beat ends the slot when its message is too old, and the worker asks for it at its eta."""

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        extra = """
from celery.signals import task_revoked

@task_revoked.connect(weak=False)
def on_task_revoked(request, expired, terminated, **_):
    with open("revoked", "a") as file:
        file.write(f"{request.id} {expired} {terminated}\\n")
"""
        shop.write_app(lane, extra=extra)
        worker = shop.work(lane.pool).ready()
        job = shop.order("work.note", options={"countdown": 6, "expires": 3})
        with shop.events() as events:
            beat = shop.start()
            shop.wait_for_states(job, "skipped")
            (run,) = shop.attempts(job)
            assert run.reason == "expired"
            wait_for(lambda: (shop.folder / "revoked").exists(), PATIENCE, shop.logs)
            assert (shop.folder / "revoked").read_text().splitlines() == [f"{run.run_id} True False"]
            assert shop.results()[run.run_id]["status"] == "REVOKED"
            wait_for(lambda: "task-revoked" in {each["type"] for each in events}, PATIENCE, shop.logs)
        beat.stop()
        worker.stop()
        assert_calm(worker)
        assert not shop.starts(job)

    of_pools = [
        Lane("prefork", "redis", "postgresql", "late"),
        Lane("prefork", "rabbitmq", "sqlite", "early"),
        Lane("threads", "redis", "sqlite", "early"),
    ]
    together({lane: make_workers(lane) for lane in lanes("prefork", "threads", among=of_pools)}, scenario)
