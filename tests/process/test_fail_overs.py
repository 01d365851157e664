"""A database that goes away, comes back, or says what nobody foresaw.

Nothing runs twice, and all goes on soon.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.process.conftest import MakeWorkers
from tests.process.sick_servers import SickWire
from tests.process.workers import LEASE, PATIENCE, Lane, WorkerShop, lane_name
from tests.support.beats import wait_for
from tests.support.brokers import Wire

pytestmark = pytest.mark.slow

LATE, EARLY = Lane("prefork", "redis", "postgresql", "late"), Lane("threads", "rabbitmq", "postgresql", "early")
ON_MARIADB = Lane("prefork", "rabbitmq", "mysql", "late")


@contextmanager
def sick(url: str) -> Iterator[SickWire]:
    made = SickWire(url)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("lane", [LATE, EARLY], ids=lane_name)
@pytest.mark.parametrize("executes", [False, True], ids=["refused", "executed all the same"])
def test_what_ends_while_the_database_gives_unknown_errors_is_not_run_again(
    make_workers: MakeWorkers, lane: Lane, executes: bool
) -> None:
    """As in a fail-over, where a gateway says what it likes.

    Sessions look well, and no statement gets its answer.
    """
    shop = make_workers(lane)
    with sick(shop.database_url) as wire:
        shop.write_app(lane, sqlbeat_database_url=wire.url)
        worker = shop.work(lane.pool, concurrency=8).ready()
        names = [shop.order("work.sleep", 1.0) for _ in range(8)]
        shop.dispatch()
        wait_for(lambda: _count(shop, "start") == 8, 30, lambda: worker.log)
        wire.executes_all_the_same, wire.is_sick = executes, True
        wait_for(lambda: _count(shop, "end") == 8, 30, lambda: worker.log)
        before = wire.told
        worker.says("is not known", times=2)
        wait_for(lambda: wire.told >= before + 5, 30, lambda: worker.log)
        wire.is_sick = False
        wait_for(lambda: all(shop.states(name) == ["success"] for name in names), 6 * LEASE, lambda: worker.log)
        assert _count(shop, "start") == 8, "none of them ran again"
        worker.stop()


def _count(shop: WorkerShop, what: str) -> int:
    return len(shop.lines(what=what))


@pytest.mark.parametrize("lane", [LATE, EARLY, ON_MARIADB], ids=lane_name)
def test_after_an_outage_of_the_database_beats_fire_and_workers_run_soon(make_workers: MakeWorkers, lane: Lane) -> None:
    """No pause between two tries is longer than a second.

    With default settings; -s shows the figures.
    """
    shop = make_workers(lane)
    shop.conf = {name: value for name, value in shop.conf.items() if not name.startswith("sqlbeat_")}
    wire = Wire(shop.database_url)
    try:
        entries = {f"job-{number}": {"task": "work.note", "schedule": 1.0} for number in range(3)}
        shop.write_app(lane, sqlbeat_database_url=wire.url, beat_schedule=entries)
        worker = shop.work(lane.pool, concurrency=2).ready()
        beat = shop.start()
        wait_for(lambda: _count(shop, "end") >= 3, 60, shop.logs)
        wire.cut()
        told = len(worker.log)
        beat.says("retry_seconds=", times=4, seconds=60)  # which is said ever more rarely: after 8 s or more
        began = time.time()
        wire.mend()

        def begun() -> list[float]:
            return [line.at for line in shop.lines(what="start") if line.at > began]

        wait_for(begun, PATIENCE / 6, shop.logs)
        fired = min(run.claimed_at for run in shop.runs() if run.claimed_at and run.claimed_at.timestamp() > began)
        print(json.dumps({"lane": lane_name(lane), "fire": fired.timestamp() - began, "body": min(begun()) - began}))
        assert "Traceback" not in worker.log[told:], worker.log
        beat.stop()
        worker.stop()
    finally:
        wire.close()
