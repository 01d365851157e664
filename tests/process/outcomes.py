"""Reads the table of docs/outcomes.md, and holds rows against it."""

import re
from pathlib import Path
from typing import NamedTuple

from celery_sqlbeat.model import RunRecord
from tests.process.workers import PATIENCE, WorkerShop
from tests.support.beats import wait_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "outcomes.md"
NEXT_SLOT = "the next slot"
AFTER_THE_BACKOFF = "a new attempt, after the backoff"
AT_ONCE = ("a new attempt, at once", "a new attempt, when the lease has ended")
SAME_BY_MESSAGE = "the same attempt: its message goes back to the broker"
SAME_ELSEWHERE = "the same attempt, in a moment: its message goes to a worker that knows it"
SAME_AT_ETA = "the same attempt, at the retry's eta"


class Outcome(NamedTuple):
    """One row of the page."""

    state: str
    failures: int
    lost_leases: int
    follows: str


def page() -> dict[str, Outcome]:
    """Return the table, by how the attempt ends."""
    rows = re.findall(
        r"^\| ([^|]+?) \| `(\w+)` \| ([+ \d]*)\| ([+ \d]*)\| ([^|]+?) \|$", PAGE.read_text(), re.MULTILINE
    )
    return {
        how: Outcome(state, int(failures or 0), int(lost or 0), follows) for how, state, failures, lost, follows in rows
    }


def assert_outcome(shop: WorkerShop, job: str, how: str, attempt: int = 1) -> RunRecord:
    """Wait until an attempt of a job has ended as the page says of this way to end.

    What follows must be so, too.
    """
    expected = page()[how]

    def found() -> list[RunRecord]:
        return [run for run in shop.attempts(job) if run.attempt == attempt and run.state == expected.state]

    wait_for(found, PATIENCE, lambda: f"{job}: {how}: {expected}\n{shop.attempts(job)}\n{shop.logs()}")
    (run,) = found()
    before = [each for each in shop.attempts(job) if each.attempt == attempt - 1]
    failures, lost = (before[0].failures, before[0].lost_leases) if before else (0, 0)
    told = f"{job}: {how}\n{run}\n{shop.job(job)}\n{shop.logs()}"
    assert (run.failures - failures, run.lost_leases - lost) == (expected.failures, expected.lost_leases), told
    row, follows = shop.job(job), expected.follows
    if follows in (SAME_AT_ETA, SAME_BY_MESSAGE):
        assert row.locked_by is not None and row.run_id == run.run_id, told
        return run
    if len(shop.attempts(job)) > attempt:
        assert follows != NEXT_SLOT, told
        return run
    assert row.locked_by is None, told
    if follows == SAME_ELSEWHERE:
        assert row.next_run_time == run.scheduled_for and row.retry_at is not None and run.reason, told
        return run
    assert run.finished_at is not None, told
    if follows == NEXT_SLOT:
        assert row.retry_at is None and row.next_run_time > run.scheduled_for, told
        assert (row.last_run_time is not None) == (run.state == "success"), told
    else:
        assert row.next_run_time == run.scheduled_for and row.retry_at is not None, told
        if follows == AFTER_THE_BACKOFF:
            assert row.retry_at >= run.finished_at, told
        else:
            assert follows in AT_ONCE and row.retry_at <= row.now, told
    went_wrong = expected.failures > 0 or run.state == "dlq" or run.reason == "result not stored"
    assert (run.error is not None) == went_wrong, told
    return run
