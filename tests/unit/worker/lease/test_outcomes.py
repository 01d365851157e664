"""Outcomes: written once, in batches, kept through outages, and never in each other's way."""

import pytest

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model.lifecycle import Backoff, after_failure, after_success
from celery_sqlbeat.worker.lease import Started
from tests.unit.worker.rig import AT_ONCE, BUSY, REFUSED, UNCERTAIN, Rig


def test_an_outcome_whose_reply_is_lost_is_written_once() -> None:
    """The store settles a commit without an answer.

    Here its own answer is lost, and the run is over.
    """
    rig = Rig()
    run_lease = rig.begin()
    rig.line.lose_reply_to = "finish"
    rig.finish(run_lease)
    rig.settle()
    assert rig.state(run_lease.run) == "success" and rig.written[run_lease.run.run_id] == []
    rig.run_for(1)
    assert rig.written[run_lease.run.run_id] == [False] and rig.lease_manager.held == 0
    assert rig.state(run_lease.run) == "success"


def test_outcomes_are_kept_while_the_database_is_away() -> None:
    rig = Rig()
    held = [rig.begin() for _ in range(5)]
    rig.line.is_unavailable = True
    for run_lease in held:
        rig.finish(run_lease)
    rig.run_for(60)
    assert not any(rig.written.values()) and not rig.is_idle()
    assert rig.line.sent["finish"] < 130, "no busy loop"
    rig.line.is_unavailable = False
    rig.run_for(3)
    assert {rig.state(one.run) for one in held} == {"success"}
    assert list(rig.written.values()) == [[True]] * 5 and rig.is_idle()


def test_an_outcome_is_kept_longer_than_its_lease_and_written_if_nobody_took_the_run() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.finish(run_lease)
    rig.line.is_unavailable = True
    rig.run_for(1000)
    assert not rig.stopped, "its task has ended; there is nothing to stop"
    rig.line.is_unavailable = False
    rig.run_for(3)
    assert rig.state(run_lease.run) == "success"


def test_an_outcome_whose_run_was_taken_meanwhile_is_known_to_be_lost() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.line.is_unavailable = True
    rig.finish(run_lease)
    rig.run_for(125)
    rig.world.sweep()
    rig.line.is_unavailable = False
    rig.run_for(3)
    assert rig.written[run_lease.run.run_id] == [False]
    assert rig.state(run_lease.run) == "retry" and rig.lease_manager.held == 0


@pytest.mark.parametrize("error", [REFUSED, BUSY, UNCERTAIN])
@pytest.mark.parametrize("count", [1, 2, 16, 17, 300])
def test_one_outcome_that_cannot_be_written_does_not_hold_up_the_others(error: StoreError, count: int) -> None:
    rig = Rig()
    requests = [rig.ask(claim) for claim in rig.claims(count)]
    rig.settle()
    held = [rig.run_lease(request) for request in requests]
    for run_lease in held:
        rig.take(run_lease)
        rig.finish(run_lease)
    bad = held[count // 2]
    rig.line.bad[bad.run.run_id] = error
    rig.run_for(3)
    others = [one for one in held if one is not bad]
    assert {rig.state(one.run) for one in others} <= {"success"}
    assert all(rig.written[one.run.run_id] == [True] for one in others)
    assert rig.written[bad.run.run_id] == []
    assert rig.line.sent["finish"] <= 60


def test_an_outcome_of_a_locked_row_is_written_once_the_row_is_free() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.line.bad[run_lease.run.run_id] = BUSY
    rig.finish(run_lease)
    rig.run_for(100)
    assert rig.line.sent["finish"] <= 9, "each try makes the others wait"
    rig.line.bad.clear()
    rig.run_for(31)
    assert rig.written[run_lease.run.run_id] == [True]


@pytest.mark.parametrize("error", [REFUSED, UNCERTAIN])
def test_an_outcome_that_the_database_refuses_is_tried_again_until_it_is_taken(error: StoreError) -> None:
    """Somebody gives the rights back, or a fail-over is over: the task does not run again."""
    rig = Rig()
    run_lease = rig.begin()
    rig.line.bad[run_lease.run.run_id] = error
    rig.finish(run_lease)
    rig.run_for(100)
    assert rig.written[run_lease.run.run_id] == [] and rig.state(run_lease.run) == "running"
    assert rig.line.sent["finish"] <= 9, "at a slow pace"
    rig.line.bad.clear()
    rig.run_for(31)
    assert rig.written[run_lease.run.run_id] == [True] and rig.state(run_lease.run) == "success"


@pytest.mark.parametrize("error", [REFUSED, UNCERTAIN])
def test_an_outcome_that_is_always_refused_holds_its_job_for_two_leases_at_most(error: StoreError) -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.line.bad_outcomes[run_lease.run.run_id] = error
    rig.finish(run_lease)
    rig.run_for(run_lease.run.lease_seconds + 60)
    assert rig.written[run_lease.run.run_id] == []
    rig.run_for(run_lease.run.lease_seconds)
    assert rig.written[run_lease.run.run_id] == [False] and rig.lease_manager.held == 0
    rig.world.sweep()
    assert rig.state(run_lease.run) == "retry"


def test_a_refused_outcome_says_so_without_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.line.bad[run_lease.run.run_id] = REFUSED
    rig.finish(run_lease)
    rig.settle()
    assert "is not written" in caplog.text and run_lease.run.run_id in caplog.text
    assert run_lease.run.claim_id not in caplog.text


def test_the_first_word_about_a_run_counts_and_all_who_asked_hear() -> None:
    """Celery reports a hard time limit twice."""
    rig = Rig()
    run_lease = rig.begin()
    rig.finish(run_lease, after_failure(0, 3, Backoff(), lambda: 0.0, "time limit"))
    rig.finish(run_lease, after_success())
    rig.settle()
    assert rig.state(run_lease.run) == "retry"
    rig.finish(run_lease, after_success())
    rig.settle()
    assert rig.written[run_lease.run.run_id] == [True, True, True]
    assert rig.line.sent["finish"] == 1


def test_who_finishes_while_the_batch_is_under_way_is_heard_too() -> None:
    rig = Rig()
    first, second = rig.begin(), rig.begin()
    rig.finish(first)

    def meanwhile(kind: str) -> None:
        rig.line.during = lambda kind: None
        rig.finish(second)
        rig.finish(first)

    rig.line.during = meanwhile
    rig.settle()
    assert rig.written == {first.run.run_id: [True, True], second.run.run_id: [True]}
    assert rig.line.rows[-2:] == [("finish", 1), ("finish", 1)]


def test_an_error_after_an_outcome_is_not_the_errand_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    first, second = rig.begin(), rig.begin()

    def fail(written: bool) -> None:
        raise RuntimeError("cannot acknowledge")

    rig.lease_manager.finish(first, after_success(), fail)
    rig.finish(second)
    rig.settle()
    assert rig.written[second.run.run_id] == [True] and rig.lease_manager.held == 0
    assert "cannot acknowledge" in caplog.text


def test_celerys_own_retry_keeps_the_attempt_with_a_lease_until_after_it() -> None:
    rig = Rig()
    claim = rig.claim()
    run_lease = rig.begin(claim)
    heard: list[bool] = []
    rig.lease_manager.retrying(run_lease, 300, heard.append)
    rig.settle()
    assert heard == [True] and rig.lease_manager.held == 0
    rig.run_for(410)
    rig.world.sweep()
    assert rig.state(claim) == "running" and rig.holder(claim) == "worker-1"
    again = rig.begin_again(claim, 1)
    rig.finish(again)
    rig.settle()
    assert rig.state(claim) == "success"


def test_a_retry_of_celerys_own_whose_message_is_lost_leads_to_a_new_attempt() -> None:
    rig = Rig()
    claim = rig.claim()
    rig.lease_manager.retrying(rig.begin(claim), 10)
    rig.settle()
    rig.run_for(131)
    rig.world.sweep()
    assert rig.state(claim) == "retry"


def test_celerys_own_retry_may_begin_before_its_first_try_has_ended_here() -> None:
    """The retry's message has the same task id, and may precede the report of the first try."""
    rig = Rig()
    claim = rig.claim()
    first = rig.begin(claim)
    second = rig.begin_again(claim, 1)
    heard: list[bool] = []
    rig.lease_manager.retrying(first, 300, heard.append)
    rig.settle()
    assert heard == [True] and rig.lease_manager.held == 1
    rig.run_for(100)
    assert not second.lost and not rig.stopped
    rig.finish(second)
    rig.settle()
    assert rig.state(claim) == "success" and rig.written[claim.run_id] == [True]


def test_the_first_try_does_not_end_the_run_that_the_retry_has_taken_over() -> None:
    rig = Rig()
    claim = rig.claim()
    first = rig.begin(claim)
    second = rig.begin_again(claim, 1)
    rig.finish(first, after_failure(0, 0, Backoff(), lambda: 0.0, "killed after it had sent its retry"))
    rig.lease_manager.finish(first, after_success())
    rig.settle()
    assert rig.state(claim) == "running" and rig.written[claim.run_id] == [False]
    rig.run_for(100)
    assert not second.lost
    rig.finish(second)
    rig.settle()
    assert rig.state(claim) == "success"


def test_no_heartbeat_under_way_shortens_the_lease_of_a_retry() -> None:
    rig = Rig()
    claim = rig.claim()
    run_lease = rig.begin(claim)

    def retry_meanwhile(kind: str) -> None:
        if kind == "extend":
            rig.line.during = lambda kind: None
            rig.lease_manager.retrying(run_lease, 600)
            rig.lease_manager.serve()

    rig.line.during = retry_meanwhile
    rig.run_for(32)
    ends_at = rig.world.instant(claim.job_name, "leaseendsat")
    assert ends_at is not None and (ends_at - rig.world.now).total_seconds() > 700


def test_the_lease_of_a_retry_is_kept_once_its_locked_row_is_free() -> None:
    rig = Rig()
    claim = rig.claim()
    run_lease = rig.begin(claim)
    rig.line.locked = {claim.run_id}
    rig.lease_manager.retrying(run_lease, 300)
    rig.run_for(5)
    assert rig.lease_manager.held == 1 and rig.line.sent["extend"] <= 21
    rig.line.locked = set()
    rig.run_for(1)
    assert rig.lease_manager.held == 0
    ends_at = rig.world.instant(claim.job_name, "leaseendsat")
    assert ends_at is not None and (ends_at - rig.world.now).total_seconds() > 400


def test_a_retry_of_a_lost_run_is_told_so() -> None:
    rig = Rig()
    claim = rig.claim()
    run_lease = rig.begin(claim)
    rig.world.change(claim.job_name, LockedBy=None)
    heard: list[bool] = []
    rig.lease_manager.retrying(run_lease, 300, heard.append)
    rig.settle()
    assert heard == [False] and rig.lease_manager.held == 0


def test_closing_waits_until_the_outcomes_are_written() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.line.is_unavailable = True
    rig.finish(run_lease)
    rig.lease_manager.close()
    rig.run_for(10)
    assert not rig.is_idle()
    rig.line.is_unavailable = False
    rig.run_for(3)
    assert rig.is_idle() and rig.state(run_lease.run) == "success"


def test_leases_are_extended_while_the_pool_drains() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.lease_manager.close()
    rig.run_for(300)
    assert not run_lease.lost and rig.state(run_lease.run) == "running"
    rig.finish(run_lease)
    rig.settle()
    assert rig.state(run_lease.run) == "success" and rig.is_idle()


def test_outcomes_are_written_in_batches_of_bounded_size() -> None:
    rig = Rig(AT_ONCE._replace(batch_size=10))
    requests = [rig.ask(claim) for claim in rig.claims(25)]
    rig.settle()
    for request in requests:
        rig.take(rig.run_lease(request))
        rig.finish(rig.run_lease(request))
    rig.settle()
    assert rig.line.rows[-3:] == [("finish", 10), ("finish", 10), ("finish", 5)]


def test_a_start_and_an_outcome_of_the_same_round_are_two_statements() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.line.rows.clear()
    requests = [rig.ask(claim) for claim in rig.claims(12)]
    rig.finish(run_lease)
    rig.settle()
    assert rig.line.rows == [("finish", 1), ("start", 12)]
    assert all(isinstance(rig.answer(one), Started) for one in requests)


def test_an_outcome_is_never_between_two_places() -> None:
    """A worker that ends asks from another thread whether all is written, and goes when it is."""
    rig = Rig()
    run_lease = rig.begin()
    idle: list[bool] = []

    class Watched(dict):  # type: ignore[type-arg]
        def __setitem__(self, key: str, value: object) -> None:
            idle.append(rig.is_idle())
            super().__setitem__(key, value)

    rig.lease_manager._outcomes._waiting = Watched()
    rig.lease_manager.finish(run_lease, after_success(), lambda written: idle.append(rig.is_idle()))
    rig.settle()
    assert idle == [False, False] and rig.is_idle()
