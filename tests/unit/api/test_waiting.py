"""To wait for the end of a run is to poll it, ever more rarely, and no longer than was asked."""

from datetime import datetime, timezone
from typing import Any

import pytest

from celery_sqlbeat import environment
from celery_sqlbeat.api.records import Run
from celery_sqlbeat.api.waiting import wait_for_end
from celery_sqlbeat.errors import DatabaseUnavailable, FieldError, NoSuchRun, RunNotEnded

NOW = datetime(2027, 1, 1, tzinfo=timezone.utc)


def run(state: str, kind: str = "one_off") -> Run:
    """Return a run in a state."""
    empty: dict[str, Any] = dict.fromkeys(Run.__dataclass_fields__)
    return Run(**{**empty, "id": "one", "kind": kind, "state": state, "scheduled_for": NOW})


class Time:
    """A clock that only pauses move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(environment, "monotonic", lambda: self.now)

    def pause(self, seconds: float) -> None:
        """Let the time pass."""
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_the_ended_run_is_returned(time: Time) -> None:
    states = iter(["claimed", "running", "retry", "scheduled", "success"])
    assert wait_for_end(lambda _: run(next(states)), "one", 10, time.pause).state == "success"
    assert len(time.pauses) == 4


def test_an_attempt_of_a_job_has_ended_although_another_follows(time: Time) -> None:
    assert wait_for_end(lambda _: run("retry", "schedule"), "one", 10, time.pause).state == "retry"


def test_polls_are_ever_further_apart_and_end_in_time(time: Time) -> None:
    with pytest.raises(RunNotEnded, match="run one is running after 60 s") as late:
        wait_for_end(lambda _: run("running"), "one", 60, time.pause)
    assert isinstance(late.value, TimeoutError)
    assert time.now == pytest.approx(60, abs=0.01)
    assert 20 < len(time.pauses) < 80
    assert max(time.pauses[:3]) < 0.1 < max(time.pauses[20:]) <= 3.0


def test_what_is_not_there_is_not_waited_for(time: Time) -> None:
    with pytest.raises(NoSuchRun):
        wait_for_end(lambda _: None, "one", 60, time.pause)
    assert time.pauses == []


def test_an_outage_is_waited_through_but_not_for_longer(time: Time) -> None:
    def away(_: object) -> Run:
        if time.now < 5:
            raise DatabaseUnavailable("away")
        return run("success")

    assert wait_for_end(away, "one", 10, time.pause).state == "success"
    time.now = 0.0
    with pytest.raises(DatabaseUnavailable):
        wait_for_end(away, "one", 3, time.pause)


@pytest.mark.parametrize("timeout", [-1, "soon", None, float("nan")])
def test_a_time_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(FieldError, match="timeout"):
        wait_for_end(lambda _: run("success"), "one", timeout)
