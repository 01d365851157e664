"""A run takes a place of its pool before its body may begin, and frees it when it is over."""

import itertools
from typing import Any

import pytest

from celery_sqlbeat.model.lifecycle import Ending, after_success
from celery_sqlbeat.store.records import RunQuery
from celery_sqlbeat.worker.lease import RunLease, StaleMessage
from tests.unit.worker.rig import AWAY, Rig

ERP_ONE: dict[str, Any] = {"Policies": '{"pool": "erp:1"}'}
ERP_TWO: dict[str, Any] = {"Policies": '{"pool": "erp:2"}'}


def refused(rig: Rig, **columns: Any) -> tuple[str, str]:
    """Return the run of a message that may not begin, and why."""
    claim = rig.claim(**columns)
    request = rig.ask(claim)
    rig.settle()
    answer = rig.answer(request)
    assert isinstance(answer, StaleMessage), answer
    assert rig.woken["serve"], "its release does not wait for the next step to come by itself"
    rig.settle()
    return claim.run_id, answer.reason


def held(rig: Rig) -> list[str]:
    """Return the keys of the places that are held."""
    return [lock.key for lock in rig.world.store.locks()]


def end(rig: Rig, run_lease: RunLease, ending: Ending | None = None) -> None:
    rig.finish(run_lease, ending)
    rig.settle()


def test_a_pool_of_two_lets_two_runs_begin_and_gives_the_third_back_with_the_names_of_the_holders() -> None:
    rig = Rig()
    first, second = rig.begin(**ERP_TWO), rig.begin(**ERP_TWO)
    assert held(rig) == ["pool:erp:001", "pool:erp:002"]
    run_id, reason = refused(rig, **ERP_TWO)
    what, names = reason.split(": ")
    assert (what, set(names.split(", "))) == ("pool erp is full", {first.run.job_name, second.run.job_name})
    (run,) = rig.world.store.runs(RunQuery(run_ids=[run_id]))
    assert (run.state, run.reason, run.attempt, run.failures) == ("scheduled", reason, 1, 0)
    end(rig, first)
    rig.run_for(2.1)
    (claim,) = (claim for claim in rig.world.claim().claims if claim.run_id == run_id)
    rig.world.publish(claim)
    assert rig.begin(claim).place is not None


@pytest.mark.parametrize(
    "ending",
    [after_success(), Ending("retry", "failed", 5.0, 1), Ending("dlq", "failed", None, 1), Ending("cancelled")],
)
def test_however_a_run_ends_its_place_is_free(ending: Ending) -> None:
    rig = Rig()
    end(rig, rig.begin(**ERP_ONE), ending)
    assert held(rig) == []
    rig.begin(**ERP_ONE)


def test_a_run_that_was_given_back_holds_no_place() -> None:
    rig = Rig()
    rig.lease_manager.unstart(rig.begin(**ERP_ONE))
    rig.settle()
    assert held(rig) == []


def test_a_run_that_waits_for_celerys_own_retry_holds_no_place() -> None:
    rig = Rig()
    run_lease = rig.begin(**ERP_ONE)
    rig.lease_manager.retrying(run_lease, 30.0)
    rig.settle()
    assert held(rig) == [], "its body does not run while it waits"


def test_a_place_is_extended_with_the_lease_for_as_long_as_the_run_goes_on() -> None:
    rig = Rig()
    run_lease = rig.begin(**ERP_ONE)
    rig.run_for(10 * run_lease.run.lease_seconds)
    assert held(rig) == ["pool:erp:001"] and not run_lease.lost


def test_the_place_of_a_process_that_died_is_free_when_its_lease_has_ended() -> None:
    rig = Rig()
    run_lease = rig.begin(**ERP_ONE)
    rig.later(run_lease.run.lease_seconds + 0.001)
    assert held(rig) == []


def test_a_run_whose_lease_is_lost_frees_its_place_once_its_task_is_gone() -> None:
    rig = Rig()
    run_lease = rig.begin(**ERP_ONE)
    rig.world.sql("UPDATE Jobs SET ClaimId = NULL, LockedBy = NULL WHERE JobName = ?", run_lease.run.job_name)
    rig.lease_manager.recall([run_lease.run.run_id])
    rig.settle()
    assert run_lease.lost and held(rig) == ["pool:erp:001"], "its body may still run"
    end(rig, run_lease)
    assert held(rig) == []


def test_runs_without_a_pool_ask_for_no_lock() -> None:
    rig = Rig()
    end(rig, rig.begin())
    rig.run_for(300)
    assert not rig.line.sent.keys() & {"locks", "take_lock", "extend_locks", "release_locks"}


@pytest.mark.parametrize("kind", ["locks", "take_lock"])
def test_a_pool_that_cannot_be_asked_lets_nobody_begin(kind: str) -> None:
    rig = Rig()
    rig.line.errors[kind] = AWAY
    _, reason = refused(rig, **ERP_ONE)
    assert reason == "pool erp could not be asked: away"


@pytest.mark.parametrize("kind", ["extend_locks", "release_locks"])
def test_a_place_that_cannot_be_extended_or_freed_changes_nothing_about_the_run(kind: str) -> None:
    rig = Rig()
    rig.line.errors[kind] = AWAY
    run_lease = rig.begin(**ERP_ONE)
    rig.run_for(60)
    end(rig, run_lease)
    assert rig.state(run_lease.run) == "success" and rig.written[run_lease.run.run_id] == [True]


def test_of_many_that_ask_at_once_as_many_begin_as_there_are_places() -> None:
    rig = Rig()
    requests = [rig.ask(claim) for claim in itertools.chain(rig.claims(5, **ERP_TWO), rig.claims(3))]
    rig.settle()
    answers = [rig.answer(request) for request in requests]
    assert sum(isinstance(answer, StaleMessage) for answer in answers) == 3
