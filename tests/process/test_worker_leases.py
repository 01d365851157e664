"""Leases against what can happen to a worker.

Killed, frozen, cut off from the database, or plainly stubborn.
"""

import signal
import time

import psutil
import pytest

from celery_sqlbeat.model import RunRecord
from celery_sqlbeat.store.records import JobQuery
from tests.process.conftest import MakeWorkers
from tests.process.outcomes import assert_outcome
from tests.process.workers import (
    CLOCKS,
    LEASE,
    PATIENCE,
    POOLS,
    Lane,
    Line,
    Worker,
    WorkerShop,
    assert_calm,
    lane_name,
    lanes,
    together,
)
from tests.support.beats import LONG, wait_for
from tests.support.brokers import Wire
from tests.support.views import AdminView

pytestmark = pytest.mark.slow

FROZEN = [
    Lane("prefork", "redis", "postgresql", "late"),
    Lane("threads", "rabbitmq", "sqlite", "late"),
    Lane("gevent", "redis", "postgresql", "early"),
    Lane("solo", "rabbitmq", "mysql", "early"),
]
RETURNS = "It returns"
KILLED = "Its worker is killed, or stands still for longer than the lease"
AWAY = "The database was away for longer than the lease allows"
AN_AGE = 600  # seconds; whoever sleeps for so long is stopped by somebody


def second_attempt(shop: WorkerShop, job: str, lost: RunRecord) -> Line:
    """Be the beat until the second attempt has ended.

    It may not begin before the lease of the first one ended.
    """
    shop.dispatch_until(lambda: shop.states(job)[1:] == ["success"])
    first, second = shop.starts(job)[:2]
    assert second.at >= first.at + LEASE - 2 * CLOCKS or lost.lost_leases == 0, shop.logs()
    assert second.fence is not None and first.fence is not None and second.fence > first.fence
    return second


def wait_until_taken_over(shop: WorkerShop, job: str) -> None:
    """Be the beat that looks for ended leases, until this one has ended."""
    wait_for(lambda: shop.reap() or shop.states(job) != ["running"], PATIENCE, shop.logs)


def ends_of(shop: WorkerShop, start: Line) -> list[Line]:
    """How the body that began so has ended."""
    return [line for line in shop.lines() if line.run == start.run and line.what not in ("start", "swallowed", "lost")]


@pytest.mark.parametrize("lane", lanes("prefork", "gevent", among=FROZEN), ids=lane_name)
def test_the_run_of_a_killed_worker_is_taken_over(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    names = [shop.order("work.sleep", AN_AGE, 0.5) for _ in range(3)]
    first = shop.work(lane.pool).ready()
    shop.dispatch()
    for name in names:
        shop.wait_for_start(name)
    children = first.children()
    first.signal_main(signal.SIGKILL)  # its children die with it
    first.wait()
    wait_for(lambda: not any(psutil.pid_exists(child) for child in children), PATIENCE, shop.logs)
    other = shop.work(lane.pool).ready()
    for name in names:
        wait_until_taken_over(shop, name)
        lost = assert_outcome(shop, name, KILLED)
        second_attempt(shop, name, lost)
    other.stop()
    assert shop.place.take() == []


def test_a_slot_that_loses_every_lease_goes_to_the_dead_letters(make_workers: MakeWorkers) -> None:
    shop = make_workers(Lane("prefork", "rabbitmq", "postgresql", "late"))
    shop.max_lost_leases = 0
    name = shop.order("work.sleep", AN_AGE)
    worker = shop.work().ready()
    shop.dispatch()
    shop.wait_for_start(name)
    worker.kill()
    wait_until_taken_over(shop, name)
    assert_outcome(shop, name, "Its worker is killed, and no lost leases are left")


def test_a_worker_that_stood_still_writes_nothing_and_stops_what_it_can(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        name = shop.order("work.sleep", 2 * LEASE)
        worker = shop.work(lane.pool).ready()
        shop.dispatch()
        start = shop.wait_for_start(name)
        worker.signal(signal.SIGSTOP)
        wait_until_taken_over(shop, name)
        lost = assert_outcome(shop, name, KILLED)
        (again,) = shop.claim().values()  # another worker may have it from here on; it is not published
        (before,) = [run for run in shop.attempts(name) if run.attempt == 1]
        worker.signal(signal.SIGCONT)
        wait_for(lambda: ends_of(shop, start), PATIENCE, shop.logs)
        (end,) = ends_of(shop, start)
        assert end.what != "end", shop.logs()
        good = shop.order("work.note")
        shop.dispatch()
        shop.wait_for_outcome(good)  # it works again, and what it had to say is said by now
        assert_outcome(shop, good, RETURNS)
        assert [run for run in shop.attempts(name) if run.attempt == 1] == [before] == [lost]
        assert shop.job(name).run_id == again.run_id
        worker.stop()
        assert [run for run in shop.attempts(name) if run.attempt == 1] == [before]

    chosen = lanes(*POOLS, among=FROZEN)
    together({lane: make_workers(lane) for lane in chosen}, scenario)


def test_no_body_begins_after_its_lease_in_a_child_that_stood_still(make_workers: MakeWorkers) -> None:
    """Its message is in the pipe already.

    The main process cannot tell it anything, since it stands still as well.
    """
    shop = make_workers(Lane("prefork", "redis", "postgresql", "early"))
    worker = shop.work(concurrency=1).ready()
    (child,) = worker.children()
    psutil.Process(child).suspend()
    name = shop.order("work.sleep", 0.1)
    shop.dispatch()
    shop.wait_for_states(name, "running")
    worker.signal_main(signal.SIGSTOP)
    wait_until_taken_over(shop, name)
    psutil.Process(child).resume()
    wait_for(lambda: psutil.Process(child).status() == psutil.STATUS_SLEEPING, PATIENCE, shop.logs)
    worker.signal_main(signal.SIGCONT)
    shop.dispatch_until(lambda: shop.states(name)[1:] == ["success"])
    assert [start.attempt for start in shop.starts(name)] == [2], shop.logs()
    assert_calm(worker)


# A message is acknowledged between its lease and its body; a broker may take its time for that.
_SLOW_TO_ACKNOWLEDGE = """
import pathlib, time
from celery.worker.request import Request
on_accepted = Request.on_accepted

def accept_slowly(self, pid, time_accepted):
    on_accepted(self, pid, time_accepted)
    if not pathlib.Path("accepted").exists():
        pathlib.Path("accepted").touch()
        time.sleep(1)

Request.on_accepted = accept_slowly
"""


def test_no_body_begins_after_its_lease_in_a_worker_that_stood_still(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, extra=_SLOW_TO_ACKNOWLEDGE)
        worker = shop.work(lane.pool).ready()
        name = shop.order("work.sleep", 0.1)
        shop.dispatch()
        wait_for((shop.folder / "accepted").exists, PATIENCE, shop.logs)
        worker.signal(signal.SIGSTOP)
        wait_until_taken_over(shop, name)
        worker.signal(signal.SIGCONT)
        shop.dispatch_until(lambda: shop.states(name)[1:] == ["success"])
        assert [start.attempt for start in shop.starts(name)] == [2], shop.logs()
        assert_calm(worker)

    chosen = [lane for lane in lanes(*POOLS, among=FROZEN) if lane.pool != "prefork"]
    together({lane: make_workers(lane) for lane in chosen}, scenario)


# Between the first check of the lease and the body, the worker stands still with all its processes.
_STANDS_STILL_BEFORE_THE_BODY = f"""
import os, pathlib, signal, time
from celery.signals import task_failure, task_prerun, task_retry

def stand_still(**_):
    if not pathlib.Path("stood still").exists():
        pathlib.Path("stood still").touch()
        last = time.monotonic()
        os.killpg(os.getpgrp(), signal.SIGSTOP)
        while (now := time.monotonic()) - last < {LEASE / 2}:  # a thread goes on until the signal arrives
            last = now

def tell(**_):
    pathlib.Path("told a failure").touch()

task_prerun.connect(stand_still, weak=False)
task_failure.connect(tell, weak=False)
task_retry.connect(tell, weak=False)
"""


def test_no_body_begins_after_its_lease_in_a_task_that_stood_still_before_it(make_workers: MakeWorkers) -> None:
    """Nobody is told a failure, and its message is acknowledged.

    The next attempt does the work.
    """

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, extra=_STANDS_STILL_BEFORE_THE_BODY)
        worker = shop.work(lane.pool).ready()
        name = shop.order("work.sleep", 0.1)
        shop.dispatch()
        wait_for((shop.folder / "stood still").exists, PATIENCE, shop.logs)
        wait_until_taken_over(shop, name)
        lost = assert_outcome(shop, name, KILLED)
        worker.signal(signal.SIGCONT)
        shop.dispatch_until(lambda: shop.states(name)[1:] == ["success"])
        assert [start.attempt for start in shop.starts(name)] == [2], shop.logs()
        assert shop.attempts(name)[0] == lost and not (shop.folder / "told a failure").exists(), shop.logs()
        worker.stop()
        assert shop.place.take() == []
        assert_calm(worker)

    chosen = lanes(*POOLS, among=FROZEN)
    together({lane: make_workers(lane) for lane in chosen}, scenario)


@pytest.mark.parametrize("lane", lanes("prefork"), ids=lane_name)
def test_what_a_child_did_while_its_worker_stood_still_is_not_recorded(make_workers: MakeWorkers, lane: Lane) -> None:
    """Nobody stops the child of a frozen process.

    Its outcome comes too late, and the fence is the protection.
    """
    shop = make_workers(lane)
    names = [shop.order("work.sleep", LEASE), shop.order("work.sleep", AN_AGE)]
    worker = shop.work().ready()
    shop.dispatch()
    starts = [shop.wait_for_start(name) for name in names]
    worker.signal_main(signal.SIGSTOP)
    for name in names:
        wait_until_taken_over(shop, name)
        assert_outcome(shop, name, KILLED)
    shop.wait_for_line("end", names[0])
    assert shop.claim().keys() == set(names)  # another worker may have them from here on
    before = [shop.attempts(name)[0] for name in names]
    worker.signal_main(signal.SIGCONT)
    wait_for(lambda: ends_of(shop, starts[1]), PATIENCE, shop.logs)
    good = shop.order("work.note")
    shop.dispatch()
    shop.wait_for_outcome(good)
    assert [shop.attempts(name)[0] for name in names] == before
    worker.stop()
    assert [shop.attempts(name)[0] for name in names] == before


def outage(shop: WorkerShop, lane: Lane, swallow: bool, seconds: float) -> tuple[Wire, Worker, str, Line]:
    """Start a task, and cut its worker off from the database for so long."""
    wire = Wire(shop.database_url)
    shop.write_app(lane, sqlbeat_database_url=wire.url)
    name = shop.order("work.sleep", 8, 0.5)
    worker = shop.work(lane.pool).ready()
    shop.dispatch()
    start = shop.wait_for_start(name)
    time.sleep(1.5)  # at least one heartbeat is through
    if swallow:
        wire.stop_after = 0
    else:
        wire.cut()
    time.sleep(seconds)  # here it is time itself that is waited for
    return wire, worker, name, start


ON_A_SERVER = [
    Lane("prefork", "redis", "postgresql", "late"),
    Lane("threads", "rabbitmq", "mysql", "early"),
    Lane("gevent", "rabbitmq", "postgresql", "late"),
    Lane("eventlet", "redis", "postgresql", "late"),
    Lane("solo", "redis", "mysql", "early"),
]


# Half of the workers lose their connections, the others hear nothing any more; in the long variant
# also the other way.
ways = pytest.mark.parametrize("swapped", [False, True] if LONG else [False])


def is_silent(lane: Lane, swapped: bool) -> bool:
    """Whether the database just does not answer on this lane, instead of being gone."""
    return (ON_A_SERVER.index(lane) % 2 == 1) != swapped


@ways
def test_an_outage_shorter_than_the_lease_interrupts_nothing(make_workers: MakeWorkers, swapped: bool) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        wire, worker, name, _ = outage(shop, lane, is_silent(lane, swapped), 1.5)
        wire.cut()  # what was swallowed is gone for good, as after a restart of a firewall
        wire.mend()
        shop.wait_for_outcome(name)
        assert_outcome(shop, name, RETURNS)
        worker.stop()
        wire.close()
        assert_calm(worker)

    together({lane: make_workers(lane) for lane in ON_A_SERVER[: 5 if LONG else 2]}, scenario)


@ways
def test_an_outage_longer_than_the_lease_stops_the_task_before_its_lease_ends(
    make_workers: MakeWorkers, swapped: bool
) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        wire, worker, name, start = outage(shop, lane, is_silent(lane, swapped), 0.0)
        lease_ends_at = shop.job(name).lease_ends_at
        wait_for(lambda: ends_of(shop, start) or shop.now() > lease_ends_at, PATIENCE, shop.logs)
        (end,) = ends_of(shop, start)
        assert end.what != "end" and end.at < lease_ends_at.timestamp(), shop.logs()
        assert shop.states(name) == ["running"]  # nobody can be told yet
        wire.cut()
        wire.mend()
        assert_outcome(shop, name, AWAY)
        second_attempt(shop, name, shop.attempts(name)[0])
        worker.stop()
        wire.close()
        assert_calm(worker)

    together({lane: make_workers(lane) for lane in ON_A_SERVER}, scenario)


def test_an_outage_that_does_not_end_loses_no_slot(make_workers: MakeWorkers) -> None:
    """The worker can tell nobody; when its lease has ended, others take the run over."""
    shop = make_workers(ON_A_SERVER[0])
    wire, worker, name, start = outage(shop, ON_A_SERVER[0], True, 0.0)
    shop.write_app(ON_A_SERVER[0])
    wait_for(lambda: ends_of(shop, start), PATIENCE, shop.logs)
    wait_until_taken_over(shop, name)
    lost = assert_outcome(shop, name, KILLED)
    worker.kill()
    wire.close()
    other = shop.work().ready()
    second_attempt(shop, name, lost)
    other.stop()


@pytest.mark.parametrize("acks", ["late", "early"])
def test_a_late_message_is_acknowledged_when_its_outcome_is_written(make_workers: MakeWorkers, acks: str) -> None:
    """The task ends while the database is away, and then its worker is killed.

    Who has not acknowledged gives back.
    """

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        wire = Wire(shop.database_url)
        shop.write_app(lane, sqlbeat_database_url=wire.url)
        name = shop.order("work.sleep", 1)
        worker = shop.work(lane.pool).ready()
        (claim,) = shop.dispatch().values()
        shop.wait_for_start(name)
        wire.cut()
        shop.wait_for_line("end", name)
        worker.says(f"{claim.run_id}] succeeded")
        worker.kill()
        wire.close()
        wait_until_taken_over(shop, name)
        assert_outcome(shop, name, KILLED)
        left = [message.headers["id"] for message in shop.place.take()]
        assert left == [claim.run_id] * (acks == "late"), shop.logs()

    chosen = [Lane(pool, "rabbitmq", "postgresql", acks) for pool in ("prefork", "threads")]
    together({lane: make_workers(lane) for lane in chosen}, scenario)


def test_a_run_that_is_unlocked_by_hand_is_stopped_and_learns_why(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        name = shop.order("work.watch", AN_AGE)
        worker = shop.work(lane.pool).ready()
        shop.dispatch()
        start = shop.wait_for_start(name)
        shop.statement("UPDATE Jobs SET LockedBy = NULL;")
        shop.wait_for_line("lost", name)
        (line,) = shop.lines(name, what="lost")
        assert (line.more["lost"], line.more["checked"]) == (True, True), shop.logs()
        wait_for(lambda: ends_of(shop, start), PATIENCE, shop.logs)
        (claim,) = shop.claim().values()
        assert claim.fence > (start.fence or 0)
        worker.stop()
        assert shop.job(name).run_id == claim.run_id and shop.job(name).fence == claim.fence

    together({lane: make_workers(lane) for lane in lanes()}, scenario)


@pytest.mark.parametrize("lane", lanes("prefork"), ids=lane_name)
def test_a_task_that_swallows_every_exception_is_killed(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    name = shop.order("work.swallow", AN_AGE)
    worker = shop.work(concurrency=2).ready()
    shop.dispatch()
    start = shop.wait_for_start(name)
    assert AdminView(shop.store).cancel(name)
    wait_for(lambda: not psutil.pid_exists(start.pid), PATIENCE, shop.logs)
    assert not ends_of(shop, start)
    assert shop.states(name) == ["cancelled"]
    good = [shop.order("work.doze", 1) for _ in range(2)]
    shop.dispatch()
    shop.wait_for_outcome(*good)  # the pool has its two processes again
    for each in good:
        assert_outcome(shop, each, RETURNS)
    worker.stop()


def test_what_cannot_be_stopped_keeps_its_claim_unextended(make_workers: MakeWorkers) -> None:
    """An exception does not reach a thread that sleeps in C.

    Its run is not given away by its own worker meanwhile.
    """
    lane = ON_A_SERVER[1]
    shop = make_workers(lane)
    name = shop.order("work.doze", LEASE + 3)
    wire = Wire(shop.database_url)
    shop.write_app(lane, sqlbeat_database_url=wire.url)
    worker = shop.work(lane.pool).ready()
    shop.dispatch()
    start = shop.wait_for_start(name)
    wire.cut()
    worker.says("abandoned: it was not extended for")
    wire.mend()
    until = shop.job(name).lease_ends_at
    wait_until_taken_over(shop, name)
    assert shop.attempts(name)[0].finished_at >= until
    assert_outcome(shop, name, KILLED)
    wait_for(lambda: ends_of(shop, start), PATIENCE, shop.logs)
    worker.stop()
    wire.close()
    assert shop.states(name) == ["retry"]


def test_stops_in_the_middle_of_thousands_of_short_tasks_cost_no_thread(make_workers: MakeWorkers) -> None:
    lane = Lane("threads", "redis", "postgresql", "late")
    shop = make_workers(lane)
    shop.write_app(lane, sqlbeat_heartbeat_interval=0.3, worker_prefetch_multiplier=4)
    tasks, threads = 3000, 64
    names = [shop.order("work.brief") for _ in range(tasks)]
    worker = shop.work("threads", concurrency=threads).ready()
    shop.dispatch_until(lambda: len(shop.runs()) == tasks)

    def are_over() -> bool:
        shop.statement(
            "UPDATE Jobs SET LockedBy = NULL WHERE random() < 0.5 AND RunId IN "
            "(SELECT RunId FROM JobRuns WHERE State = 'running');"
        )
        return all(row.locked_by is None for row in AdminView(shop.store).jobs(JobQuery(names=names)).values())

    wait_for(are_over, 4 * PATIENCE, shop.logs)

    def have_told() -> bool:
        told = {line.run for line in shop.lines() if line.what != "start"}
        return {line.run for line in shop.starts()} <= told

    wait_for(have_told, PATIENCE, shop.logs)
    stopped = [line for line in shop.lines() if line.what not in ("start", "end")]
    assert len(stopped) > 20, "the stops must hit bodies"
    assert len(shop.starts()) + len([run for run in shop.runs() if run.state == "claimed"]) <= tasks
    last = [shop.order("work.doze", 2) for _ in range(threads)]
    shop.dispatch()
    shop.wait_for_outcome(*last)
    begun = [line.at for line in shop.starts(*last)]
    ended = [line.at for line in shop.lines(*last, what="end")]
    assert len(ended) == threads and max(begun) < min(ended), "all threads at once"
    worker.stop()
    assert_calm(worker)
