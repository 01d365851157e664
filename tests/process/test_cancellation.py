"""A run is cancelled while it runs, is queued or waits, whatever becomes of its worker."""

import contextlib
import signal
import time
from collections.abc import Iterator
from functools import partial

import pytest

from celery_sqlbeat.api import Handle
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.model import Claim
from tests.process.conftest import MakeWorkers
from tests.process.workers import LEASE, PATIENCE, Lane, WorkerShop, assert_calm, lanes, together
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

SELDOM = {"sqlbeat_lock_timeout": 120.0, "sqlbeat_heartbeat_interval": 30.0}  # no heartbeat comes in time by itself
REASON = "cancelled by ann at "
ASKED = ("running", "cancelled")  # the call reads the run again, and its worker may have been as fast


@contextlib.contextmanager
def handle(shop: WorkerShop) -> Iterator[Handle]:
    """Give the handle of a program beside the workers."""
    app = shop.place.app(control_exchange=shop.conf["control_exchange"], result_backend=shop.conf["result_backend"])
    beat = Handle(app, read_settings({"sqlbeat_database_url": shop.database_url}, {}))
    try:
        yield beat
    finally:
        beat.close()
        app.close()


def began(shop: WorkerShop, job: str, times: int = 1) -> Claim:
    """Dispatch a job until its body has begun so often; return the last claim."""
    claims: list[Claim] = []

    def turn() -> bool:
        claims.extend(claim for name, claim in shop.dispatch().items() if name == job)
        return len(shop.starts(job)) >= times

    wait_for(turn, PATIENCE, shop.logs)
    return claims[-1]


def is_revoked(shop: WorkerShop, run_id: str) -> bool:
    """Whether whoever waits for the result is told."""
    return bool(shop.results().get(run_id, {}).get("status") == "REVOKED")


def test_a_running_task_is_stopped_within_seconds_and_its_job_goes_on(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        if lane.pool != "solo":  # where nobody hears a remote control while a body runs
            shop.write_app(lane, "", **SELDOM)
        job = shop.order("work.watch", 600, schedule="every 3s")
        worker = shop.work(lane.pool).ready()
        with handle(shop) as beat:
            for times in (1, 2):
                claim = began(shop, job, times)
                asked_at = time.monotonic()
                assert beat.runs.cancel(claim.run_id, "wrong data", by="ann").state in ASKED
                shop.wait_for_outcome(job)
                assert time.monotonic() - asked_at < 20  # a heartbeat by itself would come later
                run = beat.runs.get(claim.run_id)
                assert run is not None and run.state == "cancelled" and run.failures == run.lost_leases == 0
                assert str(run.reason).startswith(REASON) and str(run.reason).endswith(": wrong data")
                wait_for(partial(is_revoked, shop, claim.run_id), PATIENCE, shop.logs)
                row = shop.job(job)
                assert row.retry_at is None and row.next_run_time > claim.slot.scheduled_for
        assert [line.more["lost"] for line in shop.lines(job, what="lost")] == [False, False]
        assert all(line.more["cancelled"] and line.more["checked"] for line in shop.lines(job, what="lost"))
        worker.stop()
        assert_calm(worker)

    together({lane: make_workers(lane) for lane in lanes()}, scenario)


def test_the_message_of_a_queued_run_is_acknowledged_and_begins_nowhere(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        queued, follows = shop.order("work.note"), shop.order("work.note")
        claim = shop.dispatch()[queued]
        with handle(shop) as beat:
            assert beat.runs.cancel(claim.run_id).state == "cancelled"
        worker = shop.work(lane.pool).ready()
        shop.wait_for_states(follows, "success")
        wait_for(lambda: "its run was cancelled" in worker.log, PATIENCE, shop.logs)
        wait_for(partial(is_revoked, shop, claim.run_id), PATIENCE, shop.logs)
        worker.stop()
        again = shop.work(lane.pool).ready()  # what nobody acknowledged would come back
        last = shop.order("work.note")
        shop.dispatch()
        shop.wait_for_states(last, "success")
        assert "its run was cancelled" not in again.log
        assert shop.states(queued) == ["cancelled"] and not shop.starts(queued)
        again.stop()
        assert_calm(worker, again)

    together({lane: make_workers(lane) for lane in lanes("prefork", "threads", "gevent")}, scenario)


def test_an_extra_slot_that_waits_is_never_sent(make_workers: MakeWorkers) -> None:
    shop = make_workers(Lane("threads", "redis", "sqlite", "late"))
    shop.work("threads").ready()
    job = shop.order("work.note")
    shop.dispatch()
    shop.wait_for_states(job, "success")
    with handle(shop) as beat:
        run = beat.jobs.run_now(job)
        assert beat.runs.cancel(run.id).state == "cancelled"
        assert is_revoked(shop, run.id)
    assert shop.dispatch() == {} and len(shop.starts(job)) == 1


def test_where_the_worker_is_killed_after_the_request_nothing_follows(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        job = shop.order("work.sleep", 600)
        worker = shop.work(lane.pool).ready()
        claim = began(shop, job)
        worker.signal(signal.SIGSTOP)
        with handle(shop) as beat:
            assert beat.runs.cancel(claim.run_id, by="ann").state == "running"
            worker.signal(signal.SIGKILL)
            worker.wait()
            wait_for(lambda: shop.reap() or shop.states(job) != ["running"], LEASE + PATIENCE, shop.logs)
            run = beat.runs.wait(claim.run_id, PATIENCE)
        assert run.state == "cancelled" and str(run.reason).startswith(REASON)
        assert shop.dispatch() == {} and shop.states(job) == ["cancelled"]

    together({lane: make_workers(lane) for lane in lanes("prefork", "threads")}, scenario)


def test_a_one_off_is_cancelled_as_the_run_of_a_job(make_workers: MakeWorkers) -> None:
    shop = make_workers(Lane("threads", "redis", "sqlite", "late"))
    worker = shop.work("threads").ready()
    with handle(shop) as beat:
        waits = beat.submit("work.note", countdown=600)
        runs = beat.submit("work.watch", [600])
        wait_for(lambda: any(line.run == runs.id for line in shop.starts()), PATIENCE, shop.logs)
        assert beat.runs.cancel(waits.id).state == "cancelled" and is_revoked(shop, waits.id)
        assert beat.runs.cancel(runs.id, by="ann").state in ASKED
        run = beat.runs.wait(runs.id, PATIENCE)
        assert run.state == "cancelled" and str(run.reason).startswith(REASON)
        wait_for(partial(is_revoked, shop, runs.id), PATIENCE, shop.logs)
    assert [line.run for line in shop.starts()] == [runs.id]
    worker.stop()
    assert_calm(worker)
