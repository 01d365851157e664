"""The move from a real stock beat.

It ends, its file is brought in, and its jobs go on where it stood.
"""

import json
import subprocess
import sys
from datetime import datetime, timedelta

import pytest

from celery_sqlbeat.model.lifecycle import SKIPPED
from tests.process.conftest import MakeShop
from tests.support.beats import (
    PATIENCE,
    Beat,
    Shop,
    assert_clean,
    assert_no_slot_is_missing,
    assert_sent_once,
    wait_for,
)

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)
INTERVALS = {"often": 1.0, "seldom": 3.0}
ENTRIES = {name: {"task": "shop.add", "schedule": interval, "args": [1]} for name, interval in INTERVALS.items()}


# The handler of stock beat's stop signals closes its connection: where the signal comes within a
# publish to RabbitMQ, the process waits for itself for ever. So here it comes before or after.
_STOCK = """\
import signal

from celery.signals import after_task_publish, before_task_publish

from shop import app


@before_task_publish.connect(weak=False)
def hold_back(**_):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


@after_task_publish.connect(weak=False)
def let_go(**_):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
"""


def stock_beat(shop: Shop) -> Beat:
    (shop.folder / "stock_shop.py").write_text(_STOCK)
    log = shop.folder / f"stock-{len(shop.beats)}.log"
    beat = Beat(shop.spawn(log, "beat", "--schedule", "stock", "--pidfile=", app="stock_shop"), log)
    shop.beats.append(beat)
    return beat


def take_over(shop: Shop) -> dict[str, dict[str, str]]:
    command = [
        "-W",
        "ignore",
        "-m",
        "celery",
        "-A",
        "shop",
        "sqlbeat",
        "jobs",
        "import",
        "--from",
        "shelve",
        "stock",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, *command], cwd=shop.folder, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return {job["name"]: job for job in json.loads(done.stdout)["jobs"]}


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@pytest.mark.parametrize(("database", "broker"), [("sqlite", "redis"), ("postgresql", "rabbitmq")])
def test_each_job_goes_on_where_stock_beat_stood(make_shop: MakeShop, database: str, broker: str) -> None:
    shop = make_shop(database, broker)
    shop.write(ENTRIES, result_expires=None)
    stock = stock_beat(shop)
    stock.says("Sending due task seldom", times=2)
    stock.stop()
    assert len(shop.place.take()) >= 4

    jobs = take_over(shop)
    assert jobs.keys() == INTERVALS.keys()
    for name, interval in INTERVALS.items():
        assert instant(jobs[name]["next_run_time"]) == instant(jobs[name]["last_run_time"]) + interval * SECOND
    wait_for(lambda: shop.now() > instant(jobs["seldom"]["next_run_time"]) + 2 * SECOND, PATIENCE)  # no beat runs

    beats = [shop.start() for _ in range(2)]
    shop.wait_for_slots(jobs=2, each=4)
    for beat in beats:
        beat.stop()
    first = {name: min(run.scheduled_for for run in shop.runs() if run.job_name == name) for name in INTERVALS}
    assert first == {name: instant(jobs[name]["next_run_time"]) for name in INTERVALS}
    assert [run.reason for run in shop.runs() if run.state == SKIPPED and run.job_name == "often"][-1:] == ["misfire"]
    assert_sent_once(shop)
    assert_no_slot_is_missing(shop, INTERVALS)
    assert_clean(*beats)


def ticks(log: str, name: str) -> int:
    return log.count(f"Sending due task {name} ")


@pytest.mark.parametrize(("database", "broker"), [("sqlite", "redis"), ("postgresql", "rabbitmq")])
def test_no_slot_runs_twice_on_the_way_back_to_stock_beat_and_here_again(
    make_shop: MakeShop, database: str, broker: str
) -> None:
    """The hour of `daily` comes once.

    Whoever fires it, neither the other nor a later one does again.
    """
    shop = make_shop(database, broker)
    write_with_daily(shop, shop.now() + timedelta(hours=12))
    first = stock_beat(shop)
    first.says("Sending due task often")
    first.stop()
    # However long the first took to start and to stop, this minute had not begun.
    write_with_daily(shop, shop.now() + timedelta(minutes=1))
    ours = shop.start("beat", "--schedule", "stock")
    ours.says("Sending due task daily", seconds=60 + PATIENCE)
    ours.stop()
    second = stock_beat(shop)
    second.says("Sending due task often", times=3)
    second.stop()
    again = shop.start("beat", "--schedule", "stock")
    again.says("Sending due task often", times=3)
    again.stop()
    assert [ticks(beat.log, "daily") for beat in (first, ours, second, again)] == [0, 1, 0, 0]
    assert_clean(first, ours, second, again)


def write_with_daily(shop: Shop, due: datetime) -> None:
    """Write the shop with a job that is due at this minute of each day, and one of each second."""
    shop.write(
        {"often": {"task": "shop.add", "schedule": 1}},
        extra=f"app.conf.beat_schedule['daily'] = {{'task': 'shop.add', "
        f"'schedule': __import__('celery.schedules').schedules.crontab(minute={due.minute}, hour={due.hour})}}\n",
    )
