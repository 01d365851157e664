"""Which runs go on for several intervals of their job."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.model import CODE_SCHEDULE, RunningJob
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.run_times import LongRun, long_runs

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
RULES = Rules(Policies(), "UTC", 120.0, 3)


def found(seconds: float, schedule: Any = "every 10s", policies: str | None = None) -> list[LongRun]:
    began = NOON - timedelta(seconds=seconds)
    row = RunningJob(
        "j1", "nightly", "app.t", schedule, None, None, None, None, None, policies, None, "r1", "w1", began, NOON
    )
    return list(long_runs([row], RULES))


@pytest.mark.parametrize(
    ("seconds", "schedule", "intervals"),
    [
        (31, "every 10s", 3),
        (3601, "every 10s", 360),
        (29, "every 10s", None),
        (3 * 86400, "cron 0 3 * * *", 3),
        (86400, "cron 0 3 * * *", None),
        (10**9, "once 2020-01-01T00:00:00Z", None),
        (10**9, CODE_SCHEDULE, None),
        (10**9, "nonsense", None),
    ],
)
def test_a_run_is_long_when_three_slots_have_come_due_meanwhile(
    seconds: float, schedule: str, intervals: int | None
) -> None:
    assert [run.intervals for run in found(seconds, schedule)] == ([] if intervals is None else [intervals])


def test_a_long_run_is_told_with_its_run_its_worker_and_a_remedy() -> None:
    (run,) = found(125)
    assert str(run) == "job nightly: run r1 on w1 goes on for 12 of its intervals, 2 min"
    assert "--max-runtime" in run.remedy
    (bounded,) = found(125, policies='{"max_runtime": 600}')
    assert "its worker stops it" in bounded.remedy
