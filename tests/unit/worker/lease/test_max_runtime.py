"""A body that takes longer than its `max_runtime`.

Stopped, released and counted, by the worker's own clock.
"""

from typing import Any

from celery_sqlbeat.model.lifecycle import Backoff, Ending, after_failure
from celery_sqlbeat.worker.lease import Stop
from tests.unit.worker.rig import Rig

FIVE: dict[str, Any] = {"Policies": '{"max_runtime": 5}', "LockTimeoutMinutes": 1}


def _row(rig: Rig, run_id: str) -> Any:
    (row,) = rig.world.sql("SELECT * FROM JobRuns WHERE RunId = ?", run_id)
    return row


def test_a_body_is_stopped_when_its_time_is_over_and_the_run_has_failed() -> None:
    rig = Rig()
    run_lease = rig.begin(**FIVE)
    rig.run_for(4.9)
    assert not rig.stopped and rig.state(run_lease.run) == "running"
    rig.run_for(0.2)
    assert rig.stopped == [run_lease.run.run_id] and run_lease.stop is Stop.OVERDUE and run_lease.lost
    assert rig.holder(run_lease.run) == "worker-1"
    rig.finish(run_lease, Ending("cancelled", "revoked"))  # so its pool reports a process that is killed
    rig.settle()
    row = _row(rig, run_lease.run.run_id)
    assert (row["state"], row["failures"], row["reason"]) == ("retry", 1, "max_runtime of 5 s exceeded")
    assert row["error"] == "max_runtime of 5 s exceeded" and rig.holder(run_lease.run) is None


def test_a_body_that_cannot_be_stopped_is_released_all_the_same() -> None:
    rig = Rig()
    run_lease = rig.begin(**FIVE)
    rig.run_for(5.1)
    assert rig.state(run_lease.run) == "running"
    rig.run_for(6)
    assert _row(rig, run_lease.run.run_id)["state"] == "retry" and rig.holder(run_lease.run) is None
    rig.finish(run_lease)  # much later it says that it has succeeded
    rig.settle()
    assert _row(rig, run_lease.run.run_id)["state"] == "retry" and rig.is_idle()


def test_a_body_that_ended_in_time_is_what_it_was() -> None:
    rig = Rig()
    run_lease = rig.begin(**FIVE)
    rig.run_for(4.9)
    rig.finish(run_lease)
    rig.run_for(10)
    assert rig.state(run_lease.run) == "success" and not rig.stopped


def test_a_success_that_comes_while_the_body_is_being_stopped_is_a_success() -> None:
    rig = Rig()
    run_lease = rig.begin(**FIVE)
    rig.run_for(5.1)
    rig.finish(run_lease)
    rig.settle()
    assert rig.state(run_lease.run) == "success"


def test_a_retry_of_celerys_own_does_not_save_an_overdue_run() -> None:
    rig = Rig()
    run_lease = rig.begin(**FIVE)
    rig.run_for(5.1)
    rig.lease_manager.retrying(run_lease, 60.0)
    rig.settle()
    assert _row(rig, run_lease.run.run_id)["failures"] == 1


def test_time_counts_from_the_begin_of_the_body() -> None:
    rig = Rig()
    claim = rig.claim(**FIVE)
    request = rig.ask(claim)
    rig.settle()
    rig.run_for(14)  # it waits for its slot in the pool
    run_lease = rig.run_lease(request)
    rig.take(run_lease)
    rig.run_for(4.9)
    assert not rig.stopped
    rig.run_for(0.2)
    assert rig.stopped


def test_a_lease_that_is_not_extended_is_looked_at_before() -> None:
    rig = Rig()
    run_lease = rig.begin(Policies='{"max_runtime": 3600}', LockTimeoutMinutes=1)
    assert run_lease.watch_at < run_lease.overdue_at


def test_without_the_policy_a_body_takes_as_long_as_it_likes() -> None:
    rig = Rig()
    run_lease = rig.begin(LockTimeoutMinutes=1)
    rig.run_for(7200)
    assert not rig.stopped and run_lease.run.max_runtime is None


def test_the_last_attempt_goes_to_the_dead_letters() -> None:
    rig = Rig()
    run_lease = rig.begin(Policies='{"max_runtime": 5, "max_retries": 0}')
    rig.run_for(5.1)
    rig.finish(run_lease, after_failure(0, 0, Backoff(), lambda: 0.0, "killed"))
    rig.settle()
    row = _row(rig, run_lease.run.run_id)
    assert (row["state"], row["reason"]) == ("dlq", "max_runtime of 5 s exceeded")
