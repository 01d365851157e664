"""The legal transitions in Python and in every schema, and what follows a failed attempt."""

import re

import pytest

from celery_sqlbeat.model.lifecycle import (
    LONGEST_REASON,
    MAX_REPUBLISHES,
    OPEN,
    OUTCOMES,
    STATES,
    TRANSITIONS,
    Backoff,
    Ending,
    ExpiredLease,
    Republish,
    after_ended_lease,
    after_failure,
    after_lost_lease,
    after_success,
    by_way_of,
    queued_seconds,
    released,
)
from celery_sqlbeat.store.sql.session import sql_folder

QUEUED = ExpiredLease("claimed", published=True, started=False, republishes=0, lease_seconds=120.0, lost_leases=0)
UNPUBLISHED = QUEUED._replace(published=False)
STARTED = QUEUED._replace(state="running", started=True)
_WAYS = re.compile(r"\(\s*State = '(?P<state>\w+)' AND PriorState IN \((?P<before>[^)]*)\)\s*\)")


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mssql"])
def test_the_schema_holds_the_same_transitions(database: str) -> None:
    """As read from the CHECK constraint; `new` is the birth of a row, which is no transition."""
    migrations = sorted((sql_folder(database) / "migrations").glob("*.sql"))
    text = [text for path in migrations if _WAYS.search(text := path.read_text(encoding="utf-8"))][-1]
    ways = [
        (before, match["state"]) for match in _WAYS.finditer(text) for before in re.findall(r"'(\w+)'", match["before"])
    ]
    assert len(ways) == len(set(ways))
    assert {way for way in ways if way[0] != "new"} == TRANSITIONS
    assert [state for before, state in ways if before == "new"] == ["scheduled"]


def test_the_transitions_are_those_of_the_contract() -> None:
    assert {after for before, after in TRANSITIONS if before == "scheduled"} == {"claimed", "skipped", "cancelled"}
    assert {after for before, after in TRANSITIONS if before == "running"} == {
        *("success", "failed", "retry", "scheduled", "skipped", "cancelled")
    }
    assert {after for before, after in TRANSITIONS if before == "failed"} == {
        *("dlq", "retry", "scheduled", "skipped", "cancelled")
    }
    assert {after for before, after in TRANSITIONS if before == "claimed"} == {
        *("running", "scheduled", "dispatched", "failed", "skipped", "cancelled")
    }
    assert {after for before, after in TRANSITIONS if before == "retry"} == {"scheduled", "skipped", "cancelled"}
    assert {after for before, after in TRANSITIONS if before == "dlq"} == {"scheduled"}
    assert {after for before, after in TRANSITIONS if before == "dispatched"} == {
        *("running", "success", "failed", "skipped", "cancelled")
    }


def test_every_open_state_can_be_skipped_or_cancelled_and_of_the_outcomes_only_dispatched() -> None:
    ended = {(before, after) for before, after in TRANSITIONS if after in ("skipped", "cancelled")}
    assert ended == {(before, after) for before in OPEN | {"dispatched"} for after in ("skipped", "cancelled")}


def test_states_are_open_or_outcomes() -> None:
    assert not OPEN & OUTCOMES
    assert {state for way in TRANSITIONS for state in way} == STATES
    assert not {before for before, _ in TRANSITIONS} & {"success", "skipped", "cancelled"}


def test_every_state_leads_to_every_outcome_that_a_worker_or_beat_decides() -> None:
    """No open state is a trap."""
    for state in OPEN:
        reached, frontier = {state}, {state}
        while frontier:
            frontier = {after for before, after in TRANSITIONS if before in frontier} - reached
            reached |= frontier
        assert reached >= OUTCOMES


@pytest.mark.parametrize(
    ("after", "way"),
    [("dlq", "failed"), ("dispatched", "claimed"), ("success", None), ("retry", None), ("scheduled", None)],
)
def test_a_dead_letter_failed_before_what_is_let_go_was_claimed_and_all_else_ran(after: str, way: str | None) -> None:
    assert by_way_of(after) == way


# What follows a success, a failure


def test_a_success_ends_a_slot_with_a_reason_or_without() -> None:
    assert after_success() == Ending("success")
    assert after_success("replaced") == Ending("success", "replaced")


def test_a_failure_is_tried_again_and_counted() -> None:
    ending = after_failure(1, 3, Backoff(2, 2, 600), lambda: 0.5, "ValueError: x", "Traceback")
    assert ending == Ending("retry", "failed", 2.0, 1, 0, "ValueError: x", "Traceback")


def test_a_failure_after_the_last_retry_is_a_dead_letter_with_its_error() -> None:
    ending = after_failure(3, 3, Backoff(), lambda: 0.5, "ValueError: x", "Traceback")
    assert ending == Ending("dlq", "retries exhausted", None, 1, 0, "ValueError: x", "Traceback")


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_there_are_as_many_retries_as_the_policy_says(max_retries: int) -> None:
    states = [after_failure(failures, max_retries, Backoff(), lambda: 0.0).state for failures in range(max_retries + 1)]
    assert states == ["retry"] * max_retries + ["dlq"]


def test_the_backoff_doubles_up_to_its_longest() -> None:
    backoff = Backoff(base=2.0, factor=2.0, longest=30.0)
    assert [backoff.seconds(failures, lambda: 1.0) for failures in range(1, 7)] == [2, 4, 8, 16, 30, 30]


def test_the_jitter_is_full() -> None:
    assert Backoff().seconds(4, lambda: 0.0) == 0.0
    assert Backoff().seconds(4, lambda: 0.25) == 4.0


def test_a_backoff_of_a_thousand_failures_is_the_longest() -> None:
    assert Backoff(10.0, 1e6, 600.0).seconds(1000, lambda: 1.0) == 600.0


# What follows a lease that was lost


def test_a_lost_lease_is_tried_again_at_once_and_counted_apart() -> None:
    assert after_lost_lease(0, 5) == Ending("retry", "lease lost", 0.0, 0, 1)


def test_a_slot_that_loses_lease_after_lease_is_a_dead_letter() -> None:
    assert [after_lost_lease(lost, 2).state for lost in range(3)] == ["retry", "retry", "dlq"]
    assert after_lost_lease(2, 2) == Ending("dlq", "too many lost leases", None, 0, 1, "lease lost 3 times")


def test_shutdowns_and_outages_count_for_nothing() -> None:
    assert after_lost_lease(99, 2, "the database was away", counted=False) == Ending(
        "retry", "the database was away", 0.0
    )


def test_a_long_reason_for_giving_back_is_cut_to_the_column() -> None:
    ending = released("x" * 1000)
    assert ending == Ending("scheduled", "x" * LONGEST_REASON, 0.0)


# What follows a lease that ended


def test_a_started_run_whose_lease_ended_is_lost() -> None:
    assert after_ended_lease(STARTED, 5, True) == after_lost_lease(0, 5)
    assert after_ended_lease(STARTED._replace(lost_leases=5), 5, True) == after_lost_lease(5, 5)
    assert after_ended_lease(STARTED._replace(lost_leases=5), 5, True, counted=False).state == "retry"  # type: ignore[union-attr]


def test_a_started_run_is_lost_though_its_message_expired() -> None:
    assert after_ended_lease(STARTED, 5, True, expired=True) == after_lost_lease(0, 5)


def test_what_was_not_published_in_time_is_given_back() -> None:
    assert after_ended_lease(UNPUBLISHED, 5, True) == released("not published in time")
    assert after_ended_lease(UNPUBLISHED, 5, True, expired=True) == released("not published in time")


def test_an_overlapping_run_that_began_only_frees_its_job() -> None:
    assert after_ended_lease(UNPUBLISHED._replace(state="running"), 5, True) == Ending("dispatched")


def test_an_expired_message_ends_its_slot() -> None:
    assert after_ended_lease(QUEUED, 5, True, expired=True) == Ending("skipped", "expired")


def test_a_queued_slot_is_republished_three_times_and_then_left_to_the_broker() -> None:
    decisions = [after_ended_lease(QUEUED._replace(republishes=n), 5, True) for n in range(MAX_REPUBLISHES + 1)]
    assert decisions == [
        Republish(240, True),
        Republish(480, True),
        Republish(960, True),
        Ending("dispatched", "never started"),
    ]


def test_without_somebody_to_take_the_copy_the_slot_waits_on_without_one() -> None:
    assert after_ended_lease(QUEUED, 5, False) == Republish(240, False)


def test_the_queued_deadline_doubles_up_to_an_hour_and_is_never_shorter_than_the_lease() -> None:
    assert [queued_seconds(120, n) for n in range(7)] == [120, 240, 480, 960, 1920, 3600, 3600]
    assert [queued_seconds(7200, n) for n in range(3)] == [7200] * 3
