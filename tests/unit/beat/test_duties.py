"""Duties of a beat beside firing: none of them holds up another, whatever one raises."""

import itertools
import threading
from collections.abc import Callable

import pytest

from celery_sqlbeat.beat.duties import Background, Duties, Duty, PollGrid
from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, StoreError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def duty(clock: Clock, work: Callable[[], float]) -> Duty:
    return Duty("what is tested", work, clock, lambda: 1.0)


def failing(error: Exception, log: list[float], clock: Clock) -> Callable[[], float]:
    def work() -> float:
        log.append(clock.now)
        raise error

    return work


@pytest.mark.parametrize(
    "error", [DatabaseBusy("locked"), StoreError("refused"), ValueError("odd"), DatabaseUnavailable("no")]
)
def test_a_duty_that_fails_holds_up_no_other(error: Exception) -> None:
    clock, tried, done = Clock(), list[float](), list[float]()

    def work() -> float:
        done.append(clock.now)
        return 1.0

    duties = Duties("tested", [duty(clock, failing(error, tried, clock)), duty(clock, work)], clock)
    while clock.now < 60:
        clock.now += max(duties(), 0.001)
    assert len(done) == 60
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    longest = 1.0 if isinstance(error, (DatabaseBusy, DatabaseUnavailable)) else 30.0
    assert pauses[0] < 0.5 and max(pauses) <= longest + 0.01


def test_a_duty_is_done_when_it_says() -> None:
    clock, done = Clock(), list[float]()

    def work() -> float:
        done.append(clock.now)
        return 7.0

    duties = Duties("tested", [duty(clock, work)], clock)
    assert duties() == 7.0
    clock.now = 6.0
    assert duties() == 1.0 and done == [0.0]


def test_a_thread_ends_when_it_is_asked_to() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> float:
        begun.set()
        assert go_on.wait(10)
        return 0.0

    thread = Background(Duties("tested", [Duty("what is tested", work)]))
    assert begun.wait(10)
    thread.end()
    go_on.set()
    thread.wait()
    assert "sqlbeat-tested" not in {each.name for each in threading.enumerate()}


@pytest.mark.parametrize(("now", "left"), [(0.0, 300.0), (90.0, 210.0), (300.0, 240.0), (320.0, 220.0), (535.0, 245.0)])
def test_a_rare_duty_keeps_to_its_polls_whenever_it_was_done(now: float, left: float) -> None:
    clock = Clock()
    grid = PollGrid(60.0, clock)
    clock.now = now
    assert grid.until(5, 4) == left
