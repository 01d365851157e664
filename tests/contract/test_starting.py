"""Starting: one attempt begins at most once, and never while another run holds the job."""

from celery_sqlbeat.model.lifecycle import why_refused
from tests.support.world import NOON, World


def test_a_late_start_keeps_out_of_a_job_that_was_unlocked_by_hand(world: World) -> None:
    """The run left behind there is still to be taken up, so the row must not forget it."""
    name = world.add(NextRunTime=NOON)
    early = world.never_started()
    run = world.running()
    world.change(name, LockedBy=None)
    assert world.start(early) is None
    assert world.claim_one().slot.continues == run.run_id


def test_a_refusal_that_has_passed_ends_nothing(world: World) -> None:
    """The job was held when the start was refused, and is free when it is asked why."""
    name = world.add(Schedule="every 7d")
    claim = world.never_started()
    answer = world.store._refuse([world.request(claim)])
    assert why_refused(answer.get(claim.run_id)) is None
    assert world.states(name) == ["dispatched"]
    assert world.start(claim) is not None


def test_stale_messages_are_told_apart(world: World) -> None:
    world.add()
    stale = world.claim_one()
    world.beat.release_claims([stale], "no answer from the broker")
    assert world.refused(stale) == "stale: its run is scheduled (no answer from the broker)"
    claim = world.claim_one()
    assert world.refused(stale) == "stale: its claim is no longer valid"
    assert world.refused(claim._replace(fence=claim.fence + 1)) == "stale: its claim is no longer valid"
    unknown = claim._replace(run_id=world.ids.random_id())
    assert world.refused(unknown) == "stale: its run is not known here, or its history is gone"
    assert world.start(claim) is not None
