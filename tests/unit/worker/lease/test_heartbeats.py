"""Heartbeats: leases live as long as their tasks, and a task is stopped before its lease ends."""

from datetime import timedelta

import pytest

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model.lifecycle import after_success
from tests.support.world import OVERLAP
from tests.unit.worker.rig import BUSY, REFUSED, Rig


def test_a_thousand_runs_are_extended_by_one_statement_per_interval() -> None:
    rig = Rig()
    requests = []
    for _ in range(10):
        requests += [rig.ask(claim) for claim in rig.claims(100)]
        rig.run_for(0.5)
    for request in requests:
        rig.take(rig.run_lease(request))
    rig.run_for(32)
    rig.line.sent.clear()
    rig.line.rows.clear()
    rig.run_for(300)
    assert rig.line.rows == [("extend", 1000)] * 10
    assert rig.lease_manager.held == 1000 and not rig.stopped


def test_runs_that_began_at_any_time_are_soon_extended_together() -> None:
    rig = Rig()
    for _ in range(30):
        rig.begin()
        rig.run_for(1)
    rig.run_for(120)
    rig.line.rows.clear()
    rig.run_for(300)
    assert rig.line.rows == [("extend", 30)] * 10


def test_a_short_lease_gets_heartbeats_in_proportion() -> None:
    rig = Rig()
    rig.begin(LockTimeoutMinutes=1)
    rig.run_for(60.1)
    assert rig.line.sent["extend"] == 4


def test_short_and_long_leases_do_not_make_each_other_late() -> None:
    rig = Rig()
    short, long = rig.begin(LockTimeoutMinutes=1), rig.begin(LockTimeoutMinutes=100)
    for _ in range(100):
        rig.run_for(1)
        assert rig.monotonic - short.sent_at <= 15.1
        assert rig.monotonic - long.sent_at <= 30.1


def test_the_end_of_a_lease_is_counted_from_when_the_statement_was_sent() -> None:
    rig = Rig()
    run_lease = rig.begin()
    sent: list[float] = []

    def slow(kind: str) -> None:
        if kind == "extend":
            sent.append(rig.monotonic)
            rig.later(4)

    rig.line.during = slow
    rig.run_for(36)
    assert run_lease.sent_at == sent[0]
    assert run_lease.stop_at == sent[0] + 110


def test_a_lease_that_the_database_calls_lost_stops_its_task_at_once_and_writes_nothing() -> None:
    rig = Rig()
    claim = rig.claim()
    run_lease, other = rig.begin(claim), rig.begin()
    rig.world.change(claim.job_name, LockedBy=None)
    rig.run_for(31)
    assert rig.stopped == [claim.run_id]
    assert rig.is_lost(run_lease) and run_lease.reason == "the lease is lost"
    assert not other.lost
    rig.finish(run_lease)
    rig.run_for(31)
    assert "finish" not in rig.line.sent and rig.lease_manager.held == 1


def test_the_outcome_of_a_lost_run_is_not_written() -> None:
    rig = Rig()
    claim = rig.claim()
    run_lease = rig.begin(claim)
    rig.world.change(claim.job_name, LockedBy=None)
    rig.run_for(31)
    rig.finish(run_lease)
    rig.settle()
    assert rig.written[claim.run_id] == [False] and "finish" not in rig.line.sent
    assert rig.lease_manager.held == 0


def test_an_outage_shorter_than_the_lease_interrupts_nothing() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.run_for(29)
    rig.line.is_unavailable = True
    rig.run_for(75)
    rig.line.is_unavailable = False
    rig.run_for(60)
    assert not rig.is_lost(run_lease) and not rig.stopped
    assert rig.state(run_lease.run) == "running"


def test_while_the_database_is_away_heartbeats_are_tried_again_and_not_in_a_busy_loop() -> None:
    rig = Rig()
    rig.begin()
    rig.line.is_unavailable = True
    rig.run_for(100)
    assert 60 <= rig.line.sent["extend"] <= 80


def test_a_row_that_is_locked_for_a_moment_is_no_warning_and_one_that_stays_locked_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    run = rig.begin().run
    rig.run_for(29)
    rig.line.locked = {run.run_id}
    rig.run_for(1.5)
    assert rig.line.sent["extend"] == 1 and "locked" not in caplog.text
    rig.run_for(3)
    assert 'leases were not extended: leases=1 reason="somebody keeps their rows locked"' in caplog.text


def test_a_task_is_stopped_before_its_lease_ends_when_no_heartbeat_succeeds() -> None:
    rig = Rig()
    run_lease = rig.begin()
    began = run_lease.sent_at
    rig.line.is_unavailable = True
    rig.run_for(109)
    assert not rig.is_lost(run_lease)
    rig.run_for(2)
    assert rig.stopped == [run_lease.run.run_id] and rig.is_lost(run_lease)
    assert run_lease.sent_at == began
    assert rig.holder(run_lease.run) == "worker-1", "nobody could be told"


def test_three_failed_heartbeats_abandon_a_run_whose_lease_would_last_longer() -> None:
    rig = Rig()
    run_lease = rig.begin(LockTimeoutMinutes=60)
    rig.line.is_unavailable = True
    rig.run_for(119)
    assert not rig.is_lost(run_lease)
    rig.run_for(2)
    assert rig.is_lost(run_lease) and run_lease.reason == "the lease could not be extended"


def test_an_abandoned_run_is_never_extended_again_and_released_when_its_task_is_gone() -> None:
    rig = Rig()
    claim = rig.claim()
    run_lease = rig.begin(claim)
    next_run = rig.world.instant(claim.job_name, "nextruntime")
    rig.line.is_unavailable = True
    rig.run_for(111)
    rig.line.is_unavailable = False
    ends_at = rig.world.instant(claim.job_name, "leaseendsat")
    rig.run_for(30)
    assert rig.world.instant(claim.job_name, "leaseendsat") == ends_at
    assert rig.holder(claim) == "worker-1", "released only when the task is really gone"
    rig.finish(run_lease)
    rig.settle()
    (row,) = rig.world.runs(claim.job_name)
    assert (row["state"], row["lostleases"], row["failures"]) == ("retry", 0, 0)
    assert rig.holder(claim) is None
    assert rig.world.instant(claim.job_name, "nextruntime") == next_run
    assert rig.world.claim_one().slot.attempt == 2


def test_an_abandoned_run_that_somebody_took_is_not_released() -> None:
    rig = Rig()
    claim = rig.claim()
    run_lease = rig.begin(claim)
    rig.line.is_unavailable = True
    rig.run_for(125)
    rig.world.sweep()
    rig.line.is_unavailable = False
    successor = rig.world.running()
    rig.finish(run_lease)
    rig.settle()
    assert rig.world.states(claim.job_name) == ["retry", "running"]
    assert rig.holder(claim) == "worker-1" and successor.attempt == 2


def test_what_an_abandoned_task_reports_is_not_believed() -> None:
    """It was told that its lease is lost.

    It may have stopped in the middle and returned in order.
    """
    rig = Rig()
    run_lease = rig.begin()
    rig.line.is_unavailable = True
    rig.run_for(111)
    rig.finish(run_lease, after_success())
    rig.line.is_unavailable = False
    rig.run_for(3)
    assert rig.state(run_lease.run) == "retry"
    assert rig.written[run_lease.run.run_id] == [True]


def test_a_row_that_stays_locked_stops_its_own_task_only() -> None:
    rig = Rig()
    held = [rig.begin() for _ in range(20)]
    rig.line.locked = {held[3].run.run_id}
    rig.run_for(300)
    assert rig.stopped == [held[3].run.run_id]
    assert held[3].reason == "the lease could not be extended", "not lost: nobody took it"


def test_a_row_that_was_locked_for_a_while_is_extended_soon_after() -> None:
    rig = Rig()
    run_lease, other = rig.begin(), rig.begin()
    rig.line.locked = {run_lease.run.run_id}
    rig.run_for(60)
    rig.line.locked = set()
    rig.run_for(3)
    assert rig.monotonic - run_lease.sent_at < 3.1 and rig.monotonic - other.sent_at < 31
    assert not rig.stopped


def test_a_locked_row_does_not_make_short_leases_late() -> None:
    rig = Rig()
    locked, short = rig.begin(LockTimeoutMinutes=60), rig.begin(LockTimeoutMinutes=1)
    rig.line.locked = {locked.run.run_id}
    for _ in range(110):
        rig.run_for(1)
        assert rig.monotonic - short.sent_at <= 15.1


@pytest.mark.parametrize("error", [BUSY, REFUSED])
def test_an_error_of_the_whole_statement_is_a_failed_heartbeat_and_no_loss(error: StoreError) -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.line.errors["extend"] = error
    rig.run_for(60)
    assert not rig.is_lost(run_lease)
    del rig.line.errors["extend"]
    rig.run_for(3)
    assert rig.monotonic - run_lease.sent_at < 3.1


def test_overlapping_runs_are_extended_and_lost_by_their_own_rows() -> None:
    rig = Rig()
    rig.world.add(Policies=OVERLAP)
    claim = rig.world.claim_one()
    rig.world.beat.mark_dispatched([claim])
    run_lease = rig.begin(claim)
    rig.run_for(200)
    assert not rig.is_lost(run_lease)
    rig.world.sql("UPDATE JobRuns SET HeldBy = NULL WHERE RunId = ?", claim.run_id)
    rig.run_for(31)
    assert rig.stopped == [claim.run_id]


def test_a_lease_is_kept_until_its_outcome_is_written() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.line.errors["finish"] = BUSY
    rig.finish(run_lease)
    rig.run_for(300)
    assert rig.holder(run_lease.run) == "worker-1" and not rig.stopped
    ends_at = rig.world.instant(run_lease.run.job_name, "leaseendsat")
    assert ends_at is not None and ends_at > rig.world.now + timedelta(seconds=80)
    del rig.line.errors["finish"]
    rig.run_for(40)
    assert rig.state(run_lease.run) == "success"


def test_a_lease_lost_while_its_outcome_waits_is_not_asked_about_again() -> None:
    rig = Rig()
    claim = rig.claim()
    run_lease = rig.begin(claim)
    rig.line.errors["finish"] = BUSY
    rig.finish(run_lease)
    rig.world.change(claim.job_name, LockedBy=None)
    rig.run_for(300)
    assert rig.line.sent["extend"] == 1 and not rig.stopped
    del rig.line.errors["finish"]
    rig.run_for(40)
    assert rig.written[claim.run_id] == [False] and rig.lease_manager.held == 0


def test_a_heartbeat_that_meets_an_outcome_just_written_stops_nothing() -> None:
    rig = Rig()
    run_lease = rig.begin()

    def finish_meanwhile(kind: str) -> None:
        if kind == "extend":
            rig.line.during = lambda kind: None
            rig.finish(run_lease)
            rig.lease_manager.serve()

    rig.line.during = finish_meanwhile
    rig.run_for(31)
    assert rig.written[run_lease.run.run_id] == [True] and not rig.stopped and rig.lease_manager.held == 0


def test_who_listens_late_hears_at_once_that_the_task_must_stop() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.line.is_unavailable = True
    rig.run_for(111)
    heard: list[str] = []
    run_lease.on_stop(lambda: heard.append("stop"))
    assert heard == ["stop"] and rig.stopped == [run_lease.run.run_id]


def test_an_error_while_one_task_is_stopped_does_not_keep_the_others_alive() -> None:
    rig = Rig()
    first, second = rig.begin(), rig.begin()

    def fail() -> None:
        raise RuntimeError("no such process")

    first.on_stop(fail)
    rig.line.is_unavailable = True
    rig.run_for(111)
    assert rig.stopped == [second.run.run_id] and first.lost


def test_a_process_that_stood_still_past_the_lease_stops_before_it_asks_the_database() -> None:
    """SIGSTOP, then SIGCONT.

    The watch comes first, and the body of what has not begun does not begin.
    """
    rig = Rig()
    begun = rig.begin()
    request = rig.ask(rig.claim())
    rig.settle()
    rig.later(130)
    assert not rig.run_lease(request).take()
    rig.lease_manager.watch()
    assert rig.stopped == [begun.run.run_id]
    rig.settle()
    assert rig.state(rig.run_lease(request).run) == "scheduled"


def test_in_one_thread_a_process_that_stood_still_past_the_lease_extends_nothing() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.later(130)
    rig.lease_manager.turn()
    assert rig.stopped == [run_lease.run.run_id] and "extend" not in rig.line.sent


def test_the_steps_are_woken_for_what_is_due_sooner_than_they_said() -> None:
    rig = Rig()
    rig.begin(LockTimeoutMinutes=60)
    rig.settle()
    rig.woken.clear()
    rig.ask(rig.claim(LockTimeoutMinutes=60))
    rig.lease_manager.serve()
    assert rig.woken == {"serve": 1, "watch": 1}, "the next heartbeat comes early enough for it"
    rig.woken.clear()
    rig.ask(rig.claim(LockTimeoutMinutes=1))
    rig.lease_manager.serve()
    assert rig.woken["beat"] == 1 and rig.woken["watch"] == 1


def test_a_run_that_is_recalled_is_looked_at_at_once_and_stopped_if_it_is_lost() -> None:
    rig = Rig()
    kept, gone = rig.begin(), rig.begin()
    rig.run_for(1)
    rig.line.sent.clear()
    assert rig.lease_manager.recall([kept.run.run_id, "another worker's"]) == 1
    rig.run_for(0.1)
    assert rig.line.sent["extend"] == 1 and not kept.lost
    rig.run_for(1)
    assert rig.line.sent["extend"] == 1, "once for each recall"
    rig.world.sql("UPDATE Jobs SET Fence = Fence + 1 WHERE Id = ?", gone.run.job_id)
    rig.lease_manager.recall([gone.run.run_id])
    rig.run_for(0.1)
    assert gone.lost and not kept.lost
