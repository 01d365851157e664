"""What the other beats are told: a run that leaves its job due at another instant than its claim had planned."""

from datetime import timedelta

from celery_sqlbeat.lifecycle import Ending, given_back
from tests.contract.world import World


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
    assert world.beat.next_wake().due_at is not None


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
    world.beat.give_back([claim], "the broker is away")
    assert world.beat.changes() > before


def test_a_run_whose_next_slot_was_moved_by_hand_is_announced(world: World) -> None:
    name = world.add()
    run = world.running()
    world.sql("UPDATE Jobs SET NextRunTime = ? WHERE JobName = ?", world.now + timedelta(seconds=10), name)
    before = world.beat.changes()
    world.finish(run)
    assert world.beat.changes() > before


def test_a_run_that_was_not_begun_is_announced(world: World) -> None:
    world.add()
    run = world.running()
    before = world.beat.changes()
    world.finish(run, given_back("the worker stops"))
    assert world.beat.changes() > before
