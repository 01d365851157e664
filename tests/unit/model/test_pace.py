"""A job whose runs take longer than its period is told, with what its policy makes of that."""

from datetime import datetime, timedelta, timezone
from typing import NamedTuple

import pytest

from celery_sqlbeat.config.policy import OVERLAPS, Policy
from celery_sqlbeat.model.definition import Call, Definition
from celery_sqlbeat.model.run_times import MOST_RUNS_COMPARED, slow_job
from celery_sqlbeat.schedule import Timeline, parse, zone_named

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)


class Run(NamedTuple):
    scheduled_for: datetime
    started_at: datetime | None
    finished_at: datetime | None


def took(seconds: float | None) -> Run:
    return Run(NOON, NOON, None if seconds is None else NOON + timedelta(seconds=seconds))


def job(schedule: str = "every 15s", cadence: str = "from_start", overlap: str = "queue") -> Definition:
    timeline = Timeline(parse(schedule), zone_named("UTC"), 0.0, cadence)
    return Definition(Call("t", (), {}, {}), timeline, Policy(overlap=overlap), 120.0, 3)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_job_whose_runs_take_longer_than_its_period_is_told_with_its_policy(overlap: str) -> None:
    found = slow_job("slow", job(overlap=overlap), [took(25), took(26), took(None), took(24)])
    assert found is not None
    assert str(found).startswith("the runs of job slow take about 25 s, longer than its period of 15 s: ")
    assert f"(overlap={overlap})" in str(found)
    assert found.is_chosen == (overlap in ("skip", "allow"))


@pytest.mark.parametrize(
    ("definition", "runs"),
    [
        (job(), []),
        (job(), [took(None)]),
        (job(), [took(14), took(14.9)]),
        (job(), [took(25), took(3), took(3)]),
        (job(cadence="fixed_delay"), [took(25)]),
        (job("cron 0 * * * *"), [took(3000)]),
        (job("once 2027-03-01T12:00:00Z"), [took(3000)]),
    ],
    ids=["new", "running", "in time", "seldom", "fixed delay", "hourly", "once"],
)
def test_a_job_that_keeps_its_pace_or_has_none_is_not_slow(definition: Definition, runs: list[Run]) -> None:
    assert slow_job("quick", definition, runs) is None


def test_only_the_last_runs_tell_whether_a_job_is_slow() -> None:
    assert slow_job("mended", job(), [took(1)] * MOST_RUNS_COMPARED + [took(25)] * 100) is None
    assert slow_job("cron", job("cron * * * * *"), [took(61)]) is not None
