"""How fast history is deleted, and how seldom it is asked for where nothing is old enough."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_sqlbeat.beat.housekeeping import CleanUp
from celery_sqlbeat.store.purges import OldKeys, OldNodes, OldRuns, Purged

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
HOUR = 3600.0


class House:
    """A history in which so many rows a second expire, and deleting some takes time."""

    def __init__(self, backlog: float = 0.0, rate: float = 0.0, rest: float = 0.0, statement: float = 0.02) -> None:
        self.time = 0.0
        self.backlog = backlog
        self.rate = rate
        self.statement = statement
        self.asked = 0
        self.keys = 0
        self.begun_at: list[datetime | None] = []
        self.rest = rest
        me: Any = self
        self.cleaning = CleanUp(me, 7.0, lambda: self.time)

    def purge(self, what: OldRuns | OldNodes | OldKeys) -> Purged:
        if isinstance(what, OldKeys):
            rows = min(1000, self.keys)
            self.keys -= rows
            return Purged(rows, limit=1000)
        assert what.keep_seconds == 7 * 24 * HOUR
        if isinstance(what, OldNodes):
            return Purged(0)
        self.asked += 1
        self.begun_at.append(what.after)
        self._pass(self.statement)
        rows = min(1000, int(self.backlog))
        self.backlog -= rows
        last = NOON + timedelta(seconds=self.time) if rows else None
        return Purged(rows, last=last, limit=1000, rest=self.rest)

    def _pass(self, seconds: float) -> None:
        self.time += seconds
        self.backlog += self.rate * seconds

    def live(self, seconds: float) -> None:
        end = self.time + seconds
        while self.time < end:
            self._pass(min(self.cleaning.clean(), end - self.time))


@pytest.mark.parametrize(("rate", "hours"), [(0.1, 24), (10.0, 24), (1000.0, 6), (12_000.0, 1)])
def test_rows_are_deleted_as_fast_as_they_grow_old(rate: float, hours: int) -> None:
    house = House(rate=rate)
    house.live(hours * HOUR)
    assert house.backlog <= max(10_000, 90 * rate)
    assert house.asked <= hours * HOUR * (rate / 500 + 0.01)


def test_a_backlog_is_worked_off_without_a_rest() -> None:
    house = House(backlog=200_000)
    house.live(60)
    assert house.backlog == 0


@pytest.mark.parametrize(("backlog", "seconds"), [(10_000, 5.0), (0, 0.2 * HOUR)])
def test_ended_keys_are_worked_off_once_no_history_is_old(backlog: float, seconds: float) -> None:
    house = House(backlog=backlog)
    house.keys = 10_000
    house.live(seconds)
    assert (house.backlog, house.keys) == (0, 0)


def test_where_one_writer_keeps_all_others_out_most_of_the_time_is_theirs() -> None:
    house = House(backlog=200_000, rest=3.0)
    house.live(20)
    assert house.asked * house.statement <= 20 / 4 + 1


def test_where_nothing_is_old_enough_it_is_asked_for_ever_more_rarely() -> None:
    house = House()
    house.live(HOUR)
    first = house.asked
    house.live(24 * HOUR)
    assert first <= 8 and house.asked - first <= 25


def test_a_batch_begins_where_the_last_one_ended_and_sometimes_at_the_start() -> None:
    house = House(rate=1000.0)
    house.live(HOUR)
    again = [at for at, begun in enumerate(house.begun_at) if begun is None]
    assert 5 <= len(again) <= 7
    places = [begun for begun in house.begun_at if begun is not None]
    assert places == sorted(places)
