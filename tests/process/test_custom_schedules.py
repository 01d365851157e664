"""Schedule classes of the shop's own.

One that blocks holds up its own job, on its own beat, and nothing else.
"""

import time

import pytest

from celery_sqlbeat.model.lifecycle import DISPATCHED
from tests.process.conftest import MakeShop
from tests.support.beats import Shop, wait_for

pytestmark = pytest.mark.slow

SECONDS = 20.0  # longer than the four statement time-outs after which PostgreSQL ends an idle transaction
EXTRA = """
from celery.schedules import schedule

class Blocks(schedule):
    def is_due(self, last_run_at):
        time.sleep(600)

class Ponders(schedule):
    def is_due(self, last_run_at):
        time.sleep(0.3)
        return super().is_due(last_run_at)

app.conf.beat_schedule.update({
    "blocks": {"task": "shop.add", "schedule": Blocks(1.0)},
    "ponders": {"task": "shop.add", "schedule": Ponders(1.0)},
})
"""


def fires(shop: Shop, name: str) -> int:
    return sum(run.job_name == name and run.state == DISPATCHED for run in shop.runs())


@pytest.mark.parametrize(("database", "broker"), [("postgresql", "redis"), ("sqlite", "rabbitmq")])
def test_a_schedule_that_blocks_stops_no_other_job(make_shop: MakeShop, database: str, broker: str) -> None:
    shop = make_shop(database, broker)
    shop.write({"each-second": {"task": "shop.add", "schedule": 1.0}}, extra=EXTRA)
    beat = shop.start()
    wait_for(lambda: fires(shop, "each-second") > 0, 60, shop.logs)
    began, before = time.monotonic(), fires(shop, "each-second")
    shop.add("by-hand", schedule="every 1s")
    wait_for(lambda: fires(shop, "each-second") >= before + SECONDS - 2, SECONDS + 5, shop.logs)
    assert time.monotonic() - began >= SECONDS - 5
    assert fires(shop, "by-hand") >= SECONDS - 10
    assert fires(shop, "ponders") >= SECONDS / 3, "an answer that takes a moment is waited for"
    assert fires(shop, "blocks") == 0
    beat.says("it has not said for")
    assert not beat.events("job_quarantined") and "Traceback" not in beat.log
    beat.stop()
