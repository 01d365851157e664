"""The life of a slot as a state machine.

Whatever fails, is lost or waits, it stays legal and comes to an end.
"""

from hypothesis import given
from hypothesis import strategies as st

from celery_sqlbeat.model.lifecycle import (
    LONGEST_QUEUED_SECONDS,
    MAX_REPUBLISHES,
    OPEN,
    OUTCOMES,
    TRANSITIONS,
    Backoff,
    Ending,
    ExpiredLease,
    Republish,
    after_ended_lease,
    after_failure,
    after_lost_lease,
    by_way_of,
    queued_seconds,
)

counts = st.integers(0, 50)
fractions = st.floats(0, 1, exclude_max=True)
leases = st.floats(1, 100_000)
backoffs = st.builds(Backoff, st.floats(0, 1e6), st.floats(1, 1e6), st.floats(0, 1e6))
ended_leases = st.builds(
    ExpiredLease, st.sampled_from(["claimed", "running"]), st.booleans(), st.booleans(), counts, leases, counts
)


@given(backoffs, st.integers(1, 10_000), fractions)
def test_a_backoff_is_never_negative_nor_longer_than_its_longest(backoff: Backoff, failures: int, draw: float) -> None:
    assert 0 <= backoff.seconds(failures, lambda: draw) <= backoff.longest


@given(backoffs, st.integers(1, 100))
def test_the_bound_of_a_backoff_never_shrinks(backoff: Backoff, failures: int) -> None:
    assert backoff.seconds(failures, lambda: 1.0) <= backoff.seconds(failures + 1, lambda: 1.0)


@given(counts, counts, fractions)
def test_a_failure_waits_for_its_retry_or_is_dead_and_is_counted_once(failures: int, limit: int, draw: float) -> None:
    ending = after_failure(failures, limit, Backoff(), lambda: draw)
    assert (ending.state == "retry") == (ending.retry_seconds is not None) == (failures < limit)
    assert (ending.failures, ending.lost_leases) == (1, 0)


@given(leases, st.integers(0, 20))
def test_a_queued_deadline_is_not_shorter_than_the_one_before_nor_longer_than_need_be(
    lease: float, republishes: int
) -> None:
    assert lease <= queued_seconds(lease, republishes) <= queued_seconds(lease, republishes + 1)
    assert queued_seconds(lease, republishes) <= max(lease, LONGEST_QUEUED_SECONDS)


def _before(started: bool, after: str) -> str:
    """Return the state that the row names as the one before."""
    return by_way_of(after) or "running" if started else "claimed"


@given(ended_leases, counts, st.booleans(), st.booleans(), st.booleans())
def test_what_follows_an_ended_lease_is_legal(
    run: ExpiredLease, limit: int, can_republish: bool, expired: bool, counted: bool
) -> None:
    decision = after_ended_lease(run, limit, can_republish, expired, counted)
    if isinstance(decision, Republish):
        assert run.published and not run.started and not expired and run.republishes < MAX_REPUBLISHES
        assert decision.publish == can_republish
        return
    overlapping = run.state == "running" and not run.started
    if not overlapping:  # of those only the job is freed, and the run's row is left alone
        assert decision.state in OUTCOMES | OPEN
        assert (_before(run.started, decision.state), decision.state) in TRANSITIONS
    assert run.started or decision.state in ("scheduled", "dispatched", "skipped")


@given(
    st.lists(st.sampled_from(["failed", "lost", "unpublished", "queued"]), min_size=200, max_size=200),
    st.integers(0, 10),
    st.integers(0, 10),
)
def test_no_slot_goes_on_for_ever(troubles: list[str], max_retries: int, max_lost: int) -> None:
    """Each attempt meets another trouble.

    Only giving back, which begins nothing, is not bounded.
    """
    state, failures, lost, republishes, attempts = "claimed", 0, 0, 0, 1
    for trouble in troubles:
        started = trouble in ("failed", "lost")
        decision: Ending | Republish
        if trouble == "failed":
            decision = after_failure(failures, max_retries, Backoff(), lambda: 0.0)
        else:
            ended = ExpiredLease(
                "running" if started else "claimed", trouble != "unpublished", started, republishes, 60, lost
            )
            decision = after_ended_lease(ended, max_lost, True)
        if isinstance(decision, Republish):
            republishes += 1
            continue
        assert (_before(started, decision.state), decision.state) in TRANSITIONS
        failures, lost = failures + decision.failures, lost + decision.lost_leases
        attempts += decision.state == "retry"
        republishes, state = 0, decision.state
        if state in OUTCOMES:
            break
    assert attempts <= 1 + max_retries + max_lost
    assert republishes <= MAX_REPUBLISHES
    if set(troubles) <= {"failed", "lost"}:
        assert state == "dlq"


@given(st.lists(st.booleans(), min_size=30, max_size=30), st.integers(0, 10), st.integers(0, 10))
def test_a_slot_that_only_fails_or_loses_its_leases_is_a_dead_letter_in_time(
    kinds: list[bool], max_retries: int, max_lost: int
) -> None:
    failures = lost = 0
    for attempt, fails in enumerate(kinds, 1):
        ending = (
            after_failure(failures, max_retries, Backoff(), lambda: 0.5) if fails else after_lost_lease(lost, max_lost)
        )
        failures, lost = failures + ending.failures, lost + ending.lost_leases
        if ending.state == "dlq":
            assert failures == max_retries + 1 or lost == max_lost + 1
            assert attempt == failures + lost <= 1 + max_retries + max_lost
            return
    raise AssertionError("it is still tried")
