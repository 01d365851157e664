"""What the other beats are told.

A run that leaves its job due at another instant than its claim had planned.
"""

from datetime import timedelta

from celery_sqlbeat.model import DeleteJob
from celery_sqlbeat.model.lifecycle import Ending, released
from tests.support.world import World


def test_a_run_that_ends_as_planned_bothers_nobody(world: World) -> None:
    world.add(Schedule="cron * * * * *")
    run = world.running()
    before = world.beat.changes()
    world.later(10)
    world.finish(run)
    assert world.beat.changes() == before


def test_a_run_longer_than_its_interval_leaves_a_due_job_and_says_so(world: World) -> None:
    world.add()
    run = world.running()
    before = world.beat.changes()
    world.later(90)
    world.finish(run)
    assert world.beat.changes() > before
    assert world.beat.next_deadlines().due_at is not None


def test_a_retry_is_announced(world: World) -> None:
    world.add()
    run = world.running()
    before = world.beat.changes()
    world.finish(run, Ending("retry", "failed", 5.0, 1))
    assert world.beat.changes() > before


def test_the_end_of_a_fixed_delay_is_announced_since_nobody_could_plan_it(world: World) -> None:
    world.add(Policies='{"cadence": "fixed_delay"}')
    run = world.running()
    before = world.beat.changes()
    world.finish(run)
    assert world.beat.changes() > before


def test_a_claim_given_back_is_announced(world: World) -> None:
    world.add()
    claim = world.claim_one()
    before = world.beat.changes()
    world.beat.release_claims([claim], "the broker is away")
    assert world.beat.changes() > before


def test_a_run_whose_next_slot_was_moved_by_hand_is_announced(world: World) -> None:
    name = world.add()
    run = world.running()
    world.sql("UPDATE Jobs SET NextRunTime = ? WHERE JobName = ?", world.now + timedelta(seconds=10), name)
    before = world.beat.changes()
    world.finish(run)
    assert world.beat.changes() > before


def test_the_end_of_a_run_that_a_deletion_waits_for_is_announced(world: World) -> None:
    name = world.add(Schedule="cron * * * * *")
    run = world.running()
    world.write(DeleteJob(name))
    before = world.beat.changes()
    world.later(10)
    world.finish(run)
    assert world.beat.changes() > before


def test_the_end_of_the_last_overlapping_run_of_a_job_that_goes_is_announced(world: World) -> None:
    name = world.add(Schedule="cron * * * * *", Policies='{"overlap": "allow"}')
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    run = world.start(claim)
    assert run is not None
    world.write(DeleteJob(name))
    before = world.beat.changes()
    world.later(10)
    assert world.finish(run)
    assert world.beat.changes() > before
    (row,) = world.beat.rows_needing_repair(10)
    assert world.beat.delete_requested([row.job_id]).done == {row.job_id}


def test_a_lease_that_is_taken_over_tells_of_a_deletion(world: World) -> None:
    name = world.add(Schedule="cron * * * * *")
    world.running()
    world.write(DeleteJob(name))
    before = world.beat.changes()
    world.later(1000)
    ended = world.beat.ended(10)
    assert world.beat.reclaim([(lease, Ending("dlq", "lease lost")) for lease in ended])
    assert world.beat.changes() > before


def test_a_run_that_was_not_begun_is_announced(world: World) -> None:
    world.add()
    run = world.running()
    before = world.beat.changes()
    world.finish(run, released("the worker stops"))
    assert world.beat.changes() > before
