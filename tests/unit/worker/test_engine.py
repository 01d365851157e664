"""The threads of a keeper: asleep until something is to be done, and none in the way of another."""

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_sqlbeat.store.steps import Steps
from celery_sqlbeat.worker.alarm import Alarm
from celery_sqlbeat.worker.engine import Engine
from celery_sqlbeat.worker.keeper import BEAT, SERVE, WATCH, Keeper

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

    def serving(self) -> Steps[float]:
        yield None
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


def engine_of(steps: Calls) -> Engine:
    return Engine(lambda wake: cast(Keeper, cast(Any, steps)))


def test_each_step_runs_at_once_sleeps_and_is_woken() -> None:
    steps = Calls()
    engine = engine_of(steps)
    engine.start()
    wait_for(lambda: steps.calls[SERVE] == 1 and steps.calls[BEAT] == 1)
    engine.wake(SERVE)
    wait_for(lambda: steps.calls[SERVE] == 2)
    assert steps.calls[BEAT] == 1
    engine.wake(BEAT)
    wait_for(lambda: steps.calls[BEAT] == 2)
    assert engine.stop(1.0) and steps.closed


def test_a_step_comes_again_when_it_said() -> None:
    steps = Calls()
    engine = engine_of(steps)
    engine.start()
    wait_for(lambda: steps.calls[WATCH] >= 5)
    engine.stop(1.0)


def test_a_statement_that_hangs_delays_neither_heartbeats_nor_stops() -> None:
    steps = Calls()
    steps.hold.clear()
    engine = engine_of(steps)
    engine.start()
    wait_for(lambda: steps.calls[SERVE] == 1)
    watched = steps.calls[WATCH]
    engine.wake(BEAT)
    wait_for(lambda: steps.calls[BEAT] == 2 and steps.calls[WATCH] > watched + 3)
    steps.hold.set()
    engine.stop(1.0)


def test_an_error_that_nobody_expected_is_logged_and_the_step_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    steps = Calls()
    steps.fails = True
    engine = engine_of(steps)
    engine.start()
    wait_for(lambda: "nobody expected this" in caplog.text)
    engine.wake(SERVE)
    wait_for(lambda: steps.calls[SERVE] >= 2)
    engine.stop(1.0)


def test_stopping_waits_until_everything_is_written_but_not_for_ever() -> None:
    steps = Calls()
    steps.is_idle = False
    engine = engine_of(steps)
    engine.start()
    assert not engine.stop(0.05)
    steps.is_idle = True
    assert engine.stop(PATIENCE)


def test_an_alarm_that_rings_before_the_sleep_is_heard() -> None:
    alarm = Alarm()
    alarm.ring()
    alarm.ring()
    began = time.monotonic()
    alarm.sleep(PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    alarm.sleep(0.01)  # rung twice, heard once


def test_an_alarm_under_fire_loses_no_ring() -> None:
    alarm, rung, heard = Alarm(), [0], [0]

    def hear() -> None:
        while heard[0] < 2000:
            alarm.sleep(PATIENCE)
            heard[0] = rung[0]

    listener = threading.Thread(target=hear)
    listener.start()
    for _ in range(2000):
        rung[0] += 1
        alarm.ring()
    listener.join(PATIENCE)
    assert not listener.is_alive()
