"""A row that the database refuses, for a value, a constraint or a trigger, is set aside; all others go on."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest

from celery_sqlbeat.beat.tending import Tending
from celery_sqlbeat.lifecycle import Ending
from celery_sqlbeat.model import Mend
from tests.contract.test_quarantine import mend_all
from tests.contract.world import LEASE, NOON, World

MANY = 9


@contextmanager
def refusing(world: World, name: str, condition: str) -> Iterator[None]:
    """A trigger of the shop's own: it lets no row of this job become so."""
    kind = world.store.database.dialect.name
    when = f"NEW.JobName = '{name}' AND NEW.Namespace = '{world.namespace}' AND {condition}"
    if kind == "sqlite":
        made = [
            f"CREATE TRIGGER Shops BEFORE UPDATE ON Jobs WHEN {when} BEGIN SELECT RAISE(ABORT, 'the shop says no'); END"
        ]
        dropped = ["DROP TRIGGER Shops"]
    elif kind == "postgresql":
        made = [
            "CREATE FUNCTION shops() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN IF {when} THEN RAISE EXCEPTION 'the shop says no'; END IF; RETURN NEW; END $$",
            "CREATE TRIGGER Shops BEFORE UPDATE ON Jobs FOR EACH ROW EXECUTE FUNCTION shops()",
        ]
        dropped = ["DROP TRIGGER Shops ON Jobs", "DROP FUNCTION shops()"]
    else:
        where = when.replace("NEW.", "i.")
        made = [
            "CREATE TRIGGER dbo.Shops ON dbo.Jobs AFTER UPDATE AS "
            f"IF EXISTS (SELECT 1 FROM inserted AS i WHERE {where}) THROW 50000, N'the shop says no', 1"
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
        assert [quarantine.job_name for quarantine in claimed.plan.quarantines] == [names[4]]
        assert "the shop says no" in world.job(names[4])["quarantine"]
        assert world.runs(names[4]) == []
        assert world.claim().claims == []
    assert world.publish(*claimed.claims) == {claim.run_id for claim in claimed.claims}


def test_a_loose_row_that_is_refused_is_set_aside_and_the_others_are_filled_in(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    names = [world.add(NextRunTime=None) for _ in range(MANY)]
    tending = Tending(world.beat, world.planner, LEASE)
    with refusing(world, names[2], "NEW.NextRunTime IS NOT NULL"):
        with caplog.at_level(logging.ERROR):
            tending.tend()
            tending.tend()
        assert caplog.text.count(f"job {names[2]} is set aside") == 1, "told once, as long as it is the same"
        assert "the shop says no" in world.job(names[2])["quarantine"]
        assert all(world.job(name)["nextruntime"] is not None for name in names if name != names[2])
    tending.tend()
    assert world.job(names[2])["quarantine"] is None and world.job(names[2])["nextruntime"] is not None


def test_instants_out_of_bounds_are_refused_by_their_rows_alone(world: World) -> None:
    if world.store.database.dialect.name == "sqlite":
        return  # a file keeps any text; the calculus has the bounds
    names = [world.add(NextRunTime=None) for _ in range(3)]
    beyond = datetime(9999, 12, 31, tzinfo=timezone.utc)
    rows = world.beat.loose_rows(10)
    mends = [Mend(row.job_id, row.fence, beyond if row.job_name == names[0] else NOON, None) for row in rows]
    written = world.beat.mend(mends)
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
