"""A run from its message to its outcome, as one lease manager sees it."""

from celery_sqlbeat.worker.lease import StaleMessage
from tests.unit.worker.rig import Rig


def test_a_message_begins_holds_its_lease_and_writes_its_outcome() -> None:
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    assert rig.answer(request) is None
    rig.settle()
    run_lease = rig.run_lease(request)
    assert rig.state(claim) == "running" and rig.holder(claim) == "worker-1"
    rig.take(run_lease)
    rig.run_for(601)
    assert not rig.is_lost(run_lease) and rig.holder(claim) == "worker-1"
    assert rig.line.sent["extend"] == 20
    rig.finish(run_lease)
    rig.settle()
    assert rig.written[claim.run_id] == [True]
    assert rig.state(claim) == "success" and rig.holder(claim) is None
    assert rig.lease_manager.held == 0 and rig.is_idle()


def test_a_message_delivered_twice_begins_once() -> None:
    rig = Rig()
    claim = rig.claim()
    first, second = rig.ask(claim), rig.ask(claim)
    rig.settle()
    assert rig.run_lease(first).take()
    assert isinstance(rig.answer(second), StaleMessage)
    third = rig.ask(claim)
    rig.settle()
    assert isinstance(rig.answer(third), StaleMessage)


def test_what_has_gathered_goes_in_one_statement() -> None:
    rig = Rig()
    requests = [rig.ask(claim) for claim in rig.claims(50)]
    rig.settle()
    assert rig.line.sent["start"] == 1
    for request in requests:
        rig.take(rig.run_lease(request))
        rig.finish(rig.run_lease(request))
    rig.settle()
    assert rig.line.sent == {"start": 1, "finish": 1}


def test_a_run_that_never_began_is_given_back_and_claimed_again() -> None:
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    rig.settle()
    rig.lease_manager.unstart(rig.run_lease(request))
    rig.settle()
    assert rig.state(claim) == "scheduled"
    again = rig.world.claim_one()
    assert again.run_id == claim.run_id and again.fence > claim.fence


def test_a_retry_of_celerys_own_that_did_not_begin_makes_way_for_another_attempt() -> None:
    rig = Rig()
    claim = rig.claim()
    rig.lease_manager.retrying(rig.begin(claim), 5.0)
    rig.settle()
    retry = rig.ask(claim, celery_retries=1)
    rig.settle()
    rig.lease_manager.unstart(rig.run_lease(retry))
    rig.settle()
    assert rig.state(claim) == "retry", "its body began once already: the same attempt must not begin anew"
    (again,) = rig.world.claim().claims
    assert (again.run_id != claim.run_id, again.slot.attempt, again.slot.failures) == (True, 2, 0)
