"""The move from stock beat, whose own scheduler makes the file.

Each entry fires next when it would have there.
"""

import shelve
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery.beat import PersistentScheduler
from celery.schedules import crontab, schedule

from celery_sqlbeat.api import Handle
from celery_sqlbeat.beat.scheduler import Scheduler
from celery_sqlbeat.beat_schedule.entries import read_entries
from celery_sqlbeat.errors import SourceUnreadable
from celery_sqlbeat.transfer.from_entries import from_beat_schedule, from_shelve
from tests.support.stock import untyped
from tests.support.views import CodeView, NodeView
from tests.transfer.conftest import Open, move

DAY = timedelta(days=1)


class Odd(schedule):
    """A schedule of the shop's own."""


ENTRIES: dict[str, Any] = {
    "often": {"task": "shop.often", "schedule": 90.0, "args": (1, 2), "options": {"queue": "q"}},
    "nightly": {"task": "shop.nightly", "schedule": crontab(hour="3", minute="30")},
    "odd": {"task": "shop.odd", "schedule": Odd(timedelta(hours=1))},
}


def run_stock_beat(beat: Handle, file: Path, ran: dict[str, datetime]) -> dict[str, datetime]:
    """Let stock beat write its file, as if these entries had run then.

    Returns when it would fire each of them.
    """
    stock = PersistentScheduler(beat.app, schedule_filename=str(file), lazy=True)
    stock.setup_schedule()
    for name, at in ran.items():
        stock.schedule[name].last_run_at = at
        stock.schedule[name].total_run_count = 1
    entries = untyped(stock.schedule)
    due = {name: now() + entry.schedule.remaining_estimate(entry.last_run_at) for name, entry in entries.items()}
    stock.close()
    return due


@pytest.fixture
def shop(open_shop: Open) -> Handle:
    return open_shop(beat_schedule=ENTRIES, result_expires=None)


def now() -> datetime:
    return datetime.now(timezone.utc)


def test_each_entry_goes_on_where_stock_beat_stood(shop: Handle, tmp_path: Path) -> None:
    """`often` is overdue, `nightly` is not; the shop's own class is asked."""
    ran = {"often": now() - DAY, "nightly": now() - timedelta(minutes=1), "odd": now() - timedelta(minutes=20)}
    due = run_stock_beat(shop, tmp_path / "stock", ran)
    steps = move(shop, from_shelve(shop.app, shop.settings, str(tmp_path / "stock")))
    assert {name: step.action for name, step in steps.items()} == {"often": "code", "nightly": "code", "odd": "code"}
    for name, at in due.items():
        job = shop.jobs.get(name)
        assert job is not None and job.code_owner == "shop"
        assert job.last_run_time == ran[name] == steps[name].last_run_time
        assert job.next_run_time is not None and job.next_run_time == steps[name].next_run_time
        assert abs(job.next_run_time - at) < timedelta(seconds=2), name


def test_a_beat_has_nothing_to_import_any_more(shop: Handle, tmp_path: Path) -> None:
    move(shop, from_beat_schedule(shop.app, shop.settings))
    stock_like = Scheduler(shop.app, lazy=True)
    stock_like.setup_schedule()
    code = read_entries(shop.app, stock_like.schedule, shop.settings.release, shop.settings.policies)
    newest = CodeView(shop.store).newest_release(code.owner, code.release, 60.0)
    assert newest.winner == newest.imported == code.release


def test_a_dry_run_tells_the_same_and_writes_nothing(shop: Handle, tmp_path: Path) -> None:
    run_stock_beat(shop, tmp_path / "stock", {"often": now() - DAY})
    source = from_shelve(shop.app, shop.settings, str(tmp_path / "stock"))
    planned = move(shop, source, dry_run=True)
    assert shop.jobs.list() == []
    done = move(shop, source)
    assert {name: step.action for name, step in planned.items()} == {name: step.action for name, step in done.items()}
    assert planned["often"].next_run_time == done["often"].next_run_time


def test_what_is_there_stays_as_it_is(shop: Handle, tmp_path: Path) -> None:
    move(shop, from_beat_schedule(shop.app, shop.settings))
    before = shop.jobs.list()
    run_stock_beat(shop, tmp_path / "stock", {"often": now() - DAY})
    again = move(shop, from_shelve(shop.app, shop.settings, str(tmp_path / "stock")))
    assert {step.action for step in again.values()} == {"same"}
    assert [job.next_run_time for job in shop.jobs.list()] == [job.next_run_time for job in before]


def test_a_job_of_the_table_with_the_name_of_an_entry_is_left_alone(shop: Handle) -> None:
    shop.jobs.put("often", task="shop.other", schedule=60)
    for dry_run in (True, False):
        step = move(shop, from_beat_schedule(shop.app, shop.settings), dry_run)["often"]
        assert step.action == "left" and "a job of the table has this name already" in step.remarks[0]
    job = shop.jobs.get("often")
    assert job is not None and job.task == "shop.other"


def test_a_wrong_entry_is_left_and_stops_no_other(open_shop: Open) -> None:
    shop = open_shop(beat_schedule={"bad": {"task": "t", "schedule": "evry 5"}, "good": {"task": "t", "schedule": 5}})
    steps = move(shop, from_beat_schedule(shop.app, shop.settings))
    assert steps["bad"].action == "left" and "evry 5" in steps["bad"].remarks[0]
    assert steps["good"].action == "code"


def test_entries_that_left_the_code_stay_behind(shop: Handle, tmp_path: Path, open_shop: Open) -> None:
    run_stock_beat(shop, tmp_path / "stock", {"odd": now() - DAY})
    later = open_shop(beat_schedule={"often": ENTRIES["often"]}, result_expires=None)
    steps = move(later, from_shelve(later.app, later.settings, str(tmp_path / "stock")))
    assert (steps["nightly"].action, steps["odd"].action, steps["often"].action) == ("left", "left", "code")
    assert "it left the beat_schedule" in steps["nightly"].remarks[0]


def test_what_the_code_has_changed_since_is_told_before_it_is_done(open_shop: Open, shop: Handle) -> None:
    move(shop, from_beat_schedule(shop.app, shop.settings))
    changed = {"often": {**ENTRIES["often"], "args": (3,)}, "nightly": ENTRIES["nightly"]}
    later = Handle(open_shop(beat_schedule=changed, result_expires=None).app, shop.settings, shop.store)
    planned = move(later, from_beat_schedule(later.app, later.settings), dry_run=True)
    assert {job.version for job in shop.jobs.list()} == {1}
    done = move(later, from_beat_schedule(later.app, later.settings))
    for steps in (planned, done):
        assert {name: step.action for name, step in steps.items()} == {
            "often": "change",
            "nightly": "same",
            "odd": "change",
        }
        assert "it left the beat_schedule: disabled" in steps["odd"].remarks
    often, odd = later.jobs.get("often"), later.jobs.get("odd")
    assert often is not None and often.args == [3]
    assert odd is not None and not odd.enabled


def test_a_newer_release_that_has_a_live_beat_defines_the_entries_that_it_has(open_shop: Open, shop: Handle) -> None:
    from celery_sqlbeat.model import Node

    move(shop, from_beat_schedule(shop.app, shop.settings))
    changed = {"often": {"task": "t", "schedule": 5}}
    newer = Handle(open_shop(beat_schedule=changed, result_expires=None).app, shop.settings, shop.store)
    move(newer, from_beat_schedule(newer.app, newer.settings))
    code = from_beat_schedule(newer.app, newer.settings).code
    NodeView(shop.store).heartbeat(Node("beat-1", "beat", "host", 1, "1", code.release, code_owner=code.owner))
    steps = move(shop, from_beat_schedule(shop.app, shop.settings))
    assert {name for name, step in steps.items() if step.action == "left"} == {"often"}
    assert "has a live beat and defines the jobs" in steps["often"].remarks[0]
    often = shop.jobs.get("often")
    assert often is not None and often.schedule == "every 5s"


def test_a_file_that_is_not_there_or_not_stocks_is_an_error(shop: Handle, tmp_path: Path) -> None:
    with pytest.raises(SourceUnreadable, match="there is no file"):
        from_shelve(shop.app, shop.settings, str(tmp_path / "nowhere"))
    (tmp_path / "text").write_text("this is no such file")
    with pytest.raises(SourceUnreadable, match="cannot be read"):
        from_shelve(shop.app, shop.settings, str(tmp_path / "text"))
    with shelve.open(str(tmp_path / "empty")):
        pass
    assert from_shelve(shop.app, shop.settings, str(tmp_path / "empty")).runs == {}
