"""After a restore every fence is raised by an epoch.

What was given out before is worth nothing any more.
"""

from datetime import timedelta

import pytest

from celery_sqlbeat.model.lifecycle import RETRY
from celery_sqlbeat.store.sql import migrations
from celery_sqlbeat.store.sql.migrations import STEP
from tests.support.world import NOON, World


def fence(world: World, name: str) -> int:
    return int(world.job(name)["fence"])


def test_every_fence_is_raised_and_keeps_its_order(world: World) -> None:
    names = [world.add() for at in range(3)]
    for at, name in enumerate(names):
        world.change(name, Fence=at)  # a row that is added after a recovery is above it already
    epoch = world.store.recover()
    assert [fence(world, name) for name in names] == [epoch * STEP + at for at in range(3)]
    assert world.store.check_schema().epoch == epoch


def test_it_may_be_repeated_and_every_epoch_is_later(world: World) -> None:
    name = world.add()
    world.change(name, Fence=7)
    first = world.store.recover()
    second = world.store.recover()
    assert second > first
    assert fence(world, name) == second * STEP + 7


def test_a_backup_that_is_restored_twice_gives_no_epoch_twice(world: World) -> None:
    name = world.add(Fence=7)
    world.sql("UPDATE StoreInfo SET Epoch = 0")
    first = world.store.recover()
    world.sql("UPDATE StoreInfo SET Epoch = 0")
    world.change(name, Fence=7)
    world.later(60)
    assert world.store.recover() > first
    assert fence(world, name) > first * STEP + STEP - 1


def test_a_holder_of_before_has_lost_its_lease(world: World) -> None:
    name = world.add()
    run = world.running()
    world.store.recover()
    assert world.worker.extend([(run, 120)]).lost == {run.run_id}
    assert not world.finish(run)
    assert world.states(name) == ["running"]


def test_a_message_of_before_is_stale(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.store.recover()
    assert world.start(claim) is None


def test_a_beat_of_before_can_mark_and_give_back_nothing(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.store.recover()
    assert world.publish(claim) == set()
    assert world.beat.release_claims([claim], "x").done == set()


def test_what_was_held_is_taken_over_when_its_lease_ends(world: World) -> None:
    name = world.add()
    world.running()
    world.store.recover()
    world.later(300)
    world.sweep()
    assert world.states(name) == [RETRY]
    again = world.running()
    assert (again.attempt, again.scheduled_for) == (2, NOON)
    assert again.fence > world.store.check_schema().epoch * STEP
    assert world.finish(again)


def test_a_message_that_was_queued_is_sent_again_under_the_new_fence(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.store.recover()
    world.later(200)
    (lease,) = world.beat.ended(10)
    assert lease.fence == world.store.check_schema().epoch * STEP + claim.fence % STEP
    assert world.sweep() == {claim.run_id}
    assert world.start(claim._replace(fence=lease.fence)) is not None


def test_a_message_that_was_dispatched_still_runs_since_nobody_would_send_it_again(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    epoch = world.store.recover()
    run = world.start(claim)
    assert run is not None and run.fence == claim.fence < epoch * STEP
    assert world.finish(run)


def test_other_namespaces_are_raised_too_and_page_by_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "_PAGE", 2)
    names = [world.add() for _ in range(5)]
    world.sql(
        "INSERT INTO Jobs (Namespace, JobName, TaskName, NextRunTime) VALUES (?, 'x', 't', ?)",
        world.namespace + "-other",
        NOON + timedelta(days=1),
    )
    steps: list[int] = []
    epoch = world.store.recover(steps.append)
    assert min(fence(world, name) for name in names) == epoch * STEP
    (other,) = world.sql("SELECT Fence FROM Jobs WHERE Namespace = ?", world.namespace + "-other")
    assert other["fence"] == epoch * STEP
    assert max(steps) == 2 and sum(steps) >= 6


def test_history_that_has_ended_is_left_alone(world: World) -> None:
    name = world.add()
    world.finish(world.running())
    before = [run["fence"] for run in world.runs(name)]
    world.store.recover()
    assert [run["fence"] for run in world.runs(name)] == before


def test_a_row_that_is_added_after_it_begins_above_all_that_the_database_may_have_forgotten(world: World) -> None:
    epoch = world.store.recover()
    name = world.add()
    assert fence(world, name) >= epoch * STEP
    claim = world.claim_one()
    assert claim.fence > epoch * STEP
    world.sql("DELETE FROM Jobs WHERE Namespace = ?", world.namespace)
    world.add(name)
    assert fence(world, name) == claim.fence
