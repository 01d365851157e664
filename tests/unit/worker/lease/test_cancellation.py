"""A run that somebody cancels: its task is stopped under its lease, its outcome is cancelled."""

from typing import Any

import pytest

from celery_sqlbeat.model.lifecycle import Ending, after_success
from celery_sqlbeat.model.one_offs import Asked
from celery_sqlbeat.worker.lease import RunLease, Stop
from tests.support.world import NOON
from tests.unit.worker.rig import Rig

ASKED = Asked("ann", "wrong data", NOON)
REASON = f"cancelled by ann at {NOON:%Y-%m-%d %H:%M:%S} UTC: wrong data"
ONE_MINUTE: dict[str, Any] = {"LockTimeoutMinutes": 1}


def _cancel(rig: Rig, run_lease: RunLease) -> None:
    rig.line.asked[run_lease.run.run_id] = ASKED
    assert rig.lease_manager.recall([run_lease.run.run_id]) == 1
    rig.settle()


def _outcome(rig: Rig, run_lease: RunLease) -> tuple[str, str | None, int]:
    (row,) = rig.world.sql("SELECT * FROM JobRuns WHERE RunId = ?", run_lease.run.run_id)
    return row["state"], row["reason"], row["failures"]


def test_a_task_is_stopped_at_the_next_heartbeat_without_a_recall() -> None:
    rig = Rig()
    run_lease, other = rig.begin(), rig.begin()
    rig.line.asked[run_lease.run.run_id] = ASKED
    rig.run_for(29)
    assert not rig.stopped
    rig.run_for(1.1)
    assert rig.stopped == [run_lease.run.run_id] and other.stop is None


def test_a_cancelled_run_keeps_its_lease_until_its_task_is_gone() -> None:
    rig = Rig()
    run_lease = rig.begin()
    _cancel(rig, run_lease)
    assert rig.stopped == [run_lease.run.run_id] and run_lease.stop is Stop.CANCELLED
    assert rig.state(run_lease.run) == "running" and rig.holder(run_lease.run) == "worker-1"
    rig.finish(run_lease, Ending("cancelled", "revoked"))
    rig.settle()
    assert _outcome(rig, run_lease) == ("cancelled", REASON, 0) and rig.holder(run_lease.run) is None
    assert rig.world.job(run_lease.run.job_name)["retryat"] is None


@pytest.mark.parametrize("ending", [after_success(), Ending("retry", "failed", 5.0, 1, 0, "no luck")])
def test_however_its_task_ends_it_was_cancelled(ending: Ending) -> None:
    rig = Rig()
    run_lease = rig.begin()
    _cancel(rig, run_lease)
    rig.finish(run_lease, ending)
    rig.settle()
    assert _outcome(rig, run_lease) == ("cancelled", REASON, 0)


def test_a_retry_of_celerys_own_does_not_save_it() -> None:
    rig = Rig()
    run_lease = rig.begin()
    _cancel(rig, run_lease)
    rig.lease_manager.retrying(run_lease, 60.0)
    rig.settle()
    assert _outcome(rig, run_lease) == ("cancelled", REASON, 0) and rig.is_idle()


def test_a_run_that_waits_for_a_retry_of_celerys_own_is_not_kept_for_it() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.line.asked[run_lease.run.run_id] = ASKED  # it was cancelled a moment ago
    rig.lease_manager.retrying(run_lease, 3600.0)
    rig.settle()
    assert not rig.stopped and _outcome(rig, run_lease) == ("cancelled", REASON, 0)
    assert rig.holder(run_lease.run) is None and rig.is_idle()


def test_a_body_that_has_not_begun_does_not_begin() -> None:
    rig = Rig()
    request = rig.ask(rig.claim())
    rig.settle()
    run_lease = rig.run_lease(request)
    _cancel(rig, run_lease)
    assert not run_lease.take() and run_lease.reason == "somebody cancelled it"
    rig.settle()
    assert _outcome(rig, run_lease) == ("cancelled", REASON, 0) and rig.holder(run_lease.run) is None


def test_one_that_cannot_be_stopped_is_released_all_the_same() -> None:
    rig = Rig()
    run_lease = rig.begin(**ONE_MINUTE)
    _cancel(rig, run_lease)
    rig.run_for(5.9)
    assert rig.holder(run_lease.run) == "worker-1"
    rig.run_for(0.2)
    assert _outcome(rig, run_lease) == ("cancelled", REASON, 0) and rig.holder(run_lease.run) is None
    rig.finish(run_lease)  # much later it says that it has succeeded
    rig.settle()
    assert _outcome(rig, run_lease) == ("cancelled", REASON, 0) and rig.is_idle()


def test_a_request_that_each_heartbeat_brings_stops_the_task_once() -> None:
    rig = Rig()
    run_lease = rig.begin(LockTimeoutMinutes=100)
    _cancel(rig, run_lease)
    rig.run_for(200)
    assert rig.stopped == [run_lease.run.run_id]


def test_a_lost_lease_stays_lost() -> None:
    rig = Rig()
    run_lease = rig.begin()
    rig.world.change(run_lease.run.job_name, LockedBy=None)
    rig.line.asked[run_lease.run.run_id] = ASKED
    rig.run_for(31)
    assert run_lease.stop is Stop.LOST and run_lease.asked is None
