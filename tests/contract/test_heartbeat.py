"""Heartbeats: a lease lives as long as its holder says, unless it is taken over."""

from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import Claim, StartedRun, StartRequest, Unbegun
from celery_sqlbeat.model.lifecycle import left_to_strategy, released
from celery_sqlbeat.store.protocols import Extended
from tests.contract.conftest import Place
from tests.support.world import LEASE, NOON, OVERLAP, World, as_instant


def overlapping(world: World) -> StartedRun:
    """Return a running run of a job whose runs may overlap."""
    world.add(Policies=OVERLAP)
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    run = world.start(claim)
    assert run is not None
    return run


def test_a_heartbeat_moves_the_lease_and_not_the_claim(world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(30)
    assert world.worker.extend([(run, LEASE)]).lost == set()
    assert world.instant(name, "lockedat") == world.now
    assert world.instant(name, "leaseendsat") == world.now + timedelta(seconds=LEASE)
    assert world.instant(name, "claimedat") == NOON
    assert world.instant(name, "nextruntime") == NOON


def test_a_heartbeat_extends_only_its_own_lease(world: World) -> None:
    world.add()
    mine = world.running()
    other = world.add()
    world.running()
    world.later(30)
    before = world.job(other)
    assert world.worker.extend([(mine, LEASE)]).lost == set()
    assert world.job(other) == before


def test_one_heartbeat_extends_each_lease_by_its_own_length(world: World) -> None:
    long, short = world.add(LockTimeoutMinutes=10), world.add(LockTimeoutMinutes=1)
    runs = world.worker.start([world.request(claim) for claim in world.claim().claims])
    world.later(10)
    assert world.worker.extend([(run, run.lease_seconds) for run in runs.values()]).lost == set()
    assert world.instant(long, "leaseendsat") == world.now + timedelta(minutes=10)
    assert world.instant(short, "leaseendsat") == world.now + timedelta(minutes=1)


def test_a_heartbeat_returns_the_lost_ones_and_extends_the_rest(world: World) -> None:
    names = [world.add() for _ in range(3)]
    runs = list(world.worker.start([world.request(claim) for claim in world.claim().claims]).values())
    runs.sort(key=lambda run: names.index(run.job_name))
    world.finish(runs[1])
    gone = overlapping(world)
    kept = overlapping(world)
    world.finish(gone)
    world.later(5)
    held = [(run, LEASE) for run in (*runs, gone, kept)]
    assert world.worker.extend(held).lost == {runs[1].run_id, gone.run_id}
    assert world.instant(names[0], "leaseendsat") == world.now + timedelta(seconds=LEASE)
    assert world.job(names[1])["leaseendsat"] is None


def test_no_leases_are_no_losses(world: World) -> None:
    assert world.worker.extend([]).lost == set()


@pytest.mark.parametrize("field", ["run_id", "claim_id", "fence"])
def test_a_heartbeat_needs_run_claim_and_fence_each(world: World, field: str) -> None:
    name = world.add()
    leased, held = world.running(), overlapping(world)
    world.later(5)
    for run in (leased, held):
        wrong: dict[str, Any] = {field: run.fence - 1 if field == "fence" else world.ids.random_id()}
        forged = run._replace(**wrong)
        assert world.worker.extend([(forged, 3600)]).lost == {forged.run_id}
    assert world.instant(name, "leaseendsat") == NOON + timedelta(seconds=LEASE)


def test_a_lease_past_its_end_is_still_its_holders_until_somebody_takes_it(world: World) -> None:
    """After an outage living workers get the chance to extend before anyone reclaims."""
    name = world.add()
    run = world.running()
    world.later(LEASE + 60)
    assert world.worker.extend([(run, LEASE)]).lost == set()
    assert world.beat.ended(10) == []
    assert world.instant(name, "leaseendsat") == world.now + timedelta(seconds=LEASE)


def test_a_heartbeat_never_resurrects_a_run_that_ended(world: World) -> None:
    name = world.add()
    run = world.running()
    world.finish(run)
    before = world.job(name)
    assert world.worker.extend([(run, LEASE)]).lost == {run.run_id}
    assert world.job(name) == before


def test_a_heartbeat_never_resurrects_a_lease_that_was_taken(world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(LEASE)
    world.sweep()
    assert world.worker.extend([(run, LEASE)]).lost == {run.run_id}
    assert world.job(name)["lockedby"] is None


def test_a_heartbeat_does_not_touch_the_lease_of_the_successor(world: World) -> None:
    name = world.add()
    zombie = world.running()
    world.later(LEASE)
    world.sweep()
    successor = world.running()
    assert successor.run_id != zombie.run_id
    before = world.job(name)
    world.later(10)
    assert world.worker.extend([(zombie, 3600)]).lost == {zombie.run_id}
    assert world.job(name) == before


def test_a_heartbeat_of_the_attempt_before_it_was_un_started_is_lost(world: World) -> None:
    """Run and attempt are the same again; claim and fence tell the two holders apart."""
    world.add()
    zombie = world.running()
    world.finish(zombie, released("shutdown"))
    run = world.running()
    assert run.run_id == zombie.run_id
    assert world.worker.extend([(zombie, LEASE)]).lost == {zombie.run_id}
    assert world.worker.extend([(run, LEASE)]).lost == set()


def test_a_heartbeat_is_lost_after_an_unlocking_by_hand(world: World) -> None:
    name = world.add()
    run = world.running()
    world.change(name, LockedBy=None)
    assert world.worker.extend([(run, LEASE)]).lost == {run.run_id}


def test_overlapping_runs_have_leases_of_their_own(world: World) -> None:
    run = overlapping(world)
    before = world.job(run.job_name)
    world.later(30)
    assert world.worker.extend([(run, 300)]).lost == set()
    (row,) = world.runs(run.job_name)
    assert as_instant(row["leaseendsat"]) == world.now + timedelta(seconds=300)
    assert row["heldby"] == "worker-1"
    assert world.job(run.job_name) == before


def test_an_overlapping_run_that_was_taken_for_lost_is_lost(world: World) -> None:
    run = overlapping(world)
    world.later(LEASE)
    world.sweep()
    assert world.worker.extend([(run, LEASE)]).lost == {run.run_id}


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_row_that_somebody_keeps_locked_is_neither_lost_nor_in_the_way_of_the_others(
    world: World, place: Place, columns: dict[str, Any]
) -> None:
    """An operator's open transaction on one job must not end all leases of a worker."""
    if place.address.startswith("sqlite"):
        pytest.skip("SQLite locks no single rows")
    runs = []
    for _ in range(3):
        world.add(**columns)
        claim = world.claim_one()
        if columns:
            world.beat.mark_dispatched([claim])
        run = world.start(claim)
        assert run is not None
        runs.append(run)
    session = place.dialect().connect()
    session.begin()
    session.script(
        f"UPDATE JobRuns SET Reason = NULL WHERE RunId = '{runs[1].run_id}'"
        if columns
        else f"UPDATE Jobs SET Fence = Fence WHERE Id = '{runs[1].job_id}'"
    )
    try:
        world.later(10)
        assert world.worker.extend([(run, LEASE) for run in runs]) == Extended(set(), {runs[1].run_id})
    finally:
        session.rollback()
        session.close()
    assert world.worker.extend([(run, LEASE) for run in runs]) == Extended(set(), set())


def test_one_statement_extends_more_leases_than_any_worker_holds(world: World) -> None:
    world.add()
    run = world.running()
    others = [run._replace(run_id=world.ids.random_id(), job_id=world.ids.random_id()) for _ in range(2500)]
    lost, busy = world.worker.extend([(one, LEASE) for one in (run, *others)])
    assert lost == {one.run_id for one in others} and busy == set()


# What waits in a worker for its start


def unbegun(claim: Claim, celery_retries: int = 0) -> Unbegun:
    return Unbegun(claim.run_id, claim.claim_id, claim.fence, celery_retries)


def test_the_deadline_of_a_message_that_waits_in_a_worker_moves_on_and_never_back(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.beat.mark_published([(claim, 2 * LEASE)])
    assert world.worker.postpone([unbegun(claim)]) == {claim.run_id}
    assert world.instant(name, "leaseendsat") == NOON + timedelta(seconds=2 * LEASE)
    world.later(1.5 * LEASE)
    assert world.worker.postpone([unbegun(claim)]) == {claim.run_id}
    assert world.instant(name, "leaseendsat") == world.now + timedelta(seconds=LEASE)
    world.later(0.75 * LEASE)
    assert world.sweep() == set()
    assert world.start(claim) is not None


def test_a_message_that_waits_in_a_worker_counts_as_published_before_its_beat_has_said_so(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.later(10)
    assert world.worker.postpone([unbegun(claim)]) == {claim.run_id}
    assert world.instant(name, "publishedat") == world.now
    assert world.publish(claim) == {claim.run_id}


def test_nothing_is_postponed_that_has_begun_or_ended_or_belongs_to_another_claim(world: World) -> None:
    world.add()
    run = world.running()
    claim = Unbegun(run.run_id, run.claim_id, run.fence, 0)
    assert world.worker.postpone([claim]) == set()
    assert world.worker.postpone([claim._replace(celery_retries=1)]) == {run.run_id}, "its retry waits here"
    assert world.worker.postpone([claim._replace(celery_retries=1, fence=run.fence + 1)]) == set()
    assert world.sibling().for_worker("worker-2").postpone([claim._replace(celery_retries=1)]) == set()
    world.finish(run)
    assert world.worker.postpone([claim._replace(celery_retries=1)]) == set()
    assert world.worker.postpone([]) == set()


def test_a_run_that_was_let_go_by_its_worker_is_dispatched_and_begins_no_more(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.publish(claim)
    run = world.start(claim)
    assert run is not None
    assert world.finish(run, left_to_strategy())
    assert world.states(name) == ["dispatched"]
    assert world.job(name)["lockedby"] is None
    assert world.instant(name, "nextruntime") == NOON + timedelta(seconds=60)
    assert world.start(claim) is None
    overlapped = overlapping(world)
    assert world.finish(overlapped, left_to_strategy())
    assert world.worker.start([StartRequest(*overlapped[:3], world.ids.random_id(), 0)]) == {}
