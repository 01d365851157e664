"""Beats that differ beside each other.

Groups of entries of one app, several apps in one namespace, deleted entries.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.store.records import JobQuery
from tests.process.conftest import MakeShop
from tests.support.beats import PATIENCE, Beat, Shop, wait_for
from tests.support.views import AdminView, CodeView

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EVERY = {"task": "shop.add", "schedule": 0.5}
# One module for all: what a process is comes from its environment.
GROUPS = """
entry = {"task": "shop.add", "schedule": 0.5}
groups = {"a": {"a-only": entry, "both": entry}, "b": {"b-only": entry, "both": {**entry, "schedule": 0.7}}}
app.conf.beat_schedule = groups.get(os.environ.get("GROUP"), {})
"""
APPS = """
app.main = os.environ.get("APP", "shop")
app.conf.beat_schedule = {app.main + "-job": {"task": "shop.add", "schedule": 0.5}}
app.conf.task_default_queue = {"shop": app.conf.task_default_queue}.get(app.main, QUEUE)
app.conf.task_default_routing_key = {"shop": "default"}.get(app.main, "d")
app.conf.task_default_exchange = app.conf.task_queues[0 if app.main == "shop" else 1].exchange.name
"""


def slots(shop: Shop) -> Counter[str]:
    """How many slots of each job are behind it."""
    return Counter(run.job_name for run in shop.runs())


def wait_for_more_of(shop: Shop, *names: str, more: int = 3) -> None:
    before = slots(shop)
    wait_for(lambda: all(slots(shop)[name] >= before[name] + more for name in names), PATIENCE, shop.logs)


def command(shop: Shop, *arguments: str, **environ: str) -> tuple[int, str]:
    """Return the exit code and the output of `celery sqlbeat`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SQLBEAT_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop", "sqlbeat", *arguments],
        cwd=shop.folder,
        env={**inherited, "PYTHONPATH": f"{ROOT}{os.pathsep}{shop.folder}", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout if done.returncode == 0 or done.stdout else done.stderr


def check(shop: Shop, **environ: str) -> dict[str, Any]:
    """Return what `check --json` finds, with its exit code."""
    code, text = command(shop, "check", "--json", "--timeout", "0.3", **environ)
    found: dict[str, Any] = json.loads(text)
    return {**found, "code": code}


def errors(found: dict[str, Any], name: str) -> list[str]:
    return [f"{each['says']} {each['remedy']}" for each in found["findings"] if each["name"] == name]


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_beats_with_groups_of_entries_leave_each_other_their_jobs(make_shop: MakeShop, database: str) -> None:
    shop = make_shop(database, "redis")
    shop.write(extra=GROUPS, sqlbeat_poll_interval=0.5)
    one = shop.start(GROUP="a")
    wait_for_more_of(shop, "a-only", "both")
    other = shop.start(GROUP="b")
    wait_for_more_of(shop, "a-only", "b-only", "both")
    for beat, names in ((one, "only there: b-only; only here: a-only"), (other, "only there: a-only")):
        beat.says("is alive beside release")
        assert re.search(f"WARNING.*{names}.*otherwise defined: both.*sqlbeat_namespace", beat.log), beat.log
    found = check(shop, GROUP="a")
    assert found["code"] == 1 and "a-only" in errors(found, "releases")[0]
    # Each message is sent by the beat that has its entry.
    senders = {(run.job_name, str(run.claimed_by).split("/")[1]) for run in shop.runs() if run.job_name != "both"}
    assert senders == {("a-only", str(one.process.pid)), ("b-only", str(other.process.pid))}
    one.stop()
    admin, only = AdminView(shop.store), JobQuery(names=["a-only"])
    wait_for(lambda: admin.jobs(only)["a-only"].disabled_reason == "left the code", PATIENCE, shop.logs)
    again = shop.start(GROUP="a")
    wait_for_more_of(shop, "a-only", "b-only", "both")
    assert_calm(other, again)


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_two_apps_in_one_namespace_claim_their_own_jobs(make_shop: MakeShop, database: str) -> None:
    shop = make_shop(database, "redis")
    shop.write(extra=APPS.replace("QUEUE", repr(shop.place.queue("direct"))), sqlbeat_poll_interval=0.5)
    one, other = shop.start(APP="shop"), shop.start(APP="office")
    shop.add("nobody's", at=shop.now())
    wait_for_more_of(shop, "shop-job", "office-job", "nobody's", more=6)
    one.says('sqlbeat_namespace = "shop"')
    other.says('sqlbeat_namespace = "office"')
    for beat in (one, other):
        assert re.search("WARNING.*the apps (shop and office|office and shop).*share the namespace", beat.log), beat.log
    found = check(shop, APP="shop")
    assert found["code"] == 1 and 'sqlbeat_namespace = "shop"' in errors(found, "apps")[0]
    one.stop()
    other.stop()
    sent = {
        name: Counter(m.headers["periodic_task_name"] for m in shop.place.take(name)) for name in ("default", "direct")
    }
    assert sent["default"]["shop-job"] >= 6 and "office-job" not in sent["default"]
    assert sent["direct"]["office-job"] >= 6 and "shop-job" not in sent["direct"]


def test_two_apps_without_a_name_keep_their_jobs_apart(make_shop: MakeShop) -> None:
    """Even where both have an entry of the same name: the second is told that it is left out."""
    shop = make_shop("postgresql", "redis")
    shop.write({"same": EVERY, "shop-job": EVERY}, sqlbeat_poll_interval=0.5)
    text = (shop.folder / "shop.py").read_text().replace('Celery("shop", ', "Celery(")
    (shop.folder / "shop.py").write_text(text)
    (shop.folder / "office.py").write_text(text.replace("shop-job", "office-job"))
    one = shop.start()
    wait_for_more_of(shop, "same", "shop-job")
    assert CodeView(shop.store).owners().keys() == {"shop"}
    other = shop.start(app="office")
    wait_for_more_of(shop, "same", "shop-job", "office-job")
    other.says('entry=same reason="a job of shop has this name already"')
    senders = {(run.job_name, str(run.claimed_by).split("/")[1]) for run in shop.runs()}
    ours, theirs = str(one.process.pid), str(other.process.pid)
    assert senders == {("same", ours), ("shop-job", ours), ("office-job", theirs)}
    one.stop()
    other.stop()
    # As before modules gave such apps a name.
    shop.statement("UPDATE Jobs SET CodeOwner = 'celery'")
    again = shop.start(app="office")
    wait_for_more_of(shop, "office-job", "same")
    assert CodeView(shop.store).owners()["office"] >= 2, again.log


def test_the_jobs_of_an_app_that_was_renamed_stand_still_until_they_are_adopted(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "redis")
    entry = "app.conf.beat_schedule = {'job': {'task': 'shop.add', 'schedule': 0.5}}\n"
    shop.write(extra=f"app.main = os.environ.get('APP', 'shop')\n{entry}", sqlbeat_poll_interval=0.5)
    old = shop.start(APP="old")
    wait_for_more_of(shop, "job")
    code, text = command(shop, "jobs", "adopt", "--owner", "old", "--yes", APP="new")
    assert code == 1 and "has a living beat" in text
    old.stop()
    new = shop.start(APP="new")
    new.says("celery -A app sqlbeat jobs adopt --owner old")
    before = slots(shop)["job"]
    found = check(shop, APP="new")
    assert found["code"] == 1 and any("jobs adopt --owner old" in text for text in errors(found, "apps"))
    assert slots(shop)["job"] == before
    assert command(shop, "jobs", "adopt", "--owner", "old", "--yes", APP="new")[0] == 0
    wait_for_more_of(shop, "job")
    assert errors(check(shop, APP="new"), "apps") == []


@pytest.mark.parametrize("by_hand", [False, True], ids=["command", "by hand"])
def test_a_deleted_job_of_the_code_comes_back(make_shop: MakeShop, by_hand: bool) -> None:
    shop = make_shop("sqlite", "redis")
    # A command is noticed at once, a DBA at the next poll.
    shop.write({"job": EVERY, "other": EVERY}, sqlbeat_poll_interval=0.5 if by_hand else 600)
    beats = [shop.start(), shop.start()]
    wait_for_more_of(shop, "job", "other")
    before = AdminView(shop.store).jobs(JobQuery(names=["job"]))["job"].job_id
    if by_hand:
        shop.statement("DELETE FROM Jobs WHERE JobName = 'job'")
    else:
        code, text = command(shop, "jobs", "delete", "job", "--yes")
        assert code == 0 and "bring it back" in text

    def is_back() -> bool:
        job = AdminView(shop.store).jobs(JobQuery(names=["job"])).get("job")
        return job is not None and job.job_id != before

    wait_for(is_back, PATIENCE, shop.logs)
    wait_for_more_of(shop, "job", "other")
    assert_calm(*beats)


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_stock_beat_that_is_left_running_beside_is_named(make_shop: MakeShop, broker: str) -> None:
    shop = make_shop("postgresql", broker)
    entries = {"job": EVERY, "ours": {"task": "shop.other", "schedule": 0.5}}
    shop.write(entries, sqlbeat_poll_interval=0.5, sqlbeat_heartbeat_interval=1, sqlbeat_lock_timeout=6)
    beat = shop.start()
    worker = Beat(
        shop.spawn(shop.folder / "worker.log", "worker", "-P", "threads", "-c", "2"), shop.folder / "worker.log"
    )
    shop.beats.append(worker)
    wait_for_more_of(shop, "job")
    assert errors(check(shop), "scheduler") == []
    log = shop.folder / "stock.log"
    stock = Beat(shop.spawn(log, "beat", "--pidfile=", "-s", str(shop.folder / "stock")), log)
    shop.beats.append(stock)
    beat.says("another scheduler, gen")
    assert re.search(f"WARNING.*gen{stock.process.pid}@.*sends the task shop.add .*job job as well", beat.log), beat.log
    found = check(shop)
    assert found["code"] == 1 and "task shop.add" in errors(found, "scheduler")[0]
    assert "stop that scheduler" in errors(found, "scheduler")[0]
    # The worker goes on to receive what ours sends.
    wait_for_more_of(shop, "job")


def assert_calm(*beats: Beat) -> None:
    """No beat had an error."""
    for beat in beats:
        assert "ERROR" not in beat.log and "Traceback" not in beat.log, beat.log
