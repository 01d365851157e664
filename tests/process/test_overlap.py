"""A job every 2 s whose run takes 3.3 s, by each policy for what comes due meanwhile.

Real beats and workers.
"""

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from celery_sqlbeat.model import RunRecord
from celery_sqlbeat.model.lifecycle import CANCELLED, RUNNING, SKIPPED, SUCCESS
from tests.process.conftest import workers
from tests.process.outcomes import page
from tests.process.workers import Lane, WorkerShop, lane_name
from tests.support.beats import assert_clean, wait_for

pytestmark = pytest.mark.slow

EVERY, TAKES = 2.0, 3.3  # seconds
MOMENT = 1.0  # seconds: beat, broker and worker on a busy machine
TURNS = 4
POLICIES = {
    "queues": {},
    "skips": {"overlap": "skip"},
    "replaces": {"overlap": "replace"},
    "allows": {"overlap": "allow"},
    "limits": {"overlap": "allow", "max_parallel": 1},
}
LANES = [Lane("prefork", "redis", "postgresql", "early"), Lane("threads", "rabbitmq", "sqlite", "late")]


@pytest.fixture(scope="module", params=LANES, ids=lane_name)
def shop(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[WorkerShop]:
    """Yield a shop whose jobs have run several times; heartbeats are rare there."""
    folder: Path = tmp_path_factory.mktemp("overlap")
    with workers(folder, request) as make:
        shop = make(request.param)
        shop.write_app(
            request.param,
            beat_schedule={name: {"task": "work.sleep", "schedule": EVERY, "args": [TAKES]} for name in POLICIES},
            sqlbeat_policies={"*": {"cadence": "fixed_rate"}, **POLICIES},
            sqlbeat_lock_timeout=120,
            sqlbeat_heartbeat_interval=30,
        )
        shop.work(request.param.pool, concurrency=10).ready()
        beats = [shop.start(), shop.start()]
        wait_for(lambda: all(len(shop.starts(name)) > TURNS for name in POLICIES), 60, shop.logs)
        for beat in beats:
            beat.stop()
        shop.wait_for_outcome(*POLICIES)
        assert_clean(*beats)
        yield shop


def ran(shop: WorkerShop, name: str) -> list[tuple[RunRecord, datetime, datetime]]:
    """Return the runs of a job that have begun and ended, with when."""
    found = []
    for run in shop.attempts(name):
        if run.started_at is not None and run.finished_at is not None:
            assert isinstance(run.started_at, datetime) and isinstance(run.finished_at, datetime)
            found.append((run, run.started_at, run.finished_at))
    return sorted(found, key=lambda one: one[1])


def assert_every_slot_is_accounted_for(shop: WorkerShop, name: str) -> None:
    step = timedelta(seconds=EVERY)
    slots = [run.scheduled_for + at * step for run in shop.attempts(name) for at in range(run.slot_count)]
    assert sorted(slots) == [min(slots) + at * step for at in range(len(slots))]


@pytest.mark.parametrize("name", POLICIES)
def test_every_slot_has_one_outcome(shop: WorkerShop, name: str) -> None:
    assert_every_slot_is_accounted_for(shop, name)
    assert not {run.state for run in shop.attempts(name)} & {RUNNING}
    assert {run.reason for run in shop.attempts(name) if run.state == SKIPPED} <= {"overlap"}


def test_a_job_that_queues_runs_right_after_its_last_run(shop: WorkerShop) -> None:
    runs = ran(shop, "queues")
    for (_, _, ended), (_, began, _) in itertools.pairwise(runs):
        assert timedelta() <= began - ended < timedelta(seconds=MOMENT)


def test_a_job_that_skips_waits_for_its_next_point(shop: WorkerShop) -> None:
    runs = ran(shop, "skips")
    for (one, _, ended), (after, began, _) in itertools.pairwise(runs):
        assert (after.scheduled_for - one.scheduled_for).total_seconds() >= 2 * EVERY
        assert ended <= after.scheduled_for <= began < after.scheduled_for + timedelta(seconds=MOMENT)
    assert {run.state for run, _, _ in runs} == {SUCCESS}
    assert SKIPPED in shop.states("skips")


def test_a_job_that_replaces_stops_the_older_run_first(shop: WorkerShop) -> None:
    runs = ran(shop, "replaces")
    assert [(run.state, run.reason) for run, _, _ in runs[:-1]] == [(CANCELLED, "replaced")] * (len(runs) - 1)
    for (_, _, ended), (_, began, _) in itertools.pairwise(runs):
        assert ended <= began, "two leases"
    replaced = {run.run_id for run, _, _ in runs if run.state == CANCELLED}
    expected = page()["The next slot comes while it runs, with `overlap = replace`"]
    for run, _, _ in runs[:-1]:
        assert (run.state, run.failures, run.lost_leases) == (expected.state, expected.failures, expected.lost_leases)
    assert not replaced & {line.run for line in shop.lines("replaces", what="end")}, "it went on"


def test_a_job_that_allows_runs_beside_itself_as_often_as_it_may(shop: WorkerShop) -> None:
    def overlaps(name: str) -> int:
        runs = ran(shop, name)
        return sum(began < ended for (_, _, ended), (_, began, _) in itertools.pairwise(runs))

    assert overlaps("allows") > 0 and SKIPPED not in shop.states("allows")
    assert overlaps("limits") == 0 and SKIPPED in shop.states("limits")
