"""What a task sees of the run that it is the body of."""

from datetime import datetime, timezone

import pytest

from celery_sqlbeat.errors import LeaseLost, RunCancelled, SqlbeatError
from celery_sqlbeat.worker.current import CurrentRun

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)


def test_a_task_sees_its_run_and_whether_its_lease_is_lost() -> None:
    lost = [False]
    run = CurrentRun("nightly", NOON, 2, 17, lambda: lost[0], "run", "job")
    assert (run.job_name, run.scheduled_for, run.attempt, run.fence) == ("nightly", NOON, 2, 17)
    assert (run.run_id, run.job_id) == ("run", "job")
    assert not run.lost
    run.check()
    lost[0] = True
    with pytest.raises(LeaseLost, match=r"'nightly' for 2027-03-01T12:00:00\+00:00, attempt 2") as raised:
        run.check()
    assert isinstance(raised.value, SqlbeatError) and run.lost


def test_a_cancelled_run_has_not_lost_its_lease() -> None:
    run = CurrentRun("nightly", NOON, 2, 17, lambda: False, "run", "job", lambda: True)
    assert run.cancelled and not run.lost
    with pytest.raises(RunCancelled, match=r"'nightly' for .*, attempt 2, was cancelled"):
        run.check()
    assert not issubclass(RunCancelled, LeaseLost)


def test_a_run_shows_itself_without_a_secret() -> None:
    assert repr(CurrentRun("nightly", NOON, 2, 17, lambda: False, "run", "job")) == (
        "<run of 'nightly' for 2027-03-01T12:00:00+00:00, attempt 2>"
    )
