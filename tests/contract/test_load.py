"""How many rows a fire writes: what docs/dba.md tells a DBA, counted by triggers."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.world import OVERLAP, World

PAGE = (Path(__file__).parents[2] / "docs/dba.md").read_text()
TABLES = ("Jobs", "JobRuns")


@pytest.fixture
def written(world: World) -> Iterator[Callable[[], tuple[int, int]]]:
    """Yield the rows of Jobs and JobRuns written since the last time it was asked."""
    if world.store.database.dialect.name != "sqlite":
        pytest.skip("the statements are the same, the triggers that count them are SQLite's")
    for table in TABLES:
        world.sql(f"CREATE TABLE Counted{table} (N integer)")
        for event in ("INSERT", "UPDATE"):
            world.sql(
                f"CREATE TRIGGER Count{event}{table} AFTER {event} ON {table}"
                f" BEGIN INSERT INTO Counted{table} VALUES (1); END"
            )

    def since() -> tuple[int, int]:
        found = tuple(world.sql(f"SELECT count(*) AS n FROM Counted{table}")[0]["n"] for table in TABLES)
        for table in TABLES:
            world.sql(f"DELETE FROM Counted{table}")
        return found[0], found[1]

    yield since
    for table in TABLES:
        world.sql(f"DROP TRIGGER CountINSERT{table}")
        world.sql(f"DROP TRIGGER CountUPDATE{table}")
        world.sql(f"DROP TABLE Counted{table}")


def said(step: str) -> tuple[int, int]:
    row = re.search(rf"^\| {step}(?:, each)? \| \w+ \| (\d) \| (\d) \|$", PAGE, re.MULTILINE)
    assert row is not None
    return int(row[1]), int(row[2])


def test_a_fire_writes_as_many_rows_as_the_page_says(world: World, written: Callable[[], tuple[int, int]]) -> None:
    world.add()
    written()
    claim = world.claim_one()
    assert written() == said("claim")
    world.publish(claim)
    assert written() == said("published")
    run = world.start(claim)
    assert run is not None
    assert written() == said("start")
    assert world.worker.extend([(run, run.lease_seconds)]).lost == set()
    assert written() == said("heartbeat")
    assert world.finish(run)
    assert written() == said("success")


def test_a_fire_that_is_forgotten_writes_half(world: World, written: Callable[[], tuple[int, int]]) -> None:
    world.add(Policies=OVERLAP)
    written()
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    jobs, runs = written()
    assert f"a beat writes {jobs} and {runs}." in PAGE
