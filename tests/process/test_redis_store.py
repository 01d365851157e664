"""Beats and workers whose jobs are kept on Redis, on either broker: fires, crashes, commands."""

import json
import signal
import subprocess
import sys

import pytest

from celery_sqlbeat.model.lifecycle import RUNNING, SUCCESS
from tests.process.conftest import MakeWorkers
from tests.process.workers import LEASE, PATIENCE, Lane, WorkerShop, lane_name
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

LANES = (Lane("prefork", "redis", "redis", "late"), Lane("threads", "rabbitmq", "redis", "late"))
on_either_broker = pytest.mark.parametrize("lane", LANES, ids=lane_name)


def command(shop: WorkerShop, *arguments: str) -> str:
    """Run a command of ours; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop", "sqlbeat", *arguments],
        cwd=shop.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


@on_either_broker
def test_jobs_on_redis_fire_run_and_are_told_of_by_the_commands(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, beat_schedule={"tick": {"task": "work.note", "schedule": 1.0}})
    shop.work(lane.pool, concurrency=2).ready()
    beat = shop.start()
    wait_for(lambda: shop.states("tick").count(SUCCESS) >= 3, PATIENCE, shop.logs)
    assert json.loads(command(shop, "status", "--json"))["jobs"]["active"] >= 1
    assert "tick" in command(shop, "jobs", "list")
    assert "tick" in command(shop, "explain", "tick")
    assert SUCCESS in command(shop, "runs", "list")
    assert "nothing to do" in command(shop, "init")
    command(shop, "jobs", "pause", "tick")
    wait_for(lambda: not shop.job("tick").enabled, PATIENCE, shop.logs)
    shop.order("work.note", name="by hand")
    command(shop, "jobs", "export", "jobs.jsonl")
    assert "by hand" in (shop.folder / "jobs.jsonl").read_text()
    command(shop, "jobs", "import", "jobs.jsonl")
    assert beat.stop() < PATIENCE


@on_either_broker
def test_a_killed_worker_costs_its_run_one_lease_on_redis(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    first = shop.work(lane.pool, concurrency=1).ready()
    name = shop.order("work.sleep", 3.0)
    beat = shop.start()
    shop.wait_for_start(name)
    first.kill()
    shop.work(lane.pool, concurrency=1).ready()
    wait_for(lambda: shop.states(name)[-1:] == [SUCCESS], PATIENCE + LEASE, shop.logs)
    attempts = shop.attempts(name)
    assert len({run.run_id for run in attempts}) == len(attempts) == 2
    assert attempts[1].lost_leases == 1
    beat.stop()


@on_either_broker
def test_a_killed_beat_loses_no_slot_on_redis(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    entries = {f"job-{number}": {"task": "work.note", "schedule": 1.0} for number in range(5)}
    shop.write_app(lane, beat_schedule=entries, sqlbeat_dispatch_timeout=3)
    shop.work(lane.pool, concurrency=4).ready()
    killed, other = shop.start(), shop.start()
    wait_for(lambda: len(shop.lines(what="end")) >= 10, PATIENCE, shop.logs)
    killed.process.send_signal(signal.SIGKILL)
    before = len(shop.lines(what="end"))
    wait_for(lambda: len(shop.lines(what="end")) >= before + 15, PATIENCE, shop.logs)
    other.stop()
    for run in shop.runs():
        assert run.state in (SUCCESS, RUNNING, "claimed", "scheduled", "skipped"), run


@on_either_broker
def test_a_message_that_comes_twice_runs_once_on_redis(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    name = shop.order("work.sleep", 0.5)
    claims = shop.claim()
    shop.publish(*claims.values())
    shop.publish(*claims.values(), mark=False)
    worker = shop.work(lane.pool, concurrency=4).ready()
    shop.wait_for_states(name, SUCCESS)
    worker.stop()
    assert len(shop.starts(name)) == 1
