"""A row, or a file, that somebody keeps locked: that job waits, and nobody else does."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.model import Claim, NewRun, StartRequest
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import DISPATCHED
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.records import JobQuery
from tests.process.conftest import MakeShop
from tests.support.beats import Shop, assert_clean, wait_for
from tests.support.claiming import claim_due
from tests.support.views import AdminView, BeatView, WorkerView

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "sqlbeat_dispatch_timeout": 3,
    "sqlbeat_heartbeat_interval": 1,
    "sqlbeat_lock_timeout": 12,
    "sqlbeat_poll_interval": 2,
    "sqlbeat_notice_interval": 0.5,
}
LONGEST_LEASE = 60.0  # seconds: of a new beat's patience with living workers, and of a dead one's lease


def claim(shop: Shop) -> dict[str, Claim]:
    """Claim what is due, as a beat does that dies before it publishes."""
    planner = Planner(Rules(policies_from_setting({}), "UTC", 12.0, 3))
    claimed = claim_due(BeatView(shop.store, "beat that died"), planner, 100, 3.0)
    return {each.job_name: each for each in claimed.claims}


def start(shop: Shop, one: Claim) -> None:
    """Begin a run, as a worker does that dies."""
    request = StartRequest(one.run_id, one.claim_id, one.fence, one.run_id, 0)
    assert WorkerView(shop.store, "worker that died").start([request])


def fires(shop: Shop, name: str) -> int:
    """How many slots of a job were sent."""
    return sum(run.job_name == name and run.state == DISPATCHED for run in shop.runs())


def assert_goes_on(shop: Shop, name: str, slots: int, seconds: float) -> None:
    """Assert that a sound job fires so often in so many seconds."""
    before = fires(shop, name)
    wait_for(lambda: fires(shop, name) >= before + slots, seconds, shop.logs)


@contextlib.contextmanager
def locked(shop: Shop, *names: str) -> Iterator[None]:
    """Somebody's open transaction on the rows of jobs and of their runs."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(shop.database_url) as holder:
        for table in ("Jobs", "JobRuns"):
            holder.execute(f"SELECT 1 FROM {table} WHERE JobName = ANY(%s) FOR UPDATE", [list(names)])
        yield
        holder.rollback()


SLOW = """
from celery.beat import BeatLazyFunc
import pathlib

def hold():
    pathlib.Path("held").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return 1

app.conf.beat_schedule["marked"] = {"task": "shop.add", "schedule": 3600.0, "args": (BeatLazyFunc(hold),)}
"""


def test_jobs_whose_rows_are_locked_hold_up_no_other_job(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "redis")
    now = shop.now()
    shop.add("unpublished", "lost", schedule="every 1h", at=now)
    held = claim(shop)
    start(shop, held["lost"])
    shop.add("doomed", schedule="every 1h")
    shop.statement("UPDATE Jobs SET DeleteRequested = 1 WHERE JobName = 'doomed'")
    shop.add("each second", at=now)
    shop.write(**SETTINGS)
    with locked(shop, "unpublished", "doomed"):
        beat = shop.start()
        assert_goes_on(shop, "each second", 3, 30)
        assert_goes_on(shop, "each second", 18, 22)
        # A dead worker's run is taken over: here it is fired and forgotten again.
        wait_for(lambda: fires(shop, "lost") == 1, LONGEST_LEASE, shop.logs)
        assert AdminView(shop.store).jobs(JobQuery(names=["doomed"]))
        assert fires(shop, "unpublished") == 0
    wait_for(lambda: fires(shop, "unpublished") == 1, 30, shop.logs)
    wait_for(lambda: not AdminView(shop.store).jobs(JobQuery(names=["doomed"])), 30, shop.logs)
    beat.stop()
    assert_clean(beat)


def test_a_row_that_is_locked_between_its_claim_and_its_mark_is_recorded_later(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "redis")
    shop.write({"marked": {"task": "shop.add", "schedule": 3600.0}}, extra=SLOW, **SETTINGS)
    shop.add("each second", at=shop.now())
    beat = shop.start()
    wait_for(lambda: AdminView(shop.store).jobs(JobQuery(names=["marked"])), 30, shop.logs)
    AdminView(shop.store).enqueue([NewRun("01a00000-0000-7000-8000-000000000001", job_id(shop, "marked"))])
    wait_for(lambda: (shop.folder / "held").exists(), 30, shop.logs)
    with locked(shop, "marked"):
        (shop.folder / "go").touch()
        assert_goes_on(shop, "each second", 10, 14)
        assert fires(shop, "marked") == 0
    wait_for(lambda: fires(shop, "marked") == 1, 30, shop.logs)
    beat.stop()
    assert_clean(beat)


def job_id(shop: Shop, name: str) -> str:
    return AdminView(shop.store).jobs(JobQuery(names=[name]))[name].job_id


def test_a_file_that_others_hold_for_a_second_at_a_time_stops_no_duty(make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", "redis")
    now = shop.now()
    shop.add("unpublished", "lost", schedule="every 1h", at=now)
    start(shop, claim(shop)["lost"])
    shop.add("doomed", schedule="every 1h")
    shop.statement("UPDATE Jobs SET DeleteRequested = 1 WHERE JobName = 'doomed'")
    shop.add("each second", at=now)
    shop.write(**SETTINGS)
    with second_at_a_time(shop.folder / "beat.db"):
        beat = shop.start()
        assert_goes_on(shop, "each second", 10, 60)
        wait_for(lambda: fires(shop, "lost") == 1, LONGEST_LEASE, shop.logs)
        wait_for(lambda: fires(shop, "unpublished") == 1, 30, shop.logs)
        wait_for(lambda: not AdminView(shop.store).jobs(JobQuery(names=["doomed"])), 30, shop.logs)
    beat.stop()
    assert_clean(beat)


@contextlib.contextmanager
def second_at_a_time(file: Path) -> Iterator[None]:
    """Another writer that holds the file for a second, and leaves it alone for a fifth of one."""
    is_over = threading.Event()

    def hold() -> None:
        holder = sqlite3.connect(file, timeout=30, isolation_level=None)
        while not is_over.wait(0.2):
            holder.execute("BEGIN IMMEDIATE")
            is_over.wait(1.0)
            holder.execute("COMMIT")
        holder.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
