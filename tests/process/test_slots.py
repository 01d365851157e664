"""Every slot is fired once by any number of beats, whichever is killed, frozen or stopped."""

import random
import signal
import time
from datetime import timedelta

import pytest

from celery_sqlbeat.model.lifecycle import DISPATCHED, SCHEDULED, SKIPPED
from celery_sqlbeat.store.records import JobQuery, RunQuery
from tests.process.conftest import MakeShop
from tests.support.beats import (
    LONG,
    PATIENCE,
    Beat,
    Shop,
    assert_clean,
    assert_no_slot_is_missing,
    assert_sent_once,
    wait_for,
)
from tests.support.views import AdminView, NodeView

pytestmark = pytest.mark.slow

JOBS, SECONDS = (200, 60.0) if LONG else (60, 5.0)
INTERVALS = {f"job-{number:03d}": 1.0 + number % 3 for number in range(JOBS)}
ENTRIES = {name: {"task": "shop.add", "schedule": interval, "args": [1]} for name, interval in INTERVALS.items()}
COMBINATIONS = [
    (1, "postgresql", "redis"),
    (2, "sqlite", "rabbitmq"),
    (4, "postgresql", "rabbitmq"),
    (4, "sqlite", "redis"),
    (4, "mysql", "rabbitmq"),
]
if LONG:
    COMBINATIONS = [
        (n, db, broker)
        for n in (1, 2, 4)
        for db in ("postgresql", "mysql", "sqlite")
        for broker in ("redis", "rabbitmq")
    ]


def run_for(shop: Shop, seconds: float) -> None:
    """Wait until the slots of a job span so many seconds."""

    def spanned() -> bool:
        slots = [run.scheduled_for for run in shop.runs() if run.state == DISPATCHED]
        return bool(slots) and max(slots) - min(slots) >= timedelta(seconds=seconds)

    wait_for(spanned, seconds + 60, shop.logs)


@pytest.mark.parametrize(("beats", "database", "broker"), COMBINATIONS)
def test_every_slot_is_fired_exactly_once(make_shop: MakeShop, beats: int, database: str, broker: str) -> None:
    shop = make_shop(database, broker)
    shop.write(ENTRIES)
    running = [shop.start() for _ in range(beats)]
    run_for(shop, SECONDS)
    for beat in running:
        beat.stop()
    assert {run.state for run in shop.runs()} <= {DISPATCHED, SKIPPED}
    assert_sent_once(shop)
    assert_no_slot_is_missing(shop, INTERVALS)
    assert_clean(*running)


@pytest.mark.parametrize(("database", "broker"), [("postgresql", "redis"), ("sqlite", "rabbitmq"), ("mysql", "redis")])
def test_killed_beats_lose_no_slot(make_shop: MakeShop, database: str, broker: str) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    shop = make_shop(database, broker)
    shop.write(ENTRIES, sqlbeat_dispatch_timeout=2)
    running = [shop.start() for _ in range(3)]
    kills = 20 if LONG else 5
    for _ in range(kills):
        shop.wait_for_more(chance.randrange(1, 60))
        running.pop(chance.randrange(len(running))).kill()
        running.append(shop.start())
    shop.wait_for_more(len(INTERVALS))
    shop.wait_until_settled()
    for beat in running:
        beat.stop()
    assert_sent_once(shop, copies_of_a_run=1 + kills)
    assert_no_slot_is_missing(shop, INTERVALS)
    assert_clean(*running)


@pytest.mark.parametrize("database", ["postgresql", "sqlite", "mysql"])
def test_a_beat_that_stood_still_fires_nothing_twice(make_shop: MakeShop, database: str) -> None:
    shop = make_shop(database, "redis")
    shop.write(ENTRIES, sqlbeat_dispatch_timeout=1)
    first, second = shop.start(), shop.start()
    # Of two beats one is mostly on time and the other stands by; which one changes by chance.
    for each in (first, second):
        each.says("Sending due task", seconds=4 * PATIENCE)
    for _ in range(20 if LONG else 2):
        first.signal(signal.SIGSTOP)
        # The other one takes what the first had claimed; on SQLite it may have stopped with the
        # file locked.
        pass_by(shop, 2.0)
        told = len(first.log)
        first.signal(signal.SIGCONT)
        first.says("Sending due task", after=told, seconds=4 * PATIENCE)
    shop.wait_until_settled()
    for each in (first, second):
        each.stop()
    assert_sent_once(shop, copies_of_a_run=2)
    assert_no_slot_is_missing(shop, INTERVALS)
    assert_clean(first, second)


def pass_by(shop: Shop, seconds: float) -> None:
    """Let the dispatch timeout go by: here it is time itself that is waited for."""
    until = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() > until, seconds + 60, shop.logs)


@pytest.mark.parametrize(("database", "broker"), [("postgresql", "rabbitmq"), ("sqlite", "redis"), ("mysql", "redis")])
def test_a_stop_in_the_middle_of_a_batch_leaves_nothing_half_done(
    make_shop: MakeShop, database: str, broker: str
) -> None:
    shop = make_shop(database, broker)
    shop.write(sqlbeat_batch_size=100)
    names = [f"job-{number}" for number in range(2000)]
    shop.add(*names, schedule="every 1h", at=shop.now())
    beat = shop.start()
    wait_for(lambda: AdminView(shop.store).runs(RunQuery(page_size=1)), 30, shop.logs)
    took = beat.stop()
    assert took < 8
    runs = shop.runs()
    assert {run.state for run in runs} <= {DISPATCHED, SCHEDULED}
    assert len({run.job_name for run in runs}) == len(runs)
    jobs = AdminView(shop.store).jobs(JobQuery(names=names))
    assert all(job.locked_by is None for job in jobs.values())
    sent = {message.headers["sqlbeat"]["run"] for message in shop.place.take()}
    assert sent == {run.run_id for run in runs if run.state == DISPATCHED}
    assert_clean(beat)
    another: Beat = shop.start()
    wait_for(lambda: len(shop.dispatched()) == len(names), 30, shop.logs)
    another.stop()


def test_the_next_slot_of_a_killed_beat_is_fired_in_time_by_another(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "redis")
    shop.write({"often": {"task": "shop.add", "schedule": 0.5}})
    beats = [shop.start(), shop.start()]
    for each in beats:
        each.says("brought its beat_schedule")
    shop.wait_for_more(3)
    last = max(shop.dispatched(), key=lambda run: run.scheduled_for)
    beats.sort(key=lambda beat: f"/{beat.process.pid}/" in str(last.claimed_by))
    beats.pop().kill()
    killed_at = shop.now()
    wait_for(lambda: any(run.scheduled_for > killed_at for run in shop.dispatched()), 20, shop.logs)
    late = [
        run.published_at - run.scheduled_for
        for run in shop.dispatched()
        if run.published_at is not None and run.scheduled_for > killed_at
    ]
    assert all(each < timedelta(seconds=1) for each in late)
    beats[0].stop()


def test_stopping_is_quick_when_there_is_nothing_to_do(make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", "redis")
    shop.write(sqlbeat_poll_interval=60, sqlbeat_notice_interval=0)
    beat = shop.start()
    began = time.monotonic()
    wait_for(lambda: NodeView(shop.store).seen(60), 30, shop.logs)
    assert beat.stop() < 3
    assert time.monotonic() - began < 30
    (node,) = NodeView(shop.store).seen(60)
    assert node.stopped_at is not None
