"""When a beat wakes and what it asks the database then, by a clock that the test moves."""

import math
import random
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_sqlbeat.beat.build import RECLAIM_PAUSES
from celery_sqlbeat.beat.deadlines import Deadlines, ReclaimGuard
from celery_sqlbeat.beat.dispatch import DispatchResult, Tick
from celery_sqlbeat.beat.duties import Duty
from celery_sqlbeat.beat_schedule.custom_schedule import ScheduleQuestions
from celery_sqlbeat.errors import BrokerUnavailable, DatabaseBusy, DatabaseUnavailable, DatabaseUncertain, StoreError
from celery_sqlbeat.model import Claimable
from celery_sqlbeat.store.records import NextDeadlines, Pulse

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
PATIENCE = 45.0
LAG = 0.050  # seconds, of a beat that others outpaced
WALK = 0.003  # seconds that a claim takes, with all that follows it
RATE, SECONDS = 300, 5  # slots a second, of several beats together


class House:
    """All parts of a beat but the tick: counts what is asked, and answers as the test wants it."""

    def __init__(self, poll: float = 60.0, notice: float = 5.0) -> None:
        self.time = 0.0
        self.asked: Counter[str] = Counter()
        self.due_at: datetime | None = None
        self.leases_until: datetime | None = None
        self.later_at: datetime | None = None
        self.planned_at: datetime | None = None
        self.lease_ends_at: datetime | None = None
        self.counter = 0
        self.submitted_at: datetime | None = None
        """When a one-off is due that was submitted since the last reading."""
        self.fired: list[float] = []
        self.connected: list[float] = []
        self.broker_is_away = False
        self.answers: list[DispatchResult] = []
        self.reclaim_error: Exception | None = None
        self.pending: list[Any] = []
        self.seconds_left: float | None = None
        self.is_away = False
        self.absence: StoreError = DatabaseUnavailable("away")
        self.reclaim_guard = ReclaimGuard(PATIENCE, 15.0, 2 * poll, self.clock)
        self.claimable = Claimable()
        self.questions = ScheduleQuestions()
        me: Any = self
        chance = random.Random(5).random
        self.deadlines = Deadlines(me, me, self.reclaim_guard, poll, notice, self.clock, chance)
        reclaim = Duty("reclaiming ended leases", self.reclaim, self.clock, chance, RECLAIM_PAUSES, DatabaseUnavailable)
        self.tick = Tick(self.deadlines, me, me, me, reclaim, self.reclaim_guard, self.questions)

    def clock(self) -> float:
        return self.time

    def now(self) -> datetime:
        return self.at(self.time)

    def at(self, seconds: float) -> datetime:
        return NOON + timedelta(seconds=seconds)

    def _ask(self, what: str) -> None:
        if self.is_away:
            raise self.absence
        self.asked[what] += 1

    def pulse(self) -> Pulse:
        self._ask("changes")
        return Pulse(self.now(), self.counter, self.submitted_at)

    def next_deadlines(self, claimable: Any, after: datetime | None = None) -> NextDeadlines:
        if after is not None:
            self._ask("starts_after")
            return NextDeadlines(self.now(), self.later_at, None, None, None, None, 0)
        self._ask("next_deadlines")
        planned_at = self.planned_at if self.planned_at and self.planned_at > self.now() else None
        return NextDeadlines(self.now(), self.due_at, self.lease_ends_at, planned_at, None, None, self.counter)

    def connect(self, seconds: float) -> None:
        self.connected.append(self.time)
        if self.broker_is_away:
            raise BrokerUnavailable("away")

    def record(self) -> None:
        pass

    def await_confirms(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def fire(self) -> DispatchResult:
        self._ask("fire")
        self.fired.append(self.time)
        answer = self.answers.pop(0) if self.answers else DispatchResult(True, False)
        if answer.something and not answer.more:
            self.due_at = None
            self.lease_ends_at = self.lease_ends_at or self.leases_until
        return answer

    def reclaim(self) -> float:
        self._ask("reclaim")
        if self.reclaim_error is not None:
            raise self.reclaim_error
        return 1.0

    def live(self, seconds: float, longest: float = 1000.0) -> int:
        """Let so much time pass; returns how often the beat woke."""
        end, ticks = self.time + seconds, 0
        while self.time < end:
            self.time += max(min(self.tick(), longest), 0.0001)
            ticks += 1
        return ticks


class Shared(House):
    """One of several beats on the same slots."""

    def __init__(self, slots: list[float]) -> None:
        super().__init__()
        self.slots = slots
        self.late: list[float] = []

    def next_deadlines(self, claimable: Any, after: datetime | None = None) -> NextDeadlines:
        if after is None:
            self.due_at = self.at(self.slots[0]) if self.slots else None
        return super().next_deadlines(claimable, after)

    def fire(self) -> DispatchResult:
        self._ask("fire")
        self.fired.append(self.time)
        found = [slot for slot in self.slots if slot <= self.time]
        del self.slots[: len(found)]
        self.late += [self.time - slot for slot in found]
        self.time += WALK
        return DispatchResult(bool(found), False)


def play(beats: int, dies_after: float = math.inf) -> list[Shared]:
    """Let so many beats fire the same random slots; the busiest one may die."""
    chance = random.Random(5)
    slots = sorted(SECONDS * chance.random() for _ in range(RATE * SECONDS))
    houses = [Shared(slots) for _ in range(beats)]
    alive = list(houses)
    while slots:
        house = min(alive, key=Shared.clock)
        if house.time >= dies_after:
            alive.remove(max(alive, key=lambda each: len(each.fired)))
            dies_after = math.inf
            continue
        house.time += max(house.tick(), 0.0001)
    return houses


@pytest.mark.parametrize(("notice", "most"), [(5.0, 15), (0.0, 8)])
@pytest.mark.parametrize("longest", [1000.0, 1.0])
def test_an_idle_beat_asks_the_database_little(notice: float, most: int, longest: float) -> None:
    house = House(notice=notice)
    house.live(59)
    house.asked.clear()
    house.live(600, longest)
    assert sum(house.asked.values()) <= 10 * most + 1, house.asked


def test_a_beat_fires_when_something_is_due_and_not_before() -> None:
    house = House()
    house.due_at = house.at(7.25)
    house.live(20)
    assert house.fired == [pytest.approx(7.25, abs=0.011)]


@pytest.mark.parametrize("is_away", [False, True])
def test_a_beat_asks_its_broker_before_a_slot_is_due(is_away: bool) -> None:
    house = House()
    house.due_at, house.broker_is_away = house.at(0.5), is_away
    house.live(0.4, longest=0.1)  # no tick ends with an error while there is time
    assert house.connected == [0.0]


def test_a_change_is_noticed_within_the_notice_interval() -> None:
    house = House()
    house.live(12)
    house.due_at, house.counter = house.now(), 1
    changed = house.time
    house.live(10)
    assert len(house.fired) == 1 and house.fired[0] - changed <= 5.01


@pytest.mark.parametrize("after", [-1.0, 0.0, 3.0, 30.0])
def test_a_one_off_is_noticed_within_the_notice_interval_without_any_change_counted(after: float) -> None:
    house = House()
    house.due_at = house.at(1000.0)
    house.live(7.0)
    submitted, house.submitted_at = house.time, house.at(house.time + after)
    house.due_at = house.submitted_at
    house.live(40)
    assert len(house.fired) == 1 and max(after, 0.0) <= house.fired[0] - submitted <= max(after, 5.0) + 0.05


def test_a_deadline_of_another_app_is_looked_at_once() -> None:
    house = House()
    house.due_at, house.submitted_at = house.at(1000.0), house.at(20.0)
    house.live(55)
    assert house.asked["next_deadlines"] == 2, "the first one, and that for what another app waits for"


@pytest.mark.parametrize("ran_for", [0.3, 2.3, 8.0, 600.0])
@pytest.mark.parametrize("notice", [5.0, 0.0])
def test_the_end_of_a_run_is_noticed_within_a_tenth_of_its_time_and_a_second(notice: float, ran_for: float) -> None:
    house = House(notice=notice)
    house.due_at, house.leases_until = house.at(7.0), house.at(10_000)
    house.live(7.0 + ran_for, longest=0.01)
    ended_at, house.lease_ends_at = house.time, None
    house.due_at = house.now()
    house.counter += 1
    house.live(6)
    assert 0 <= house.fired[-1] - ended_at <= max(0.05, min(1.0, ran_for / 10)) + 0.03


def test_a_long_run_costs_little_more_than_a_look_a_second() -> None:
    house = House()
    house.lease_ends_at = house.at(100_000)
    house.live(60)
    house.asked.clear()
    house.live(600)
    assert house.asked["changes"] <= 600


def test_what_is_due_but_held_by_others_does_not_keep_a_beat_busy() -> None:
    house = House()
    house.due_at, house.answers = NOON, [DispatchResult(False, False)] * 1000
    assert house.live(30) < 60


def test_a_race_that_was_lost_makes_a_slot_soon_after_it_late_by_the_lag_at_most() -> None:
    house = House()
    house.due_at, house.answers = NOON, [DispatchResult(False, False)]
    house.tick()
    house.due_at = house.at(0.5)
    house.live(2)
    assert 0.5 <= house.fired[-1] <= 0.5 + LAG + 0.011


def test_a_race_that_was_lost_does_not_make_a_later_slot_late() -> None:
    house = House()
    house.due_at, house.answers = NOON, [DispatchResult(False, False)] * 9
    house.live(2)
    house.due_at = house.at(house.time + 2.5)
    due = house.time + 2.5
    house.answers.clear()
    house.live(10)
    assert house.fired[-1] == pytest.approx(due, abs=0.011)


def test_several_beats_wake_hardly_more_often_than_one() -> None:
    alone, together = play(1), play(4)
    (one,) = alone
    assert one.fired and sum(len(house.fired) for house in together) < 1.1 * len(one.fired)
    assert sum(house.asked["next_deadlines"] for house in together) < 2 * one.asked["next_deadlines"]


def test_beats_take_turns_at_being_the_fastest() -> None:
    assert all(house.late for house in play(2))


@pytest.mark.parametrize("beats", [1, 4])
def test_however_many_beats_there_are_no_slot_is_late(beats: int) -> None:
    late = [seconds for house in play(beats) for seconds in house.late]
    assert len(late) == RATE * SECONDS and max(late) < 0.011 + WALK


def test_where_the_fastest_beat_dies_the_next_slot_is_late_by_the_lag_at_most() -> None:
    late = [seconds for house in play(2, dies_after=1.0) for seconds in house.late]
    assert len(late) == RATE * SECONDS and max(late) <= LAG + 0.011 + 2 * WALK


def test_a_beat_is_on_time_again_once_it_has_got_something() -> None:
    house = Shared([0.05, 0.1, 0.5])
    house.live(0.01)
    del house.slots[0]  # another beat was faster
    house.live(1)
    assert house.fired[1:] == [pytest.approx(0.1 + LAG, abs=0.011), pytest.approx(0.5, abs=0.011)]


def test_a_beat_that_got_something_is_on_time_for_what_came_meanwhile() -> None:
    house = Shared([0.05, 0.05 + WALK / 2])
    house.live(1)
    assert house.fired == [pytest.approx(0.05, abs=0.0025), pytest.approx(0.05, abs=0.0155)]


def test_what_a_beat_slept_for_is_claimed_without_another_look() -> None:
    house = Shared([0.05])
    house.live(0.04)
    house.asked.clear()
    house.live(0.02)
    assert house.fired and house.asked["next_deadlines"] == 1  # for what comes after it


def test_a_lease_that_ends_is_taken_over_on_a_busy_table_too() -> None:
    house = Shared([number / RATE for number in range(RATE)])
    house.lease_ends_at = house.at(0.5)
    house.live(0.55)
    assert len(house.fired) > 30 and house.asked["reclaim"] == 1


def test_what_an_operator_took_away_makes_no_beat_late() -> None:
    house = House()
    house.due_at = house.at(3)
    house.live(2)
    house.due_at, house.counter = None, 1
    house.live(3)
    house.due_at, house.counter = house.at(20), 2
    house.live(20)
    assert house.fired == [pytest.approx(20, abs=0.011)]


def test_a_slot_at_the_end_of_the_calendar_is_waited_for_after_a_lost_race() -> None:
    house = House()
    house.due_at, house.answers = NOON, [DispatchResult(False, False)]
    house.tick()
    house.due_at = datetime.max.replace(tzinfo=timezone.utc)
    house.live(5)
    assert len(house.fired) == 1


def test_a_full_batch_is_followed_by_the_next_at_once() -> None:
    house = House()
    house.due_at, house.answers = NOON, [DispatchResult(True, True)] * 5
    house.live(0.01)
    assert len(house.fired) == 6


def test_a_batch_that_was_just_full_is_no_race_that_was_lost() -> None:
    house = House()
    house.due_at, house.answers = NOON, [DispatchResult(True, True), DispatchResult(False, False)]
    house.tick()
    house.due_at = house.at(0.5)
    house.live(1)
    assert house.fired[-1] == pytest.approx(0.5, abs=0.0025)


def test_a_row_that_cannot_be_had_makes_no_other_late() -> None:
    house = House()
    house.due_at, house.answers = NOON, [DispatchResult(False, False)] * 1000
    house.live(10)
    due = house.time + 1.9
    house.later_at = house.at(due)
    house.live(3)
    assert min(abs(at - due) for at in house.fired) < 0.0025


def test_full_batches_need_no_look_in_between_but_once_a_second() -> None:
    house = House()
    house.due_at, house.answers = NOON, [DispatchResult(True, True)] * 30
    while not house.asked["fire"] > 30:
        house.time += 0.1
        house.tick()
    assert house.asked["next_deadlines"] <= 1 + 3 + 1


def test_ended_leases_are_looked_at_while_full_batches_go_on() -> None:
    house = House()
    house.due_at, house.answers = NOON, [DispatchResult(True, True)] * 30
    house.tick()
    house.lease_ends_at = NOON
    for _ in range(11):
        house.time += 0.1
        house.tick()
    assert house.answers and house.asked["reclaim"] == 1


def test_leases_that_may_not_be_taken_yet_do_not_keep_a_beat_busy() -> None:
    house = House()
    house.lease_ends_at = NOON
    assert house.live(PATIENCE) < 2 * PATIENCE
    assert house.asked["reclaim"] <= PATIENCE + 1


@pytest.mark.parametrize("absence", [DatabaseUnavailable("away"), DatabaseUncertain("a fail-over")])
def test_after_an_outage_leases_are_left_to_their_holders_for_a_while(absence: StoreError) -> None:
    house = House()
    house.absence = absence
    house.live(PATIENCE + 61)
    assert house.reclaim_guard.may_reclaim()
    house.is_away = True
    house.time += 60
    with pytest.raises(type(absence)):
        house.tick()
    house.is_away = False
    house.tick()
    assert not house.reclaim_guard.may_reclaim()
    house.live(PATIENCE)
    assert house.reclaim_guard.may_reclaim()


def test_a_beat_that_begins_in_an_outage_leaves_leases_to_their_holders_after_it() -> None:
    house = House()
    house.is_away = True
    house.time += PATIENCE + 61
    with pytest.raises(DatabaseUnavailable):
        house.tick()
    house.is_away = False
    house.tick()
    assert not house.reclaim_guard.may_reclaim()


@pytest.mark.parametrize(
    "error", [DatabaseBusy("locked"), StoreError("refused"), BrokerUnavailable("away"), ValueError("odd")]
)
def test_what_has_ended_and_cannot_be_taken_over_holds_up_nothing_that_is_due(error: Exception) -> None:
    house = House(notice=0.2)
    house.lease_ends_at, house.reclaim_error = NOON, error
    for second in range(30):
        house.due_at, house.counter = house.at(second), second
        house.live(1.0)
    assert len(house.fired) == 30
    assert 5 <= house.asked["reclaim"] <= 20
    house.live(PATIENCE)  # a lease that ended is no outage
    assert house.reclaim_guard.may_reclaim()


def test_a_row_that_is_to_be_recorded_is_not_slept_through() -> None:
    house = House()
    house.tick()
    house.seconds_left = 0.2
    assert house.tick() == 0.2


def test_what_another_thread_of_the_beat_changed_is_looked_at_with_the_next_tick() -> None:
    house = House()
    house.live(20.0)
    house.asked.clear()
    house.tick()
    looks = house.asked.copy()
    house.deadlines.stir()
    house.tick()
    house.tick()
    assert house.asked["next_deadlines"] == looks["next_deadlines"] + 1


def test_the_first_tick_fires_what_is_due() -> None:
    house = House()
    house.due_at = NOON
    house.tick()
    assert house.fired == [0.0]
