"""After a restore every fence is raised by an epoch.

What was given out before is worth nothing any more.
"""

from datetime import timedelta

import pytest

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


def test_a_row_that_is_added_after_it_begins_above_all_that_the_database_may_have_forgotten(world: World) -> None:
    epoch = world.store.recover()
    name = world.add()
    assert fence(world, name) >= epoch * STEP
    claim = world.claim_one()
    assert claim.fence > epoch * STEP
    world.sql("DELETE FROM Jobs WHERE Namespace = ?", world.namespace)
    world.add(name)
    assert fence(world, name) == claim.fence
