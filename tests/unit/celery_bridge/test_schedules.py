"""Celery's schedule objects become text and text becomes Celery's schedule objects."""

import pickle
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import VERSION, Celery
from celery.schedules import crontab, schedule, solar

from celery_sqlbeat.celery_bridge.schedules import from_celery, once, to_celery, zone_of
from celery_sqlbeat.errors import FieldError, ScheduleError
from celery_sqlbeat.schedule import parse
from tests.support.stock import in_zone, untyped

UTC = timezone.utc
APP = Celery("stock", set_as_current=False)
APP.conf.update(timezone="Europe/Berlin")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "every 5s"),
        (0.25, "every 0.25s"),
        (timedelta(hours=1), "every 1h"),
        (schedule(90), "every 1m30s"),
        (schedule(timedelta(days=1), relative=True), "every 1d relative"),
        (crontab(), "cron * * * * *"),
        (crontab(minute=0, hour="9-17/2", day_of_week="Mon-Fri"), "cron 0 9-17/2 * * mon-fri"),
        (
            crontab(minute=untyped({30, 0}), hour=[8, 9, 10, 20], day_of_month=untyped(range(1, 8))),
            "cron 0,30 8-10,20 1-7 * *",
        ),
        (crontab(hour=untyped(range(24)), minute=0), "cron 0 * * * *"),
        (crontab(day_of_month="1", month_of_year="*/3", minute="0", hour="0"), "cron 0 0 1 */3 *"),
        (solar("sunset", 51.5, -0.12), "solar sunset 51.5 -0.12"),
        ("EVERY 5S", "every 5s"),
        (parse("cron 0 9 * * *"), "cron 0 9 * * *"),
        (once(datetime(2027, 1, 1, tzinfo=UTC)), "once 2027-01-01T00:00:00Z"),
    ],
)
def test_every_stock_schedule_has_a_text(value: Any, text: str) -> None:
    assert str(from_celery(value)) == text


@pytest.mark.parametrize(
    ("odd", "plain"),
    [
        (crontab(minute="1-5/2/9"), "cron 1,3,5 * * * *"),
        (crontab(day_of_week="monkey"), "cron * * * * 1"),
        (crontab(month_of_year="mon"), "cron * * * 1 *"),
        (crontab(minute=" 5"), "cron 5 * * * *"),
    ],
)
def test_what_celery_reads_leniently_is_written_out_plainly(odd: crontab, plain: str) -> None:
    ours = from_celery(odd)
    assert ours == parse(plain) and ours is not None
    assert to_celery(ours) == odd


def test_the_entrys_relative_counts_for_numbers_only_as_in_stock_beat() -> None:
    assert str(from_celery(60, relative=True)) == "every 1m relative"
    assert str(from_celery(timedelta(minutes=1), relative=True)) == "every 1m relative"
    assert str(from_celery(schedule(60), relative=True)) == "every 1m"


def test_a_custom_class_has_no_text() -> None:
    class Holidays(crontab):
        pass

    class Duck:
        def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
            return False, 1.0

    assert from_celery(Holidays()) is None
    assert from_celery(Duck()) is None


@pytest.mark.parametrize(
    "value", [None, True, 0, -1, float("nan"), float("inf"), 1e300, timedelta(0), [], {}, object()]
)
def test_what_is_no_schedule_is_refused(value: object) -> None:
    with pytest.raises(ScheduleError):
        from_celery(value)


@pytest.mark.parametrize(
    "text",
    [
        "every 5s",
        "every 1h relative",
        "cron */5 22-2 * jan-mar mon-fri",
        "solar dawn_civil 48.1 11.5",
        "once 2027-01-31T09:00:00Z",
    ],
)
def test_going_back_to_stock_beat_gives_the_same_schedule(text: str) -> None:
    stock = to_celery(parse(text), APP)
    assert stock.app is APP
    assert from_celery(stock) == parse(text)
    assert pickle.loads(pickle.dumps(stock)) == stock  # stock beat keeps its entries in a shelve


def test_a_crontab_in_the_zone_of_the_app_brings_none_along() -> None:
    assert zone_of(crontab(app=APP)) is None
    assert zone_of(schedule(5)) is None
    assert zone_of("every 5s") is None


@pytest.mark.skipif(VERSION[:2] < (5, 7), reason="earlier ones read an aware instant in its own zone")
def test_a_crontab_with_a_zone_of_its_own_brings_it_along() -> None:
    stock = crontab(app=APP)
    assert zone_of(in_zone(stock, ZoneInfo("Asia/Tokyo"))) == "Asia/Tokyo"
    assert zone_of(in_zone(stock, UTC)) == "UTC"
    in_zone(stock, timezone(timedelta(hours=2)))
    with pytest.raises(FieldError, match="a zone with a name"):
        zone_of(stock)


def test_a_crontab_with_its_own_clock_counts_in_the_zone_in_which_celery_reads_it() -> None:
    stock = crontab(app=APP, nowfun=lambda: datetime.now(ZoneInfo("Asia/Tokyo")))
    frame = stock.remaining_delta(stock.now())[0].tzinfo
    assert zone_of(stock) == str(frame)
    assert from_celery(stock) == parse("cron * * * * *")


def test_a_single_instant_is_due_once_in_stock_beat() -> None:
    now = datetime(2027, 1, 1, 12, tzinfo=UTC)
    job = once(now, nowfun=lambda: now, app=APP)
    assert job.is_due(now - timedelta(hours=1)) == (True, 86400.0)
    assert job.is_due(now) == (False, 86400.0)
    later = once(now + timedelta(minutes=5), nowfun=lambda: now, app=APP)
    assert later.is_due(now) == (False, 300.0)
    assert later != job and hash(later) != hash(job) and "2027-01-01T12:05" in repr(later)
