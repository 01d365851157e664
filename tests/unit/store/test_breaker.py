"""The circuit breaker.

Opens after failures in a row, lets one probe through at a time, and closes on an answer.
"""

from itertools import pairwise

import pytest

from celery_sqlbeat.store.faults import Breaker


class Clock:
    """A clock that stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock, random: float = 1.0) -> Breaker:
    breaker = Breaker(clock, lambda: random)
    breaker.failed()
    breaker.failed()
    return breaker


def test_one_failure_is_an_ordinary_day() -> None:
    breaker = Breaker(Clock())
    breaker.failed()
    assert not breaker.is_open
    assert breaker.seconds_to_wait() == 0


def test_two_failures_in_a_row_open_it_and_callers_hear_at_once() -> None:
    breaker = opened(Clock())
    assert breaker.is_open
    assert breaker.seconds_to_wait() > 0


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker(Clock())
    for _ in range(5):
        breaker.failed()
        breaker.succeeded()
    assert not breaker.is_open


def test_after_the_wait_one_caller_probes_and_the_others_wait_on() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += breaker.seconds_to_wait()
    assert breaker.seconds_to_wait() == 0
    assert breaker.seconds_to_wait() > 0


def test_a_probe_that_never_reports_is_followed_by_another() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += breaker.seconds_to_wait()
    breaker.seconds_to_wait()
    clock.now += breaker.seconds_to_wait()
    assert breaker.seconds_to_wait() == 0


def test_a_successful_probe_closes_it_for_all() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += breaker.seconds_to_wait()
    breaker.seconds_to_wait()
    breaker.succeeded()
    assert not breaker.is_open
    assert [breaker.seconds_to_wait() for _ in range(3)] == [0, 0, 0]


def test_the_waits_grow_up_to_half_a_second() -> None:
    clock = Clock()
    breaker = opened(clock)
    waits = []
    for _ in range(12):
        waits.append(breaker.seconds_to_wait())
        clock.now += waits[-1]
        assert breaker.seconds_to_wait() == 0
        breaker.failed()
    assert all(sooner <= later for sooner, later in pairwise(waits))
    assert waits[-1] == waits[-2] == 0.5


def test_the_waits_stay_below_a_shorter_heartbeat_too() -> None:
    clock = Clock()
    breaker = Breaker(clock, lambda: 1.0, longest=0.1)
    for _ in range(12):
        breaker.failed()
    assert breaker.seconds_to_wait() == pytest.approx(0.1)


def test_half_of_the_wait_is_jitter() -> None:
    longest = opened(Clock(), 1.0).seconds_to_wait()
    assert opened(Clock(), 0.0).seconds_to_wait() == longest / 2
