"""The fence of a name never repeats or falls, whoever deletes the job and defines it again."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from celery_sqlbeat.model import AddJob, DeleteJob, JobDraft
from celery_sqlbeat.store.purges import OldNodes
from celery_sqlbeat.store.sql.migrations import STEP
from celery_sqlbeat.store.sql.session import sql_folder
from tests.support.world import NOON, World

DRAFT = JobDraft("", "app.task", "every 60s", None, None, None, None, None, True, None, NOON, None)
KEEP = 30 * 86400.0
DAY = timedelta(days=1)


def fence(world: World, name: str) -> int:
    return int(world.job(name)["fence"])


def run_once(world: World, name: str = "nightly") -> list[int]:
    """Return the fences of one run, from its claim to its end."""
    world.change(name, NextRunTime=world.now)
    claim = world.claim_one()
    world.publish(claim)
    run = world.start(claim)
    assert run is not None
    world.finish(run)
    return [claim.fence, fence(world, name)]


def define(world: World, name: str = "nightly") -> None:
    assert world.write(AddJob(DRAFT._replace(job_name=name))) == {name}


def delete_by_hand(world: World, name: str = "nightly") -> None:
    world.sql("DELETE FROM Jobs WHERE Namespace = ? AND JobName = ?", world.namespace, name)


@pytest.mark.parametrize("by_hand", [False, True], ids=["by this package", "by hand"])
def test_a_job_that_is_deleted_and_defined_again_goes_on_with_its_fences(world: World, by_hand: bool) -> None:
    seen: list[int] = []
    for _ in range(3):
        if by_hand:
            world.add("nightly", NextRunTime=NOON + DAY)
        else:
            define(world)
        seen += run_once(world)
        seen += run_once(world)
        if by_hand:
            delete_by_hand(world)
        else:
            world.write(DeleteJob("nightly"))
        world.later(1)
    assert seen == sorted(set(seen)), seen


def test_many_rows_that_are_deleted_by_one_statement_keep_their_fences(world: World) -> None:
    for at in range(5):
        world.add(f"job-{at}", Fence=10 * at)
    world.sql("DELETE FROM Jobs WHERE Namespace = ?", world.namespace)
    world.write(*(AddJob(DRAFT._replace(job_name=f"job-{at}")) for at in range(5)))
    assert [fence(world, f"job-{at}") for at in range(5)] == [0, 10, 20, 30, 40]


def test_a_row_that_is_added_with_a_fence_of_its_own_is_raised_at_most(world: World) -> None:
    world.add("nightly", Fence=7)
    delete_by_hand(world)
    world.add("nightly", Fence=100)
    assert fence(world, "nightly") == 100
    delete_by_hand(world)
    world.add("nightly", Fence=50)
    assert fence(world, "nightly") == 100


def test_a_job_that_is_renamed_leaves_its_fences_to_its_name(world: World) -> None:
    if world.store.database.dialect.name == "mssql":
        pytest.skip("docs/dba.md says so: a trigger on every UPDATE would cost each claim and heartbeat")
    world.add("old", Fence=7)
    world.add("used", Fence=20)
    delete_by_hand(world, "used")
    world.sql("UPDATE Jobs SET JobName = 'new' WHERE Namespace = ? AND JobName = 'old'", world.namespace)
    world.add("old")
    assert (fence(world, "new"), fence(world, "old")) == (7, 7)
    world.sql("UPDATE Jobs SET JobName = 'used' WHERE Namespace = ? AND JobName = 'new'", world.namespace)
    assert fence(world, "used") == 20


def test_a_job_that_is_added_while_its_deletion_commits_goes_on_with_its_fences(world: World) -> None:
    """The new row waits for the old one's deletion, and must see what that has left."""
    if world.store.database.dialect.name == "sqlite":
        pytest.skip("one writer at a time, which keeps them apart")
    world.add("nightly", Fence=7)
    session = world.store.database.dialect.connect()
    session.begin()
    session.script(f"DELETE FROM Jobs WHERE Namespace = '{world.namespace}'")
    adding = threading.Thread(target=world.add, args=["nightly"])
    adding.start()
    adding.join(0.3)  # it waits for the row; if it has not come that far, the outcome is the same
    session.commit()
    session.close()
    adding.join(30)
    assert fence(world, "nightly") == 7


def test_a_name_that_was_deleted_long_ago_is_forgotten_and_its_fences_are_not(world: World) -> None:
    def remembered() -> int:
        return len(world.sql("SELECT JobName FROM DeletedJobs WHERE Namespace = ?", world.namespace))

    define(world)
    world.change("nightly", Fence=7)
    world.write(DeleteJob("nightly"))
    for _ in range(3):  # a pass notes it, raises the floor, forgets it
        world.admin.purge(OldNodes(KEEP))
    assert remembered() == 1
    world.later(KEEP + 60)
    world.admin.purge(OldNodes(KEEP))
    assert remembered() == 1
    world.admin.purge(OldNodes(KEEP))
    assert remembered() == 0
    define(world)
    assert fence(world, "nightly") == 7
    define(world, "other")
    assert fence(world, "other") == 7


def test_a_name_that_is_deleted_again_is_not_forgotten_early(world: World) -> None:
    world.add("nightly", Fence=7)
    delete_by_hand(world)
    world.admin.purge(OldNodes(KEEP))
    world.later(KEEP + 60)
    world.add("nightly")
    world.change("nightly", Fence=9)
    delete_by_hand(world)
    world.admin.purge(OldNodes(KEEP))
    world.admin.purge(OldNodes(KEEP))
    world.add("nightly")
    assert fence(world, "nightly") == 9


def test_replacing_a_row_is_a_deletion(world: World) -> None:
    if world.store.database.dialect.name not in ("sqlite", "mysql"):
        pytest.skip("there is no REPLACE")
    world.add("nightly", Fence=7)
    row = (world.namespace, "nightly", "app.task")
    world.sql("REPLACE INTO Jobs (Namespace, JobName, TaskName) VALUES (?, ?, ?)", *row)
    assert fence(world, "nightly") == 7


def test_the_step_of_an_epoch_is_the_same_in_every_script() -> None:
    for database in ("sqlite", "postgresql", "mysql", "mssql"):
        (script,) = Path(sql_folder(database) / "migrations").glob("0002_*.sql")
        assert str(STEP) in script.read_text()
