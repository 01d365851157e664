"""A custom schedule class is asked by the server's clock, and always gives an instant."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule

from celery_sqlbeat.beat_schedule.custom_schedule import CustomSlots, DueAnswer, ask_schedule
from celery_sqlbeat.schedule import Fire, Skip
from tests.support.stock import untyped

UTC = timezone.utc
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
APP = Celery("custom", set_as_current=False)
APP.conf.update(timezone="Europe/Berlin")


class Own(schedule):
    """An interval under another name."""


class Evenings(crontab):
    """A crontab under another name."""


def entry(stock: Any) -> ScheduleEntry:
    return ScheduleEntry("job", "t", datetime.now(UTC), schedule=stock, app=APP)


def answering(answer: Callable[[datetime], Any], clock: Callable[[], datetime]) -> Any:
    """Return an entry whose schedule is no class of Celery's."""
    one = SimpleNamespace(name="job", last_run_at=None, schedule=object(), default_now=clock)
    one.is_due = lambda: answer(one.last_run_at)
    return one


def test_it_is_due_by_the_servers_clock_whatever_this_host_shows() -> None:
    assert ask_schedule(entry(Own(3600)), NOON - HOUR, NOON) == DueAnswer(True, NOON + HOUR)
    assert ask_schedule(entry(Own(3600)), NOON - HOUR / 4, NOON) == DueAnswer(False, NOON + HOUR * 3 / 4)
    assert ask_schedule(entry(Own(3600)), None, NOON) == DueAnswer(False, NOON + HOUR)
    assert CustomSlots(entry(Own(3600)), NOON - 2 * HOUR).first_slot(NOON) == NOON
    assert CustomSlots(entry(Own(3600)), NOON).first_slot(NOON) == NOON + HOUR


def test_a_crontab_of_ones_own_counts_in_the_zone_of_the_app() -> None:
    evening = datetime(2027, 3, 1, 17, tzinfo=UTC)  # six in Berlin
    assert CustomSlots(entry(Evenings(minute="0", hour="18")), NOON).first_slot(NOON) == evening
    assert ask_schedule(entry(Evenings(minute="0", hour="18")), NOON, evening).is_due


def test_the_schedule_has_its_own_clock_back_afterwards() -> None:
    plain, broken = untyped(Own(3600)), untyped(Own(3600))
    ask_schedule(entry(plain), None, NOON)
    assert plain.nowfun is None
    broken.remaining_estimate = lambda _: 1 / 0
    ask_schedule(entry(broken), None, NOON)
    assert broken.nowfun is None


def test_one_that_brings_a_clock_along_keeps_it() -> None:
    other = datetime(2001, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))
    one = entry(Own(3600, nowfun=lambda: other))
    assert ask_schedule(one, NOON - HOUR, NOON) == DueAnswer(True, NOON + HOUR)
    assert one.last_run_at == other - HOUR and one.last_run_at.tzinfo == other.tzinfo
    assert ask_schedule(one, NOON - HOUR / 2, NOON) == DueAnswer(False, NOON + HOUR / 2)


def test_a_naive_clock_gets_a_naive_instant() -> None:
    shown = datetime(2027, 3, 1, 13)  # noqa: DTZ001 - that is the case
    seen: list[datetime] = []

    def answer(last_run_at: datetime) -> tuple[bool, int]:
        seen.append(last_run_at)
        return False, 5

    one = answering(answer, lambda: shown)
    assert ask_schedule(one, NOON - HOUR, NOON) == DueAnswer(False, NOON + timedelta(seconds=5))
    assert seen == [shown - HOUR]


def raising(_: datetime) -> Any:
    raise RuntimeError("away")


@pytest.mark.parametrize(
    "answer",
    [raising, lambda _: None, lambda _: (True, None), lambda _: (True, float("nan")), lambda _: True, lambda _: "yes"],
)
def test_an_answer_that_is_none_is_asked_for_again(
    answer: Callable[[datetime], Any], caplog: pytest.LogCaptureFixture
) -> None:
    one = answering(answer, lambda: NOON)
    assert ask_schedule(one, None, NOON) == DueAnswer(False, NOON + timedelta(seconds=60))
    assert "job" in caplog.text


@pytest.mark.parametrize(("seconds", "until"), [(0, 0.1), (-5, 0.1), (float("inf"), 366 * 86400), (1e300, 366 * 86400)])
def test_the_next_look_is_neither_at_once_nor_never(seconds: float, until: float) -> None:
    one = answering(lambda _: (False, seconds), lambda: NOON)
    assert ask_schedule(one, None, NOON).next_at == NOON + timedelta(seconds=until)


def test_a_slot_fires_when_the_entry_says_so_and_is_put_off_otherwise() -> None:
    slots = CustomSlots(entry(Own(3600)), NOON - HOUR)
    assert slots.plan(NOON - HOUR / 2, NOON - HOUR / 2) == Skip(None, NOON)
    assert slots.plan(NOON, NOON) == Fire(NOON, NOON + HOUR, None, None)


def test_it_counts_from_the_claim_not_from_the_end_of_the_run() -> None:
    slots = CustomSlots(entry(Own(3600)), NOON - HOUR)
    assert slots.plan(NOON, NOON) == Fire(NOON, NOON + HOUR, None, None)
    ended = NOON + HOUR / 2
    assert slots.plan(NOON + HOUR, NOON + HOUR, ended) == Fire(NOON + HOUR, NOON + 2 * HOUR, None, None)


def test_it_counts_from_the_last_run_where_another_beat_was_there_meanwhile() -> None:
    slots = CustomSlots(entry(Own(3600)), NOON - HOUR)
    slots.plan(NOON, NOON)
    ended = NOON + HOUR * 3 / 2
    assert slots.plan(NOON + 2 * HOUR, NOON + 2 * HOUR, ended) == Skip(None, ended + HOUR)


def test_a_retry_counts_from_its_own_beginning() -> None:
    slots = CustomSlots(entry(Own(3600)), NOON - HOUR)
    begun = NOON + HOUR / 2
    assert slots.next_after_retry(NOON, begun) == (begun, None), "it is asked when the attempt has ended"
    assert slots.plan(begun, NOON + HOUR) == Skip(None, NOON + HOUR * 3 / 2)


def test_a_row_without_a_next_run_begins_when_the_entry_says_so() -> None:
    slots = CustomSlots(entry(Own(3600)), NOON)
    assert slots.first_slot(NOON) == NOON + HOUR
    assert slots.first_slot(NOON, NOON + 5 * HOUR) == NOON + 5 * HOUR
