"""What a running beat notices: jobs that are added, paused, resumed or wrong; workers that come.

Clocks that differ.
"""

import json
import os
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery.utils.imports import symbol_by_name

from celery_sqlbeat import Scheduler
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import Node, PauseJob, ResumeJob, RunRecord, StartRequest
from celery_sqlbeat.model.lifecycle import CLAIMED, DISPATCHED, LEFT_TO_OTHERS, RUNNING, SKIPPED, SUCCESS, after_success
from celery_sqlbeat.store.records import JobQuery
from tests.process.conftest import MakeShop
from tests.support.beats import Beat, Shop, assert_clean, assert_sent_once, wait_for
from tests.support.brokers import Arrived
from tests.support.views import AdminView, NodeView, WorkerView

pytestmark = pytest.mark.slow

NOTICE = 4.0  # seconds in which something is noticed that should be within half a second, on a machine with much to do


def runs_of(shop: Shop, name: str, *states: str) -> list[RunRecord]:
    return [run for run in shop.runs() if run.job_name == name and run.state in states]


def wait_for_runs(shop: Shop, name: str, *states: str, count: int = 1, seconds: float = 30) -> list[RunRecord]:
    wait_for(lambda: len(runs_of(shop, name, *states)) >= count, seconds, shop.logs)
    return runs_of(shop, name, *states)


def idle_beat(shop: Shop, **conf: Any) -> Beat:
    """Return a beat that has started and has nothing to do."""
    shop.write(**conf)
    beat = shop.start()
    beat.says("brought its beat_schedule")
    return beat


@pytest.mark.parametrize("database", ["postgresql", "mysql", "sqlite"])
def test_a_job_that_is_written_by_hand_is_found_at_the_next_poll(make_shop: MakeShop, database: str) -> None:
    shop = make_shop(database, "redis")
    beat = idle_beat(shop, sqlbeat_poll_interval=1, sqlbeat_notice_interval=0)
    shop.statement("INSERT INTO Jobs (JobName, TaskName, Schedule) VALUES ('by hand', 'shop.add', 'every 1s')")
    wait_for_runs(shop, "by hand", DISPATCHED, seconds=1 + 1 + NOTICE)
    beat.stop()
    assert_clean(beat)


@pytest.mark.parametrize("database", ["postgresql", "mysql", "sqlite"])
def test_a_change_through_this_package_is_noticed_long_before_the_next_poll(make_shop: MakeShop, database: str) -> None:
    shop = make_shop(database, "redis")
    beat = idle_beat(shop, sqlbeat_poll_interval=600)
    shop.add("added", at=shop.now())
    wait_for_runs(shop, "added", DISPATCHED, seconds=NOTICE)
    admin = AdminView(shop.store)
    assert admin.write_jobs([PauseJob("added", "by the test")]).done
    shop.wait_until_settled()
    before = len(shop.runs())
    shop.add("another", at=shop.now())
    wait_for_runs(shop, "another", DISPATCHED, count=3)
    assert len(shop.runs()) - len(runs_of(shop, "another", DISPATCHED)) == before
    version = admin.jobs(JobQuery(names=["added"]))["added"].version
    first = shop.now() + timedelta(seconds=1)
    assert admin.write_jobs([ResumeJob("added", version=version, next_run_time=first)]).done
    wait_for(lambda: len(runs_of(shop, "added", DISPATCHED)) > before, 1 + NOTICE, shop.logs)
    beat.stop()
    assert_clean(beat)
    assert_sent_once(shop)


def test_a_wrong_row_is_set_aside_and_said_once(make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", "redis")
    shop.write({"right": {"task": "shop.add", "schedule": 0.5}}, sqlbeat_poll_interval=0.5)
    shop.statement("INSERT INTO Jobs (JobName, TaskName, Schedule) VALUES ('wrong', 'shop.add', 'every now and then')")
    shop.add("worse", at=shop.now())
    shop.statement("UPDATE Jobs SET Args = 'no json' WHERE JobName = 'worse'")
    beat = shop.start()
    wait_for_runs(shop, "right", DISPATCHED, count=6)  # several polls
    for name in ("wrong", "worse"):
        assert beat.log.count(f"until its row is corrected: job_name={name} ") == 1, beat.log
        assert AdminView(shop.store).jobs(JobQuery(names=[name]))[name].quarantine
    shop.statement("UPDATE Jobs SET Schedule = 'every 1s' WHERE JobName = 'wrong'")
    wait_for_runs(shop, "wrong", DISPATCHED)
    beat.stop()
    assert_clean(beat)


_SKEWED = """\
import datetime as _datetime, time as _time
import celery_sqlbeat.environment as _machine

_skew = float(os.environ.get("SHOP_SKEW", "0"))
_now = _time.time


class _Skewed(_datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return _datetime.datetime.now(tz) + _datetime.timedelta(seconds=_skew)


_time.time = lambda: _now() + _skew
_machine.datetime = _Skewed
"""


def test_clocks_of_hosts_that_differ_change_nothing(make_shop: MakeShop) -> None:
    """The clock is injected in the process.

    What asks the operating system by itself is not deceived.
    """
    shop = make_shop("postgresql", "redis")
    names = [f"job-{number}" for number in range(20)]
    shop.write({name: {"task": "shop.add", "schedule": 1} for name in names}, extra=_SKEWED)
    beats = [shop.start(SHOP_SKEW=skew) for skew in ("-3600", "7200")]
    for beat in beats:
        beat.says("Sending due task", seconds=60)
    shop.wait_for_slots(len(names), 3)
    wait_for(lambda: all(node.skew_seconds is not None for node in NodeView(shop.store).seen(60)), 30, shop.logs)
    skews = sorted(round(node.skew_seconds or 0, -2) for node in NodeView(shop.store).seen(60))
    assert skews == [-3600, 7200]
    for beat in beats:
        beat.stop()
    for run in shop.dispatched():
        assert run.published_at is None or abs(run.published_at - run.scheduled_for) < timedelta(seconds=10)
    assert_sent_once(shop)
    assert_clean(*beats)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_with_an_embedded_beat_fires_and_runs(make_shop: MakeShop, pool: str) -> None:
    shop = make_shop("sqlite", "redis")
    shop.write({"often": {"task": "shop.add", "schedule": 1, "args": [1, 2]}})
    worker = shop.start("worker", "-B", "-P", pool, "-c", "1", "--without-gossip", "--without-mingle")
    worker.says("succeeded in", times=2, seconds=60)
    worker.stop()
    assert_clean(worker)
    assert len(runs_of(shop, "often", DISPATCHED, SUCCESS)) >= 2  # the worker has the extension


def test_the_short_name_of_the_scheduler_is_registered() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    found = re.search(r'"celery\.beat_schedulers"\]\nsqlbeat = "(.+)"', project)
    assert found is not None
    assert symbol_by_name(found[1]) is Scheduler


LEASES: dict[str, Any] = {"sqlbeat_lock_timeout": 3, "sqlbeat_heartbeat_interval": 0.3, "sqlbeat_dispatch_timeout": 2}


def register_worker(shop: Shop) -> None:
    """Be seen as a worker with the extension."""
    queues = json.dumps([shop.place.queue("default")])
    NodeView(shop.store).heartbeat(Node("worker", "worker", "host", os.getpid(), "0", queues=queues))


def arrived(shop: Shop) -> list[Arrived]:
    """Return what is in the queue, as soon as there is something."""
    found: list[Arrived] = []

    def is_there() -> bool:
        found.extend(shop.place.take())
        return bool(found)

    wait_for(is_there, 10, shop.logs)
    return found


def test_a_slot_whose_queue_has_a_worker_with_the_extension_is_leased_to_it(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "rabbitmq")
    register_worker(shop)
    shop.write({"leased": {"task": "shop.add", "schedule": 1}}, **LEASES)
    beats = [shop.start(), shop.start()]
    worker = WorkerView(shop.store, "worker")
    done: list[str] = []
    for _ in range(3):
        (run,) = wait_for_runs(shop, "leased", CLAIMED)
        (message,) = arrived(shop)
        mine = message.headers["sqlbeat"]
        assert mine["run"] == run.run_id
        request = StartRequest(mine["run"], mine["claim"], mine["fence"], Ids().random_id(), 0)
        started = worker.start([request])[run.run_id]
        assert [each.state for each in shop.runs() if each.run_id == run.run_id] == [RUNNING]
        assert worker.finish([(started, after_success())]) == set()
        done.append(run.run_id)
    assert {run.run_id for run in runs_of(shop, "leased", SUCCESS)} == set(done)
    for beat in beats:
        beat.stop()
    assert_clean(*beats)


def test_a_message_that_nobody_takes_is_published_again_under_the_same_claim(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "redis")
    register_worker(shop)
    shop.write({"leased": {"task": "shop.add", "schedule": 1}}, **LEASES)
    beat = shop.start()

    def is_published_again() -> bool:
        register_worker(shop)  # it stays alive
        return bool(beat.events("runs_republished"))

    wait_for(is_published_again, 30, shop.logs)
    beat.stop()
    first, *others = [message.headers["sqlbeat"] for message in shop.place.take()]
    assert others == [first]
    assert len(runs_of(shop, "leased", CLAIMED)) == 1
    assert_clean(beat)


_PLAIN = """\
if os.environ.get("SHOP_PLAIN"):  # this worker has no extension
    from celery import signals

    signals.celeryd_init.receivers.clear()
"""


def test_a_message_is_not_published_again_beside_a_worker_without_the_extension(make_shop: MakeShop) -> None:
    """Such a worker runs what it gets, tells nobody, and would run the second copy, too.

    So the job just goes on.
    """
    shop = make_shop("postgresql", "redis")
    shop.write({"leased": {"task": "shop.add", "schedule": 1}}, extra=_PLAIN, **LEASES)
    plain = shop.start("worker", "-c", "1", "--without-gossip", "--without-mingle", SHOP_PLAIN="1")
    plain.says("ready.")
    register_worker(shop)
    beat = shop.start()
    wait_for_runs(shop, "leased", CLAIMED)

    def left() -> list[RunRecord]:
        register_worker(shop)
        return [run for run in runs_of(shop, "leased", DISPATCHED) if run.reason == LEFT_TO_OTHERS]

    wait_for(lambda: len(left()) >= 2, 60, shop.logs)  # each at its first deadline, 3 s after it was sent
    beat.stop()
    plain.stop()
    assert not beat.events("runs_republished")
    ran = Counter(re.findall(r"Task shop\.add\[(\S+)\] succeeded in", plain.log))
    assert set(ran.values()) == {1}
    assert {run.run_id for run in left()} <= set(ran)
    assert_clean(beat)


def test_a_message_that_expires_in_its_queue_ends_its_slot_and_is_not_sent_again(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "redis")
    register_worker(shop)
    leased = {**LEASES, "sqlbeat_policies": {"*": {"lock_timeout": 60}}}
    shop.write({"short-lived": {"task": "shop.add", "schedule": 1, "options": {"expires": 2}}}, **leased)
    beat = shop.start()

    def expired() -> list[RunRecord]:
        return [run for run in runs_of(shop, "short-lived", SKIPPED) if run.reason == "expired"]

    wait_for(lambda: len(expired()) >= 2, 30, shop.logs)  # long before the deadline of 60 s
    beat.stop()
    copies = Counter(message.headers["id"] for message in shop.place.take())
    assert set(copies.values()) == {1}
    assert_clean(beat)


def test_the_newest_release_that_has_a_living_beat_defines_the_jobs(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "redis")

    def release(name: str, seconds: int) -> Beat:
        shop.write({"job": {"task": "shop.add", "schedule": seconds}}, sqlbeat_poll_interval=0.5)
        beat = shop.start(SQLBEAT_RELEASE=name)
        beat.says("brought its beat_schedule")
        return beat

    def schedule() -> str:
        return str(AdminView(shop.store).jobs(JobQuery(names=["job"]))["job"].schedule)

    old = release("v1", 3600)
    assert schedule() == "every 1h"
    new = release("v2", 7200)
    assert schedule() == "every 2h"
    restarted = shop.start(SQLBEAT_RELEASE="v1")
    restarted.says("release=v1 winner=v2")
    assert schedule() == "every 2h"
    restarted.stop()
    new.kill()
    wait_for(lambda: schedule() == "every 1h", 60, shop.logs)
    wait_for(lambda: old.log.count("brought its beat_schedule") == 2, 10, shop.logs)  # told after it is written
    assert new.log.count("brought its beat_schedule") == 1
    old.stop()
    assert_clean(old, new)


def test_a_beat_of_another_broker_waits_until_the_first_has_gone(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "redis")
    # Another prefix of the keys is another broker: nothing of the one is seen from the other.
    other = f"app.conf.broker_transport_options = {{'global_keyprefix': '{shop.place.prefix}:other:'}}"
    entries = {"often": {"task": "shop.add", "schedule": 0.5}}
    shop.write(entries)
    first = shop.start()
    first.says("Sending due task", times=2)
    shop.write(entries, extra=other)
    second = shop.start()
    second.says(f"#{shop.place.prefix}:other:, but {next(node.node_id for node in NodeView(shop.store).seen(60))}")
    assert second.process.poll() is None
    assert "Sending due task" not in second.log
    first.stop()
    second.says("Sending due task", times=2)
    second.stop()
    assert_clean(first, second)
