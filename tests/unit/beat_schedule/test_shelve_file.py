"""The way back to stock beat.

What ran here does not run there again, and what is overdue runs there at once.
"""

import shelve
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule, solar

from celery_sqlbeat.beat_schedule.plan import StockRun
from celery_sqlbeat.beat_schedule.shelve_file import ShelveWriter, runs_for_stock, runs_in_file, write_runs
from celery_sqlbeat.model import Beside, CodeRow, CodeState
from celery_sqlbeat.schedule import Timeline, parse, zone_named

NOW = datetime(2027, 3, 1, 12, 0, 20, tzinfo=timezone.utc)
BERLIN = "Europe/Berlin"
SCHEDULES: list[tuple[str, Any]] = [
    ("every 30s", lambda **now: schedule(30, **now)),
    ("every 1h relative", lambda **now: schedule(3600, relative=True, **now)),
    ("cron 15 14 * * *", lambda **now: crontab(minute=15, hour=14, **now)),
    ("cron 0 3 1 * *", lambda **now: crontab(minute=0, hour=3, day_of_month=1, **now)),
    ("solar sunset 52.5 13.4", lambda **now: solar("sunset", 52.5, 13.4, **now)),
]


def app() -> Celery:
    made = Celery("shop", set_as_current=False)
    made.conf.update(timezone=BERLIN)
    return made


def row(text: str, next_run: datetime | None, **columns: Any) -> CodeRow:
    plain: dict[str, Any] = {"job_id": "1", "job_name": "job", "task_name": "t", "schedule": text, "enabled": 1}
    return CodeRow(**{**dict.fromkeys(CodeRow._fields), **plain, "next_run_time": next_run, **columns})


def next_slot(text: str) -> datetime:
    found = Timeline(parse(text), zone_named(BERLIN)).first_slot(NOW)
    assert found is not None
    return found


def stock_is_due(make: Any, last_run_at: datetime, at: datetime) -> bool:
    """Return what stock beat's own entry says at that instant."""
    shop = app()
    made = make(nowfun=lambda: at.astimezone(ZoneInfo(BERLIN)), app=shop)
    entry = ScheduleEntry("job", "t", last_run_at, 1, made, app=shop)
    return entry.is_due()[0]


@pytest.mark.parametrize(("text", "make"), SCHEDULES, ids=[text for text, _ in SCHEDULES])
def test_stock_beat_runs_the_next_slot_and_nothing_before_it(text: str, make: Any) -> None:
    slot = next_slot(text)
    last = runs_for_stock([row(text, slot)], NOW)["job"].last_run_at
    assert last <= NOW
    assert not stock_is_due(make, last, NOW)
    assert not stock_is_due(make, last, slot - timedelta(seconds=2))
    assert stock_is_due(make, last, slot + timedelta(seconds=2))


@pytest.mark.parametrize(("text", "make"), SCHEDULES, ids=[text for text, _ in SCHEDULES])
def test_what_is_overdue_here_runs_there_at_once(text: str, make: Any) -> None:
    overdue = next_slot(text)
    later = overdue + timedelta(seconds=5)
    last = runs_for_stock([row(text, overdue)], later)["job"].last_run_at
    assert stock_is_due(make, last, later)


@pytest.mark.parametrize(("text", "make"), SCHEDULES, ids=[text for text, _ in SCHEDULES])
def test_what_runs_at_this_moment_does_not_run_there_as_well(text: str, make: Any) -> None:
    slot = next_slot(text)
    claimed = slot + timedelta(seconds=1)
    run = runs_for_stock([row(text, slot, claimed_at=claimed)], claimed + timedelta(seconds=3))["job"]
    assert run.has_run and not stock_is_due(make, run.last_run_at, claimed + timedelta(seconds=3))


def test_what_is_paused_is_not_overdue_there() -> None:
    assert runs_for_stock([row("every 30s", NOW - timedelta(days=9), enabled=0)], NOW)["job"].last_run_at == NOW


@pytest.mark.parametrize("columns", [{"next_run_time": None}, {"schedule": "code"}, {"schedule": "nonsense"}])
def test_what_nobody_knows_is_left_as_stock_beat_has_it(columns: dict[str, Any]) -> None:
    assert runs_for_stock([row("every 30s", NOW)._replace(**columns)], NOW) == {}


def test_the_file_keeps_what_stock_beat_wrote_and_tells_whose_runs_they_are(tmp_path: Path) -> None:
    path = str(tmp_path / "celerybeat-schedule")
    shop, before = app(), NOW - timedelta(days=1)
    entries = {name: ScheduleEntry(name, "t", before, 5, schedule(30), app=shop) for name in ("ours", "theirs")}
    with shelve.open(path) as stored:
        stored.update({"entries": entries, "tz": BERLIN})
    added = {**entries, "new": ScheduleEntry("new", "t", before, 0, schedule(30), app=shop)}
    write_runs(path, added, {"ours": StockRun(NOW, True), "new": StockRun(NOW, True)})
    assert runs_in_file(path) == {
        "ours": StockRun(NOW, True, is_stocks=False),
        "new": StockRun(NOW, True, is_stocks=False),
        "theirs": StockRun(before, True),
    }
    with shelve.open(path) as stored:
        assert stored["tz"] == BERLIN and stored["entries"]["ours"].total_run_count == 5
        later = ScheduleEntry("ours", "t", NOW + timedelta(seconds=30), 6, schedule(30), app=shop)
        stored["entries"] = {**stored["entries"], "ours": later}  # stock beat has run it since
    assert runs_in_file(path)["ours"] == StockRun(NOW + timedelta(seconds=30), True)


def test_a_file_that_cannot_be_written_keeps_beat_from_nothing(tmp_path: Path) -> None:
    class Store:
        def code_state(self, owner: str, release: str, live_seconds: float) -> CodeState:
            return CodeState(NOW, [row("every 30s", NOW)], Beside())

    store: Any = Store()
    ShelveWriter(str(tmp_path / "no such folder" / "file"), {}, "shop", store).write()
