"""What hooks, errbacks, signals and events of Celery say of a slot.

One failure at most, however often it is tried.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import MakeWorkers
from tests.process.test_tools import _SENTRY
from tests.process.workers import PATIENCE, Lane, WorkerShop, assert_calm, lanes, together
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

# Whatever alerts people: each writes a line, in whichever process it is called.
_ALERTS = """\
import json
import os
import signal as signals_of_the_system
import time

from celery import Task, signals


def alert(what, run, **more):
    with open("alerts", "a") as file:
        file.write(json.dumps({"what": what, "run": run, **more}) + "\\\\n")


class Alerting(Task):
    def on_failure(self, exc, task_id, args, kwargs, einfo):
        alert("on_failure", task_id, error=repr(exc))

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        alert("on_retry", task_id, error=repr(exc))

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        alert("after_return", task_id, error=status)


@signals.task_failure.connect(weak=False)
def on_task_failure(task_id, exception, **_):
    alert("task_failure", task_id, error=repr(exception))


@signals.task_retry.connect(weak=False)
def on_task_retry(request, reason, **_):
    alert("task_retry", request.id, error=repr(reason.exc), when=reason.when)


@app.task(name="alert.errback")
def errback(request, exc, traceback):
    alert("link_error", request.id)


@app.task(name="alert.fails", bind=True, base=Alerting)
def fails(self, until):
    from celery_sqlbeat import current_run
    if current_run().attempt < until:
        raise ValueError("no luck today")


class Own(Alerting):
    def __call__(self, *args, **kwargs):
        try:
            return super().__call__(*args, **kwargs)
        except KeyError:
            return "caught"


@app.task(name="alert.own_call", bind=True, base=Own)
def own_call(self, until):
    from celery_sqlbeat import current_run
    if current_run().attempt < until:
        raise ValueError("no luck today")
    raise KeyError("caught by the task's own __call__")


@app.task(name="alert.dies", bind=True, base=Alerting)
def dies(self, until):
    from celery_sqlbeat import current_run
    if current_run().attempt < until:
        os.kill(os.getpid(), signals_of_the_system.SIGKILL)


@app.task(name="alert.hangs", bind=True, base=Alerting, time_limit=1)
def hangs(self, until):
    from celery_sqlbeat import current_run
    if current_run().attempt < until:
        time.sleep(600)


@app.task(name="alert.leaves", bind=True, base=Alerting)
def leaves(self, until):
    from celery_sqlbeat import current_run
    if current_run().attempt < until:
        raise SystemExit(3)


class Before(Alerting):
    def before_start(self, task_id, args, kwargs):
        from celery_sqlbeat import current_run
        if current_run().attempt < args[0]:
            raise ValueError("not yet")


@app.task(name="alert.before", bind=True, base=Before)
def before(self, until):
    pass
""".replace("\\\\n", "\\n")

LINKED: dict[str, Any] = {
    "link_error": [{"task": "alert.errback", "args": [], "kwargs": {}, "options": {}, "subtask_type": None}]
}
ONE_RETRY = {"max_retries": 1}
A_RETRY = ["on_retry", "task_retry"]
IN_EVERY_POOL = ("fails", "own_call", "before")
IN_PROCESSES = ("dies", "hangs", "leaves")
BY_THE_MAIN_PROCESS = ("dies", "hangs", "leaves")


def alerts(folder: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (folder / "alerts").read_text().splitlines()]
    except FileNotFoundError:
        return []


def told_of(shop: WorkerShop, run_id: str) -> list[str]:
    return [each["what"] for each in alerts(shop.folder) if each["run"] == run_id and each["what"] != "after_return"]


def has_event(events: list[dict[str, Any]], run_id: str, kind: str) -> bool:
    return any(event["type"] == kind for event in events if event.get("uuid") == run_id)


def is_told(shop: WorkerShop, run_id: str, what: list[str]) -> bool:
    return sorted(told_of(shop, run_id)) == what


@pytest.mark.parametrize("acks", ["late", "early"])
def test_a_slot_that_succeeds_at_its_second_attempt_alerts_nobody(make_workers: MakeWorkers, acks: str) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, extra=_ALERTS, task_reject_on_worker_lost=True)
        kinds = IN_EVERY_POOL + (IN_PROCESSES if lane.pool == "prefork" else ())
        jobs = {shop.order(f"alert.{kind}", 2, options=LINKED, policies=ONE_RETRY): kind for kind in kinds}
        with shop.events() as events:
            worker = shop.work(lane.pool).ready()
            shop.dispatch_until(lambda: all(shop.states(job) == ["retry", "success"] for job in jobs))
            for job, kind in jobs.items():
                first, second = shop.attempts(job)
                assert sorted(told_of(shop, first.run_id)) == A_RETRY, (kind, shop.logs())
                assert told_of(shop, second.run_id) == [], (kind, shop.logs())
                assert first.failures == 1 and first.error, first
                whens = [each["when"] for each in alerts(shop.folder) if each["run"] == first.run_id and "when" in each]
                assert first.finished_at is not None and len(whens) == 1 and whens[0] >= 0
                if kind in IN_EVERY_POOL:
                    assert "ValueError" in str(first.error) and "alert" not in str(first.error)
                    assert "in before_start" in str(first.traceback) or f"in {kind}" in str(first.traceback)

                wait_for(partial(has_event, events, first.run_id, "task-retried"), PATIENCE, shop.logs)
                assert not has_event(events, first.run_id, "task-failed")
            worker.stop()
            assert_calm(worker)
        shop.place.take()

    of_acks = [lane for lane in _lanes() if lane.acks == acks]
    together({lane: make_workers(lane) for lane in of_acks}, scenario)


def _lanes() -> list[Lane]:
    return lanes(
        among=[
            Lane("prefork", "redis", "postgresql", "late"),
            Lane("prefork", "rabbitmq", "sqlite", "early"),
            Lane("threads", "redis", "sqlite", "early"),
            Lane("gevent", "rabbitmq", "postgresql", "late"),
            Lane("solo", "redis", "sqlite", "late"),
        ]
    )


def test_only_the_last_attempt_looks_like_a_failure(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, extra=_ALERTS, task_reject_on_worker_lost=True)
        job = shop.order("alert.fails", 9, options=LINKED, policies=ONE_RETRY)
        dead = shop.order("alert.dies", 9, options=LINKED, policies=ONE_RETRY) if lane.pool == "prefork" else None
        stock = shop.order("alert.fails", 9, options=LINKED, policies={"max_retries": 0})
        worker = shop.work(lane.pool).ready()
        shop.dispatch_until(lambda: shop.states(job) == ["retry", "dlq"] and shop.states(stock) == ["dlq"])
        if dead is not None:  # Celery itself would give its message back, and say nothing
            shop.dispatch_until(lambda: shop.states(dead) == ["retry", "dlq"])
            killed = shop.attempts(dead)[-1].run_id
            wait_for(partial(is_told, shop, killed, ["link_error", "task_failure"]), PATIENCE, shop.logs)
            wait_for(lambda: shop.results().get(killed, {}).get("status") == "FAILURE", PATIENCE, shop.logs)
        first, last = shop.attempts(job)
        (only,) = shop.attempts(stock)
        last_words = ["link_error", "on_failure", "task_failure"]
        for run in (last, only):
            wait_for(partial(is_told, shop, run.run_id, last_words), PATIENCE, shop.logs)
        assert sorted(told_of(shop, first.run_id)) == A_RETRY
        results = shop.results()
        assert [results[run.run_id]["status"] for run in (last, only)] == ["FAILURE", "FAILURE"]
        worker.stop()
        assert_calm(worker)
        shop.place.take()

    together({lane: make_workers(lane) for lane in _lanes()}, scenario)


_MONITORED = f"""
{_SENTRY}

@app.task(name="alert.monitored")
def monitored(until):
    from celery_sqlbeat import current_run
    if current_run().attempt < until:
        raise ValueError("no luck today")
"""


def test_a_slot_that_succeeds_at_its_second_attempt_is_one_check_in(make_workers: MakeWorkers) -> None:
    """Sentry's own SDK in a beat and a worker. It monitors schedules of whole minutes only."""

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, extra=_MONITORED)
        worker = shop.work(lane.pool).ready()
        good, again, bad = (
            shop.order("alert.monitored", until, name=name, schedule="every 1h", policies=ONE_RETRY)
            for name, until in (("good", 1), ("again", 2), ("bad", 9))
        )
        beats = [shop.start(), shop.start()]
        for job, states in ((good, ["success"]), (again, ["retry", "success"]), (bad, ["retry", "dlq"])):
            shop.wait_for_states(job, *states)
        for beat in beats:
            beat.stop()
        worker.stop()
        check_ins = [json.loads(line) for line in (shop.folder / "envelopes").read_text().splitlines()]
        seen = {
            job: [(each["status"], each["check_in_id"]) for each in check_ins if each["monitor_slug"] == job]
            for job in (good, again, bad)
        }
        assert {job: [status for status, _ in told] for job, told in seen.items()} == {
            good: ["in_progress", "ok"],
            again: ["in_progress", "ok"],
            bad: ["in_progress", "error"],
        }, seen
        assert all(len({check_in for _, check_in in told}) == 1 for told in seen.values()), seen
        events = (shop.folder / "events").read_text().splitlines()
        assert len(events) == 1, events  # of the attempt that went to the dead letters

    monitored = [Lane("prefork", "redis", "postgresql", "late"), Lane("threads", "rabbitmq", "sqlite", "early")]
    together({lane: make_workers(lane) for lane in lanes(among=monitored)}, scenario)
