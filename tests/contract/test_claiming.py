"""Claiming: what is due, for whom, and what is recorded in the same transaction."""

from datetime import timedelta

import pytest

from celery_sqlbeat.model.lifecycle import Ending
from tests.support.world import DISPATCH, LEASE, NOON, World


@pytest.mark.parametrize(
    "changed", [{"NextRunTime": NOON - timedelta(seconds=90)}, {"RetryAt": NOON - timedelta(seconds=5)}, {"Version": 7}]
)
def test_a_job_that_was_changed_by_hand_since_it_was_read_is_not_claimed(
    world: World, changed: dict[str, object]
) -> None:
    """A DBA's statement raises no version; whoever changes a job through this package raises it."""
    name = world.add()
    due = world.beat.due(10)
    world.change(name, **changed)
    claimed = world.beat.claim(due, world.planner(due), DISPATCH)
    assert (claimed.claims, len(claimed.missed)) == ([], 1)
    assert world.runs(name) == [] and world.job(name)["lockedby"] is None
    assert len(world.claim().claims) == 1


def test_an_attempt_that_has_ended_otherwise_since_it_was_read_is_not_continued(world: World) -> None:
    name = world.add()
    world.finish(world.running(), Ending("retry", "failed", 1.0, 1, 0, "e", "t"))
    world.later(1)
    due = world.beat.due(10)
    assert [job.job_name for job in due.jobs] == [name]
    world.sql(
        "UPDATE JobRuns SET PriorState = State, State = 'cancelled' WHERE Namespace = ? AND JobName = ?",
        world.namespace,
        name,
    )
    claimed = world.beat.claim(due, world.planner(due), DISPATCH)
    assert (claimed.claims, len(claimed.missed)) == ([], 1)
    assert world.states(name) == ["cancelled"] and world.job(name)["lockedby"] is None


def test_a_locked_job_is_not_claimed_whoever_locked_it(world: World) -> None:
    world.add(LockedBy="maintenance")
    assert world.claim().claims == []


def test_a_lock_that_stands_for_no_run_is_freed_in_time(world: World) -> None:
    """A DBA may lock a row by hand with nothing but a name; it must not be locked for ever."""
    name = world.add(LockedBy="maintenance")
    assert world.beat.release_orphan_locks(120) == []
    world.later(119)
    assert world.beat.release_orphan_locks(120) == []
    world.later(2)
    assert world.beat.release_orphan_locks(120) == [name]
    assert world.job(name)["lockedby"] is None


def test_a_lease_that_ended_is_no_lock_that_stands_for_no_run(world: World) -> None:
    """Its attempt has to be released with it, by whoever reclaims it."""
    name = world.add()
    run = world.running()
    world.later(2 * LEASE)
    assert world.store.release_orphan_locks(LEASE) == []
    assert world.job(name)["fence"] == run.fence and world.job(name)["lockedby"] is not None
    assert world.states(name) == ["running"]


def test_a_job_unlocked_by_hand_runs_again_under_a_new_attempt(world: World) -> None:
    name = world.add()
    run = world.running()
    world.sql("UPDATE Jobs SET LockedBy = NULL WHERE JobName = ?", name)
    claim = world.claim_one()
    assert claim.slot.scheduled_for == run.scheduled_for
    assert world.states(name) == ["retry", "claimed"]
    assert world.worker.extend([(run, 120)]).lost == {run.run_id}
    assert not world.finish(run)
