"""A run that outlasts its `max_runtime` is stopped by the means of its pool, and has failed."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.process.conftest import MakeWorkers
from tests.process.outcomes import assert_outcome
from tests.process.test_worker_alerts import _ALERTS, A_RETRY, alerts, is_told, told_of
from tests.process.workers import PATIENCE, Lane, WorkerShop, assert_calm, lanes, together
from tests.support.beats import wait_for
from tests.support.views import AdminView

pytestmark = pytest.mark.slow

TWO_SECONDS = {"max_runtime": 2}
OVERDUE = "It takes longer than its `max_runtime`"


def test_a_hung_task_is_stopped_and_its_next_attempt_may_succeed(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, extra=_ALERTS + _HANGING)
        hangs = shop.order("alert.sleeps", 600, policies=TWO_SECONDS)
        last = shop.order("alert.sleeps", 600, policies={**TWO_SECONDS, "max_retries": 0})
        patient = shop.order("alert.sleeps", 4)
        worker = shop.work(lane.pool).ready()
        shop.dispatch_until(lambda: shop.states(hangs) == ["retry", "success"] and shop.states(last) == ["dlq"])
        first, second = shop.attempts(hangs)
        (only,) = shop.attempts(last)
        for run in (first, only):
            assert run.reason == "max_runtime of 2 s exceeded" and "max_runtime" in str(run.error), run
            assert run.finished_at is not None and run.started_at is not None
            assert 1.9 < (run.finished_at - run.started_at).total_seconds() < 30
        shop.wait_for_states(patient, "success")
        # In prefork Celery looks for dead processes every five seconds.
        wait_for(partial(is_told, shop, first.run_id, A_RETRY), PATIENCE, lambda: f"{alerts(shop.folder)}{shop.logs()}")
        wait_for(lambda: "task_failure" in told_of(shop, only.run_id), PATIENCE, shop.logs)
        assert not set(told_of(shop, only.run_id)) & set(A_RETRY)
        assert told_of(shop, second.run_id) == []
        worker.stop()
        assert_calm(worker)

    together({lane: make_workers(lane) for lane in lanes("prefork", "threads", "gevent", "solo")}, scenario)


_HANGING = """

@app.task(name="alert.sleeps", bind=True, base=Alerting)
def sleeps(self, seconds):
    from celery_sqlbeat import current_run
    if current_run().attempt > 1:
        return
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
"""


def test_a_child_that_stands_still_is_killed(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        job = shop.order("work.sleep", 600, 0, policies={**TWO_SECONDS, "max_retries": 1})
        worker = shop.work(lane.pool).ready()
        shop.dispatch()
        child = shop.wait_for_start(job).pid
        os.kill(child, signal.SIGSTOP)
        assert_outcome(shop, job, OVERDUE)
        shop.dispatch_until(lambda: shop.states(job) == ["retry", "success"])
        wait_for(lambda: child not in worker.children(), PATIENCE, shop.logs)
        worker.stop()
        assert_calm(worker)

    together({lane: make_workers(lane) for lane in lanes("prefork")}, scenario)


def run_command(shop: WorkerShop, command: str) -> str:
    line = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop", "sqlbeat", command]
    path = f"{Path(__file__).parents[2]}{os.pathsep}{shop.folder}"
    ran = subprocess.run(line, cwd=shop.folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    return f"{ran.stderr}\n{ran.stdout}"


def test_a_run_that_goes_on_for_intervals_of_its_job_is_told(make_workers: MakeWorkers) -> None:
    shop = make_workers(Lane("threads", "redis", "sqlite", "late"))
    worker = shop.work("threads").ready()
    job = shop.order("work.sleep", 600, name="hangs", schedule="every 2s")
    beat = shop.start()
    shop.wait_for_start(job)
    beat.says(f"a run goes on for several intervals of its job: job_name={job} ", seconds=PATIENCE)
    for command in ("health", "check"):
        said = run_command(shop, command)
        assert f"job {job}: run" in said and "of its intervals" in said, said
        assert command == "check" or "\nhealthy\n" in said
    AdminView(shop.store).cancel(job)
    beat.stop()
    worker.stop()
