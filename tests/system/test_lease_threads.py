"""The threads of a keeper: asleep until something is to be done, and none in the way of another."""

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_sqlbeat.environment import Wakeup
from celery_sqlbeat.worker.lease.manager import BEAT, SERVE, WATCH, LeaseManager
from celery_sqlbeat.worker.runtime import LeaseThreads

PATIENCE = 30.0  # seconds


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Calls:
    """A keeper of which only the calls are noted."""

    def __init__(self) -> None:
        self.calls = {SERVE: 0, BEAT: 0, WATCH: 0}
        self.hold = threading.Event()
        self.hold.set()
        self.fails = False
        self.is_idle = True
        self.closed = False

    def serve(self) -> float:
        self.calls[SERVE] += 1
        self.hold.wait(PATIENCE)
        if self.fails:
            self.fails = False
            raise RuntimeError("nobody expected this")
        return float("inf")

    def beat(self) -> float:
        self.calls[BEAT] += 1
        return float("inf")

    def watch(self) -> float:
        self.calls[WATCH] += 1
        return 0.01

    def close(self) -> None:
        self.closed = True


def engine_of(steps: Calls) -> LeaseThreads:
    return LeaseThreads(lambda wake: cast(LeaseManager, cast(Any, steps)))


def test_each_step_runs_at_once_sleeps_and_is_woken() -> None:
    steps = Calls()
    lease_threads = engine_of(steps)
    lease_threads.start()
    wait_for(lambda: steps.calls[SERVE] == 1 and steps.calls[BEAT] == 1)
    lease_threads.wake(SERVE)
    wait_for(lambda: steps.calls[SERVE] == 2)
    assert steps.calls[BEAT] == 1
    lease_threads.wake(BEAT)
    wait_for(lambda: steps.calls[BEAT] == 2)
    assert lease_threads.stop(1.0) and steps.closed


def test_a_step_comes_again_when_it_said() -> None:
    steps = Calls()
    lease_threads = engine_of(steps)
    lease_threads.start()
    wait_for(lambda: steps.calls[WATCH] >= 5)
    lease_threads.stop(1.0)


def test_a_statement_that_hangs_delays_neither_heartbeats_nor_stops() -> None:
    steps = Calls()
    steps.hold.clear()
    lease_threads = engine_of(steps)
    lease_threads.start()
    wait_for(lambda: steps.calls[SERVE] == 1)
    watched = steps.calls[WATCH]
    lease_threads.wake(BEAT)
    wait_for(lambda: steps.calls[BEAT] == 2 and steps.calls[WATCH] > watched + 3)
    steps.hold.set()
    lease_threads.stop(1.0)


def test_an_error_that_nobody_expected_is_logged_and_the_step_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    steps = Calls()
    steps.fails = True
    lease_threads = engine_of(steps)
    lease_threads.start()
    wait_for(lambda: "nobody expected this" in caplog.text)
    lease_threads.wake(SERVE)
    wait_for(lambda: steps.calls[SERVE] >= 2)
    lease_threads.stop(1.0)


def test_stopping_waits_until_everything_is_written_but_not_for_ever() -> None:
    steps = Calls()
    steps.is_idle = False
    lease_threads = engine_of(steps)
    lease_threads.start()
    assert not lease_threads.stop(0.05)
    steps.is_idle = True
    assert lease_threads.stop(PATIENCE)


def test_an_alarm_that_rings_before_the_sleep_is_heard() -> None:
    wakeup = Wakeup()
    wakeup.ring()
    wakeup.ring()
    began = time.monotonic()
    wakeup.sleep(PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    wakeup.sleep(0.01)  # rung twice, heard once


def test_an_alarm_under_fire_loses_no_ring() -> None:
    wakeup, rung, heard = Wakeup(), [0], [0]

    def hear() -> None:
        while heard[0] < 2000:
            wakeup.sleep(PATIENCE)
            heard[0] = rung[0]

    listener = threading.Thread(target=hear)
    listener.start()
    for _ in range(2000):
        rung[0] += 1
        wakeup.ring()
    listener.join(PATIENCE)
    assert not listener.is_alive()
