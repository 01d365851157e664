"""In a real worker a strategy of the shop decides on retries, and so does the error's class."""

from functools import partial

import pytest

from celery_sqlbeat.config.policy import RetryRule
from tests.process.conftest import MakeWorkers
from tests.process.workers import PATIENCE, Lane, WorkerShop, assert_calm, lanes, together
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

WAITS = '''
"""How this shop waits."""


def patient(facts):
    """Wait for a time that shows what was known."""
    if facts.job_name == "broken":
        return "soon"
    if "builtins.LookupError" in facts.errors:
        return 3600.0 + facts.failures
    return 0.25 if facts.max_retries == 3 else None
'''

_TASKS = """

@app.task(name="raise", bind=True)
def raises(self, kind):
    from celery_sqlbeat import current_run
    if kind == "twice" and current_run().attempt > 2:
        return
    raise {"twice": ConnectionError, "key": KeyError, "value": UnicodeError}[kind](kind)


@app.task(name="hang", bind=True, time_limit=1)
def hangs(self):
    time.sleep(600)
"""


def has_failed(shop: WorkerShop, run_id: str) -> bool:
    """Whether the result backend says so."""
    return shop.results().get(run_id, {}).get("status") == "FAILURE"


def test_the_strategy_of_the_settings_and_the_error_decide(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        (shop.folder / "waits.py").write_text(WAITS)
        shop.write_app(lane, extra=_TASKS, sqlbeat_retry_strategy="waits.patient")
        dead_on = {"policies": {"dead_on": ["ValueError", "TimeLimit*"]}}
        twice = shop.order("raise", "twice", name="twice", **dead_on)
        key = shop.order("raise", "key", name="key", **dead_on)
        dead = shop.order("raise", "value", name="dead", **dead_on)
        given_up = shop.order("raise", "value", name="given up", policies={"max_retries": 2})
        own = shop.order("raise", "twice", name="own", policies={"retry_strategy": "fixed", "retry_on": ["OSError"]})
        broken = shop.order("raise", "twice", name="broken")
        hung = shop.order("hang", name="hung", **dead_on) if lane.pool == "prefork" else None
        worker = shop.work(lane.pool).ready()
        shop.dispatch_until(lambda: all(shop.states(job)[-1:] == ["success"] for job in (twice, own, broken)))
        assert [shop.states(job) for job in (twice, own, broken)] == [["retry", "retry", "success"]] * 3
        (waiting,) = shop.wait_for_states(key, "retry")
        row = shop.job(key)
        assert waiting.finished_at is not None and row.retry_at is not None
        assert 3600 < (row.retry_at - waiting.finished_at).total_seconds() < 3602
        for job in (dead, given_up, *([hung] if hung else [])):
            (run,) = shop.wait_for_states(job, "dlq")
            assert (run.reason, run.failures) == ("not retried", 1), run
            wait_for(partial(has_failed, shop, run.run_id), PATIENCE, shop.logs)
        told = "the retry strategy waits.patient is replaced for now: it answered 'soon'"
        wait_for(lambda: told in worker.log, PATIENCE, shop.logs)
        worker.stop()
        assert_calm(worker, but="soon")

    together({lane: make_workers(lane) for lane in lanes("prefork", "threads", "solo")}, scenario)


def test_a_worker_without_the_strategy_of_its_settings_ends_with_one_line(make_workers: MakeWorkers) -> None:
    (lane,) = lanes("prefork")[:1]
    shop = make_workers(lane)
    shop.write_app(lane, sqlbeat_retry_strategy="waits.missing")
    worker = shop.work(lane.pool)
    assert worker.wait() != 0
    assert "sqlbeat_retry_strategy = 'waits.missing': the retry strategy waits.missing cannot be loaded" in worker.log
    assert "Traceback" not in worker.log


def test_a_worker_that_does_not_know_the_strategy_of_a_job_takes_its_own(make_workers: MakeWorkers) -> None:
    (lane,) = lanes("threads")[:1]
    shop = make_workers(lane)
    shop.write_app(lane, extra=_TASKS)
    job = shop.order("raise", "twice", name="twice")
    worker = shop.work(lane.pool).ready()
    claim = shop.claim()[job]
    shop.publish(claim._replace(retry=RetryRule("of.another.release")))
    shop.dispatch_until(lambda: shop.states(job) == ["retry", "retry", "success"])
    assert "of.another.release is replaced for now: this worker does not know it" in worker.log
    worker.stop()
