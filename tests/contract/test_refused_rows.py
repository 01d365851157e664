"""A row that the database refuses, for a value, a constraint or a trigger, is set aside.

All others go on.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import cast

import pytest
from celery import Celery

from celery_sqlbeat.api import Handle
from celery_sqlbeat.beat.housekeeping import CleanUp, Housekeeping
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import RowRefused
from celery_sqlbeat.model import DeleteJob, Node, RepairJob
from celery_sqlbeat.model.lifecycle import Ending
from celery_sqlbeat.store.purges import OldKeys, OldNodes, OldRuns, Purged
from celery_sqlbeat.store.sql.store import SqlStore
from tests.contract.test_beat_schedule import LIVE, MINUTE, Beat
from tests.contract.test_quarantine import mend_all
from tests.support.views import AdminView, CodeView, NodeView
from tests.support.world import LEASE, NOON, World

MANY = 9


@contextmanager
def refusing(
    world: World, name: str, condition: str = "1 = 1", event: str = "UPDATE ON Jobs", column: str = "JobName"
) -> Iterator[None]:
    """Yield a trigger of the shop's own: it lets no row of this name become so, or go."""
    kind = world.store.database.dialect.name
    row = "OLD" if event.startswith("DELETE") else "NEW"
    when = f"{row}.{column} = '{name}' AND {row}.Namespace = '{world.namespace}' AND {condition}"
    table = event.split()[-1]
    if kind == "sqlite":
        made = [f"CREATE TRIGGER Shops BEFORE {event} WHEN {when} BEGIN SELECT RAISE(ABORT, 'the shop says no'); END"]
        dropped = ["DROP TRIGGER Shops"]
    elif kind == "postgresql":
        made = [
            "CREATE FUNCTION shops() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN IF {when} THEN RAISE EXCEPTION 'the shop says no'; END IF; RETURN {row}; END $$",
            f"CREATE TRIGGER Shops BEFORE {event} FOR EACH ROW EXECUTE FUNCTION shops()",
        ]
        dropped = [f"DROP TRIGGER Shops ON {table}", "DROP FUNCTION shops()"]
    elif kind == "mysql":
        no = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the shop says no'"
        made = [f"CREATE TRIGGER Shops BEFORE {event} FOR EACH ROW IF {when} THEN {no}; END IF"]
        dropped = ["DROP TRIGGER Shops"]
    else:
        where, changed = when.replace(f"{row}.", "i."), "deleted" if row == "OLD" else "inserted"
        made = [
            f"CREATE TRIGGER dbo.Shops ON dbo.{table} AFTER {event.split()[0]} AS "
            f"IF EXISTS (SELECT 1 FROM {changed} AS i WHERE {where}) THROW 50000, N'the shop says no', 1"
        ]
        dropped = ["DROP TRIGGER dbo.Shops"]
    for statement in made:
        world.sql(statement)
    try:
        yield
    finally:
        for statement in dropped:
            world.sql(statement)


@pytest.mark.parametrize("never", ["once 9999-12-31T23:59:59Z", "once 0001-01-01T00:00:00Z"])
def test_a_schedule_that_no_table_can_keep_is_set_aside_and_the_others_are_filled_in(world: World, never: str) -> None:
    wrong = world.add(Schedule=never, NextRunTime=None)
    right = world.add(NextRunTime=None)
    broken = world.add(Args="nonsense", NextRunTime=None)
    mend_all(world)
    assert "Schedule" in world.job(wrong)["quarantine"] and "the years 2 to 9998" in world.job(wrong)["quarantine"]
    assert world.instant(right, "nextruntime") == NOON + timedelta(seconds=60)
    assert world.job(broken)["quarantine"].startswith("Args")


def test_an_interval_that_leaves_the_calendar_comes_to_its_end(world: World) -> None:
    world.at(datetime(9997, 1, 1, tzinfo=timezone.utc))
    last, right = world.add(Schedule="every 1000d"), world.add()
    for claim in world.claim().claims:
        world.publish(claim)
        run = world.start(claim)
        assert run is not None and world.finish(run)
    assert world.job(last)["disabledreason"] == "finished"
    assert world.job(right)["enabled"] == 1


def test_a_claim_that_is_refused_sets_one_row_aside_and_claims_the_others(world: World) -> None:
    names = [world.add() for _ in range(MANY)]
    with refusing(world, names[4], "NEW.LockedBy IS NOT NULL"):
        claimed = world.claim()
        assert {claim.job_name for claim in claimed.claims} == set(names) - {names[4]}
        assert [quarantine.job_name for quarantine in claimed.quarantines] == [names[4]]
        assert "the shop says no" in world.job(names[4])["quarantine"]
        assert world.runs(names[4]) == []
        assert world.claim().claims == []
    assert world.publish(*claimed.claims) == {claim.run_id for claim in claimed.claims}


def test_a_loose_row_that_is_refused_is_set_aside_and_the_others_are_filled_in(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    names = [world.add(NextRunTime=None) for _ in range(MANY)]
    housekeeping = Housekeeping(world.store, world.planner, LEASE)
    with refusing(world, names[2], "NEW.NextRunTime IS NOT NULL"):
        with caplog.at_level(logging.ERROR):
            housekeeping.repair_rows()
            housekeeping.repair_rows()
        assert caplog.text.count(f"row is corrected: job_name={names[2]} ") == 1, "told once, as long as it is the same"
        assert "the shop says no" in world.job(names[2])["quarantine"]
        assert all(world.job(name)["nextruntime"] is not None for name in names if name != names[2])
    housekeeping.repair_rows()
    assert world.job(names[2])["quarantine"] is None and world.job(names[2])["nextruntime"] is not None


def test_instants_out_of_bounds_are_refused_by_their_rows_alone(world: World) -> None:
    if world.store.database.dialect.name == "sqlite":
        return  # a file keeps any text; the calculus has the bounds
    names = [world.add(NextRunTime=None) for _ in range(3)]
    beyond = datetime(9999, 12, 31, tzinfo=timezone.utc)
    rows = world.beat.rows_needing_repair(10)
    mends = [
        RepairJob(row.job_name, row.job_id, row.fence, row.version, beyond if row.job_name == names[0] else NOON, None)
        for row in rows
    ]
    written = world.beat.repair_rows(mends)
    assert len(written.done) == 2 and list(written.refused) == [row.job_id for row in rows if row.job_name == names[0]]


def test_marks_releases_and_heartbeats_are_refused_for_one_row_alone(world: World) -> None:
    names = [world.add() for _ in range(MANY)]
    claims = {claim.job_name: claim for claim in world.claim().claims}
    with refusing(world, names[0], "NEW.PublishedAt IS NOT NULL"):
        assert world.publish(*claims.values()) == {claims[name].run_id for name in names[1:]}
    world.publish(claims[names[0]])
    started = {name: world.start(claims[name]) for name in names}
    runs = {name: run for name, run in started.items() if run is not None}
    world.later(1)
    with refusing(world, names[1], "NEW.LockedBy IS NOT NULL"):
        extended = world.worker.extend([(run, LEASE) for run in runs.values()])
        assert extended.lost == set() and extended.busy == {runs[names[1]].run_id}
    world.later(10 * LEASE)
    with refusing(world, names[2], "NEW.LockedBy IS NULL"):
        ended = world.beat.ended(100)
        taken = world.beat.reclaim([(lease, Ending("retry", "lease lost", 0.0)) for lease in ended])
        assert taken == {runs[name].run_id for name in names if name != names[2]}


OLD = 3600.0


def finished(world: World, many: int) -> list[str]:
    """Jobs with one ended run each, at the same instant, that the history keeps no longer."""
    names = [world.add() for _ in range(many)]
    claims = world.claim().claims
    world.publish(*claims)
    for claim in claims:
        run = world.start(claim)
        assert run is not None and world.finish(run)
    world.later(2 * OLD)
    return names


def test_a_run_that_may_not_be_deleted_is_passed_by_and_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    names = finished(world, MANY)
    with refusing(world, names[4], event="DELETE ON JobRuns"), caplog.at_level(logging.ERROR):
        purged = world.admin.purge(OldRuns(OLD, limit=100))
        assert (purged.rows, len(purged.refused)) == (MANY - 1, 1)
        assert [len(world.runs(name)) for name in names] == [int(name == names[4]) for name in names]
        again = world.admin.purge(OldRuns(OLD, purged.last, limit=100))
        assert (again.rows, again.refused) == (0, {}), "known, and not tried again"
        again = world.admin.purge(OldRuns(OLD, limit=100))
        assert (again.rows, len(again.refused)) == (0, 1), "tried again by the next one from the start"
    (told,) = [record.message for record in caplog.records]
    assert 'action="delete an old run"' in told and "the shop says no" in told
    assert world.admin.purge(OldRuns(OLD, limit=100)).rows == 1, "the shop lets it go"
    assert world.runs(names[4]) == []


def test_a_batch_full_of_runs_that_may_not_be_deleted_stops_no_clean_up(world: World) -> None:
    blocked = finished(world, MANY)
    world.sql("UPDATE JobRuns SET JobName = 'kept' WHERE Namespace = ?", world.namespace)
    free = finished(world, MANY)
    cleaning = CleanUp(cast(SqlStore, _Small(world.admin)), OLD / 86400)
    with refusing(world, "kept", event="DELETE ON JobRuns"):
        for _ in range(3 * MANY):
            if cleaning.clean() >= 1:
                break
        assert [world.runs(name) for name in free] == [[]] * MANY
        assert len(world.runs("kept")) == len(blocked)


def test_a_job_that_a_foreign_row_refers_to_stays_and_its_old_runs_go(world: World) -> None:
    if world.store.database.dialect.name != "postgresql":
        pytest.skip("the trigger stands for it elsewhere: a table of a shop's own would outlive the test")
    names = finished(world, MANY)
    (run,) = world.runs(names[2])
    world.sql("CREATE TABLE Invoices (RunId uuid REFERENCES JobRuns (RunId))")
    try:
        world.sql("INSERT INTO Invoices VALUES (?)", run["runid"])
        assert world.admin.purge(OldRuns(OLD, limit=100)).rows == MANY - 1
        assert len(world.runs(names[2])) == 1
    finally:
        world.sql("DROP TABLE Invoices")


class _Small:
    """A store whose batches are small."""

    def __init__(self, admin: AdminView) -> None:
        self._admin = admin

    def purge(self, what: OldRuns | OldNodes | OldKeys) -> Purged:
        return self._admin.purge(what._replace(limit=4) if isinstance(what, OldRuns) else what)


def test_a_node_that_may_not_be_forgotten_is_passed_by_and_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = NodeView(world.store)
    names = [f"worker@host/{at}" for at in range(MANY)]
    for name in names:
        nodes.heartbeat(Node(name, "worker", "host", 1, "0.1"))
    world.later(2 * OLD)
    with refusing(world, names[4], event="DELETE ON Nodes", column="NodeId"), caplog.at_level(logging.ERROR):
        for _ in range(2):
            world.admin.purge(OldNodes(OLD))
            assert [node.node_id for node in nodes.seen(10 * OLD)] == [names[4]]
    (told,) = [record.message for record in caplog.records]
    assert f'action="forget a node" row={names[4]} ' in told and "the shop says no" in told
    world.admin.purge(OldNodes(OLD))
    assert nodes.seen(10 * OLD) == []


@pytest.mark.parametrize("event", ["DELETE ON DeletedJobs", "UPDATE ON DeletedJobs"])
def test_a_deleted_name_that_may_not_go_keeps_no_other_one(world: World, event: str) -> None:
    def kept() -> list[str]:
        rows = world.sql("SELECT JobName FROM DeletedJobs WHERE Namespace = ?", world.namespace)
        return [row["jobname"] for row in rows]

    names = [world.add(Fence=7 + at) for at in range(MANY)]
    for name in names:
        assert world.write(DeleteJob(name))
    with refusing(world, names[4], event=event):
        for _ in range(3):  # one notes them, one raises the floor, one forgets them
            world.admin.purge(OldNodes(OLD))
            world.later(2 * OLD)
        assert kept() == [names[4]]
    for _ in range(3):
        world.admin.purge(OldNodes(OLD))
        world.later(2 * OLD)
    assert kept() == []
    assert int(world.job(world.add(names[0]))["fence"]) >= 7 + MANY - 1


def test_a_dead_letter_that_may_not_be_deleted_is_named_once_the_others_are_gone(world: World) -> None:
    beat = Handle(Celery("shop", set_as_current=False), read_settings({}, {}), world.store)
    names = [world.add() for _ in range(MANY)]
    claims = world.claim().claims
    world.publish(*claims)
    for claim in claims:
        run = world.start(claim)
        assert run is not None and world.finish(run, Ending("dlq", "failed", None, 1))
    with refusing(world, names[4], event="DELETE ON JobRuns"):
        with pytest.raises(RowRefused, match=f"{MANY - 1} dead letters are gone.* 1: .*the shop says no"):
            beat.dead.purge()
        assert [row.job_name for row in world.letters()] == [names[4]]
    assert beat.dead.purge() == 1


def test_an_entry_that_is_refused_is_left_out_and_the_others_are_imported(world: World) -> None:
    entries = {f"entry-{at}": MINUTE for at in range(MANY)}
    beat = Beat(world)
    beat.is_alive()
    with refusing(world, "entry-3", event="INSERT ON Jobs"):
        done = beat.imports(entries)
        assert sorted(done.added) == sorted(entries.keys() - {"entry-3"}) and done.kept == {}
        assert list(done.refused) == ["entry-3"] and "the shop says no" in done.refused["entry-3"]
        assert done.tally.jobs == MANY - 1
        assert CodeView(world.store).newest_release("shop", "v1", LIVE).imported == "v1"
    assert beat.imports(entries).added == ["entry-3"]


def test_an_entry_whose_change_is_refused_stays_as_it_was(world: World) -> None:
    entries = {f"entry-{at}": MINUTE for at in range(MANY)}
    beat = Beat(world)
    beat.is_alive()
    beat.imports(entries)
    slower = {name: {**entry, "schedule": 120} for name, entry in entries.items() if name != "entry-8"}
    with refusing(world, "entry-3"):
        done = beat.imports(slower)
    assert sorted(done.changed) == sorted(slower.keys() - {"entry-3"}) and done.left == ["entry-8"]
    assert list(done.refused) == ["entry-3"]
    assert world.job("entry-3")["schedule"] == "every 1m" and world.job("entry-2")["schedule"] == "every 2m"
