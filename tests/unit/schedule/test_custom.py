"""A kind of schedule that others add is read like ours, and only has to know its next instant."""

import random
from bisect import bisect_right
from datetime import datetime, timedelta, timezone, tzinfo

import pytest

from celery_sqlbeat.celery_bridge.schedules import from_celery, to_celery
from celery_sqlbeat.config.plugins import SCHEDULES
from celery_sqlbeat.errors import ScheduleError
from celery_sqlbeat.schedule import Custom, Fire, Misfire, Timeline, count_between, latest_at, next_after, parse

UTC = timezone.utc
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
PATH = "tests.support.plugged"


@pytest.fixture(autouse=True)
def added(as_installed: None) -> None:
    for name in ("minutes", "answers"):
        SCHEDULES.add(name, f"{PATH}.{name}")
    SCHEDULES.add("lost", "no_such_module.read")


def test_its_text_is_read_and_given_back() -> None:
    schedule = parse("  Minutes   7 ")
    assert isinstance(schedule, Custom) and str(schedule) == "minutes 7"
    assert schedule == parse("minutes 7") != parse("minutes 8") and hash(schedule) == hash(parse("minutes 7"))
    assert next_after(schedule, NOON, UTC) == NOON + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("minutes 0", "write a whole number of minutes of at least 1"),
        ("minutes x", "invalid literal"),
        ("answers nothing", "which has no method next_after"),
        ("answers what", "KeyError"),
        ("lost 1", "No module named 'no_such_module'.*correct sqlbeat_schedules"),
        ("nosuch 1", "of the kinds that were added: .*minutes"),
    ],
)
def test_a_text_that_it_cannot_read_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason) as caught:
        parse(text)
    assert caught.value.value == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [("naive", "answered '2027"), ("past", "that is later"), ("text", "'tomorrow'"), ("raises", "of the kind")],
)
def test_an_answer_that_is_no_later_instant_is_an_error_of_the_row(text: str, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        next_after(parse(f"answers {text}"), NOON, UTC)


def test_a_schedule_that_never_comes_has_no_instants() -> None:
    never = parse("answers never")
    assert next_after(never, NOON, UTC) is None and latest_at(never, NOON, NOON + timedelta(days=9), UTC) is None
    assert count_between(never, NOON, NOON + timedelta(days=9), UTC) == 0


def test_missed_slots_are_found_as_those_of_a_crontab_are() -> None:
    chance = random.Random(7)
    for step in (1, 7, 60, 1440, 100_000):
        schedule = parse(f"minutes {step}")
        for _ in range(40):
            after = NOON + timedelta(seconds=chance.uniform(0, 1e6))
            until = after + timedelta(seconds=10 ** chance.uniform(-3, 8))
            slot, latest = next_after(schedule, after, UTC), None
            if until - after < timedelta(minutes=step) * 2000:
                while slot is not None and slot <= until:
                    latest, slot = slot, next_after(schedule, slot, UTC)
                assert latest_at(schedule, after, until, UTC) == latest
            else:
                latest = latest_at(schedule, after, until, UTC)
                assert latest is not None and timedelta() <= until - latest < timedelta(minutes=step)


class Listed:
    """Fires at these instants."""

    def __init__(self, instants: list[datetime]) -> None:
        self.instants = sorted(instants)

    def next_after(self, instant: datetime, zone: tzinfo) -> datetime | None:
        """Return the next one of the list."""
        at = bisect_right(self.instants, instant)
        return self.instants[at] if at < len(self.instants) else None


def test_the_latest_of_instants_that_come_in_bursts_is_found() -> None:
    chance = random.Random(11)
    for number in range(300):
        bursts = [NOON + timedelta(seconds=10 ** chance.uniform(-2, 7)) for _ in range(chance.randint(1, 4))]
        instants = [
            burst + timedelta(microseconds=int(10 ** chance.uniform(0, 9)))
            for burst in bursts
            for _ in range(chance.randint(1, 9))
        ]
        schedule = Custom(f"listed {number}", Listed(instants))
        after = NOON + timedelta(seconds=10 ** chance.uniform(-2, 7))
        until = after + timedelta(seconds=10 ** chance.uniform(-3, 8))
        passed = [at for at in instants if after < at <= until]
        assert latest_at(schedule, after, until, UTC) == max(passed, default=None)
        assert count_between(schedule, after, until, UTC) == sum(after <= at <= until for at in set(instants))


def test_a_gap_of_centuries_is_bounded_work() -> None:
    schedule = parse("minutes 1")
    assert latest_at(schedule, datetime(2, 1, 2, tzinfo=UTC), NOON, UTC) == NOON
    assert count_between(schedule, datetime(2, 1, 2, tzinfo=UTC), NOON, UTC) == 10_000
    answer = Timeline(schedule, UTC).plan(datetime(1900, 1, 1, tzinfo=UTC), NOON, misfire=Misfire("catch_up"))
    assert isinstance(answer, Fire) and answer.slot == NOON - timedelta(minutes=9)


def test_its_first_slot_and_the_next_ones_are_its_own() -> None:
    timeline = Timeline(parse("minutes 60"), UTC)
    first = timeline.first_slot(NOON + timedelta(seconds=1))
    assert first == NOON + timedelta(hours=1)
    answer = timeline.plan(first, first + timedelta(minutes=5))
    assert answer == Fire(first, first + timedelta(hours=1), None, None)


def test_tools_see_a_schedule_of_celery_that_means_the_same() -> None:
    schedule = parse("minutes 60")
    stock = to_celery(schedule)
    assert from_celery(stock) == schedule == from_celery("minutes 60") == from_celery(schedule)
    stock.nowfun = lambda: NOON + timedelta(minutes=10)
    assert stock.is_due(NOON) == (False, 3000.0)
    assert stock.is_due(NOON - timedelta(hours=1)) == (True, 3000.0)
