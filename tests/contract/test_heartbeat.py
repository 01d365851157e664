"""Heartbeats: a lease lives as long as its holder says, unless it is taken over."""

from typing import Any

import pytest

from celery_sqlbeat.store.records import Extended
from tests.contract.conftest import Place
from tests.support.world import LEASE, OVERLAP, World


def test_a_heartbeat_is_lost_after_an_unlocking_by_hand(world: World) -> None:
    name = world.add()
    run = world.running()
    world.change(name, LockedBy=None)
    assert world.worker.extend([(run, LEASE)]).lost == {run.run_id}


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_row_that_somebody_keeps_locked_is_neither_lost_nor_in_the_way_of_the_others(
    world: World, place: Place, columns: dict[str, Any]
) -> None:
    """An operator's open transaction on one job must not end all leases of a worker."""
    if place.address.startswith("sqlite"):
        pytest.skip("SQLite locks no single rows")
    runs = []
    for _ in range(3):
        world.add(**columns)
        claim = world.claim_one()
        if columns:
            world.beat.mark_dispatched([claim])
        run = world.start(claim)
        assert run is not None
        runs.append(run)
    session = place.dialect().connect()
    session.begin()
    session.script(
        f"UPDATE JobRuns SET Reason = NULL WHERE RunId = '{runs[1].run_id}'"
        if columns
        else f"UPDATE Jobs SET Fence = Fence WHERE Id = '{runs[1].job_id}'"
    )
    try:
        world.later(10)
        assert world.worker.extend([(run, LEASE) for run in runs]) == Extended(set(), {runs[1].run_id})
    finally:
        session.rollback()
        session.close()
    assert world.worker.extend([(run, LEASE) for run in runs]) == Extended(set(), set())
