"""The audit finds what must not be.

Each test but the first feeds it a history that is wrong in one way.
"""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_sqlbeat.api.audit import Audit, audit
from celery_sqlbeat.model import JobRecord, RunRecord

START = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
STEP = timedelta(seconds=10)


def at(slot: float) -> datetime:
    return START + slot * STEP


def run(slot: float, state: str = "success", attempt: int = 1, **fields: Any) -> RunRecord:
    values: dict[str, Any] = dict.fromkeys(RunRecord._fields)
    values.update(
        run_id=f"run-{slot}-{attempt}",
        job_name="report",
        kind="schedule",
        scheduled_for=at(slot),
        slot_count=1,
        attempt=attempt,
        state=state,
        failures=0,
        lost_leases=0,
    )
    if state in ("success", "running", "retry", "dlq"):
        values["started_at"] = at(slot + attempt / 10)
    if state in ("success", "retry", "dlq"):
        values["finished_at"] = at(slot + attempt / 10 + 0.05)
    return RunRecord(**{**values, **fields})


def job(next_slot: float, **fields: Any) -> JobRecord:
    values: dict[str, Any] = {**dict.fromkeys(JobRecord._fields), "job_name": "report", "next_run_time": at(next_slot)}
    return JobRecord(**{**values, **fields})


def verdict(*runs: RunRecord, job: JobRecord | None = None, begun: tuple[str, ...] = ()) -> Audit:
    return audit(runs, {"report": job} if job else {}, {"report": lambda slot: slot + STEP}, begun)


GOOD = (
    run(0),
    run(1, "retry", 1, failures=1, finished_at=at(1.15)),
    run(1, "dlq", 2, failures=2),
    run(2, "retry", 1, lost_leases=1, finished_at=at(2.18)),
    run(2, "success", 2, lost_leases=1),
    run(3, "skipped", last_slot=at(5), slot_count=3),
    run(6),
)


def test_a_good_history_is_clean() -> None:
    found = verdict(*GOOD, job=job(7), begun=("run-0-1", "run-6-1"))
    assert found.findings == []
    assert str(found) == "slots: 7  duplicates: 0  lost: 0  taken over: 1"
    assert found.is_clean


def test_a_hole_in_the_history_is_a_loss() -> None:
    found = verdict(run(0), run(1), run(4), job=job(5))
    assert (found.duplicates, found.lost, found.is_clean) == (0, 2, False)
    assert [at(2).isoformat(sep=" ") in each for each in found.findings] == [True, False]


def test_a_hole_at_the_end_is_a_loss_too() -> None:
    assert verdict(run(0), run(1), job=job(4)).lost == 2


def test_a_hole_inside_a_crowd_of_gaps_is_a_loss() -> None:
    assert verdict(run(0, "skipped", last_slot=at(2), slot_count=3), run(4)).lost == 1


def test_a_slot_that_succeeded_and_ran_again_is_a_duplicate() -> None:
    found = verdict(run(0), run(1), run(1, attempt=2))
    assert (found.duplicates, found.lost, found.is_clean) == (1, 0, False)


def test_the_same_attempt_twice_is_a_duplicate() -> None:
    twice = run(0, "dlq", started_at=None)
    assert verdict(twice, twice._replace(run_id="other")).duplicates == 1


def test_a_body_that_began_twice_is_a_duplicate() -> None:
    found = verdict(run(0), begun=("run-0-1", "run-0-1"))
    assert found.duplicates == 1
    assert "run-0-1 began 2 times" in found.findings[0]


def test_two_runs_of_one_job_at_a_time_are_a_duplicate() -> None:
    assert verdict(run(0, finished_at=at(1.5)), run(1)).duplicates == 1


def test_a_run_that_never_ended_overlaps_its_successor() -> None:
    assert verdict(run(0, "running"), run(1), job=job(2, run_id="run-0-1")).duplicates == 1


def test_a_slot_that_was_both_skipped_and_run_is_a_duplicate() -> None:
    assert verdict(run(0, "skipped", last_slot=at(2), slot_count=3), run(1), run(3)).duplicates >= 1


def test_a_slot_beside_the_grid_is_a_duplicate() -> None:
    assert verdict(run(0), run(0.5), run(1)).duplicates >= 1


@pytest.mark.parametrize("state", ["scheduled", "claimed", "running", "retry"])
def test_an_open_run_that_nothing_stands_for_is_lost(state: str) -> None:
    assert verdict(run(0), run(1, state), job=job(2)).lost == 1


@pytest.mark.parametrize(
    ("state", "fields", "row"),
    [
        ("running", {}, {"run_id": "run-1-1"}),
        ("claimed", {}, {"run_id": "run-1-1"}),
        ("retry", {}, {"retry_at": START}),
        ("scheduled", {"due_at": START}, {}),
    ],
)
def test_an_open_run_that_somebody_will_take_up_is_not_lost(
    state: str, fields: dict[str, Any], row: dict[str, Any]
) -> None:
    assert verdict(run(0), run(1, state, **fields), job=job(2, **row)).is_clean


def test_a_job_without_a_grid_is_judged_by_its_attempts_alone() -> None:
    assert audit([run(0), run(7.3)], {}, {}).is_clean


def test_an_empty_history_is_clean() -> None:
    assert str(verdict()) == "slots: 0  duplicates: 0  lost: 0  taken over: 0"
