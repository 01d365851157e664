"""Outcomes: who may write them, what becomes of the slot, and when the job goes on."""

from datetime import datetime, timedelta

import pytest

from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.model.lifecycle import Backoff, Ending, after_failure, after_lost_lease, after_success
from tests.support.world import LEASE, NOON, OVERLAP, World

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
BACKOFF = Backoff(base=8.0, factor=2.0, longest=600.0)


def failed(run: StartedRun, error: str | None = None, random: float = 1.0) -> Ending:
    """Return what a worker decides about a run that raised; `random` is the jitter's draw."""
    return after_failure(run.failures, run.max_retries, BACKOFF, lambda: random, error)


def lost(run: StartedRun, limit: int = 5, counted: bool = True) -> Ending:
    """Return what is decided about a run whose lease was lost."""
    return after_lost_lease(run.lost_leases, limit, counted=counted)


@pytest.mark.parametrize("changed", [NOON - timedelta(days=1), NOON + timedelta(days=1)])
@pytest.mark.parametrize("ending", [after_success(), Ending("dlq", "retries exhausted"), Ending("cancelled")])
def test_an_operators_next_run_wins_over_the_outcome(world: World, changed: datetime, ending: Ending) -> None:
    name = world.add()
    run = world.running()
    world.change(name, NextRunTime=changed)
    assert world.finish(run, ending)
    assert world.instant(name, "nextruntime") == changed


def test_an_operators_next_run_wins_also_while_the_slot_waits_for_its_retry(world: World) -> None:
    name = world.add()
    run = world.running()
    world.finish(run, failed(run))
    changed = NOON + timedelta(hours=5)
    world.change(name, NextRunTime=changed)
    world.later(8)
    run = world.running()
    assert run.attempt == 2
    world.finish(run)
    assert world.instant(name, "nextruntime") == changed


def test_an_operators_next_run_wins_also_while_the_slot_waits_to_be_claimed_again(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    changed = NOON + timedelta(hours=5)
    world.change(name, NextRunTime=changed)
    world.beat.release_claims([claim], "no broker")
    world.finish(world.running())
    assert world.instant(name, "nextruntime") == changed


def test_an_operators_change_does_not_finish_a_once_job(world: World) -> None:
    name = world.add(Schedule="once 2027-03-01T12:00:00Z")
    run = world.running()
    world.change(name, NextRunTime=NOON + MINUTE)
    world.finish(run)
    assert (world.job(name)["enabled"], world.instant(name, "nextruntime")) == (1, NOON + MINUTE)


def test_a_retry_written_by_hand_runs_once_and_leaves_the_schedule(world: World) -> None:
    name = world.add(NextRunTime=NOON + timedelta(hours=1), RetryAt=NOON - SECOND)
    run = world.running()
    assert (run.kind, run.scheduled_for, run.attempt) == ("schedule", NOON - SECOND, 1)
    world.finish(run)
    assert (world.job(name)["retryat"], world.instant(name, "nextruntime")) == (None, NOON + timedelta(hours=1))


def test_a_retry_written_by_hand_begins_the_schedule_of_a_job_without_a_next_run(world: World) -> None:
    name = world.add(NextRunTime=None, RetryAt=NOON - SECOND)
    run = world.running()
    assert run.scheduled_for == NOON - SECOND
    world.finish(run)
    assert (world.job(name)["enabled"], world.instant(name, "nextruntime")) == (1, NOON + MINUTE)


def test_the_backoff_doubles_and_is_jittered_fully(world: World) -> None:
    name = world.add(Policies='{"max_retries": 4}')
    run = world.running()
    for random, expected in ((0.5, 4), (0.0, 0), (1.0, 32), (0.25, 16)):
        world.finish(run, failed(run, random=random))
        assert world.instant(name, "retryat") == world.now + expected * SECOND
        world.later(expected)
        run = world.running()


def extra_run(world: World, name: str) -> StartedRun:
    """Start an extra slot of a job whose schedule is not due."""
    assert world.add_slot(world.job(name)["id"])
    return world.running()


def test_an_extra_slot_unlocked_by_hand_goes_back_to_the_outbox(world: World) -> None:
    for start in (False, True):
        name = world.add(NextRunTime=world.now + timedelta(hours=1))
        world.add_slot(world.job(name)["id"])
        claim = world.claim_one()
        if start:
            world.start(claim)
        world.change(name, LockedBy=None, NextRunTime=world.now)
        world.finish(world.running())
        world.finish(world.running())
        ends = {row["kind"]: row["state"] for row in world.runs(name) if row["state"] != "retry"}
        assert ends == {"manual": "success", "schedule": "success"}


def test_a_run_left_behind_by_a_hand_is_not_forgotten_over_an_extra_slot(world: World) -> None:
    name = world.add()
    run = world.running()
    world.change(name, LockedBy=None, NextRunTime=NOON + MINUTE)
    world.add_slot(run.job_id)
    following = world.running()
    assert (following.kind, following.scheduled_for, following.attempt) == ("schedule", NOON, 2)
    world.finish(following)
    extra = world.running()
    assert extra.kind == "manual"


def test_a_retry_is_not_forgotten_over_an_extra_slot_left_behind_by_a_hand(world: World) -> None:
    name = world.add()
    run = world.running()
    world.finish(run, failed(run))
    extra_run(world, name)
    world.change(name, LockedBy=None)
    world.later(8)
    second = world.running()
    assert (second.kind, second.scheduled_for, second.attempt) == ("schedule", NOON, 2)
    world.finish(second)
    again = world.running()
    assert (again.kind, again.attempt) == ("manual", 2)


def test_an_overlapping_run_unlocked_by_hand_is_lost_to_its_holder(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    run = world.running()
    world.change(name, LockedBy=None)
    assert world.claim_one().slot.attempt == 2
    assert world.worker.extend([(run, LEASE)]).lost == {run.run_id}
    assert not world.finish(run)
    world.later(LEASE)
    assert {lease.attempt for lease in world.beat.ended(10)} == {2}


@pytest.mark.parametrize("state", ["retry", "dispatched", "dlq", "failed", "unheard of", "claimed"])
def test_the_database_refuses_an_illegal_transition(world: World, state: str) -> None:
    name = world.add()
    world.finish(world.running())
    with pytest.raises(Exception, match=r"(?i)JobRuns_Transitions"):
        world.sql(
            "UPDATE JobRuns SET PriorState = State, State = ? WHERE Namespace = ? AND JobName = ?",
            state,
            world.namespace,
            name,
        )
    assert world.states(name) == ["success"]


def test_the_database_refuses_a_run_that_was_born_running(world: World) -> None:
    name = world.add()
    world.claim_one()
    with pytest.raises(Exception, match=r"(?i)JobRuns_Transitions"):
        world.sql(
            "UPDATE JobRuns SET PriorState = 'new', State = 'running' WHERE Namespace = ? AND JobName = ?",
            world.namespace,
            name,
        )
