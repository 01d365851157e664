"""One-offs with real beats and workers: now, later, and through the death of whoever has them."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery.result import AsyncResult

from celery_sqlbeat.api import Handle, Run
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.model.lifecycle import SUCCESS
from tests.process.conftest import MakeWorkers
from tests.process.workers import LEASE, PATIENCE, Lane, WorkerShop, lane_name
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LANES = (
    Lane("prefork", "rabbitmq", "postgresql", "late"),
    Lane("threads", "redis", "sqlite", "late"),
    Lane("gevent", "redis", "redis", "late"),
)
on_each = pytest.mark.parametrize("lane", LANES, ids=lane_name)
DISPATCH = 3.0  # seconds
SUBMITTERS = 20


@contextlib.contextmanager
def client(shop: WorkerShop) -> Iterator[Handle]:
    """Yield the handle of a program of the shop, which is neither a beat nor a worker."""
    app = shop.place.app(result_backend=shop.conf["result_backend"])
    names = {name: value for name, value in shop.conf.items() if name.startswith("sqlbeat_")}
    settings = read_settings(
        {**names, "sqlbeat_database_url": shop.database_url, "sqlbeat_dispatch_timeout": DISPATCH}, {}
    )
    beat = Handle(app, settings)
    try:
        yield beat
    finally:
        beat.close()
        app.close()


def program(shop: WorkerShop, text: str, first: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a program of the shop; `first` stands before all imports."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SQLBEAT_")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{first}\nimport os, signal, sys, celery_sqlbeat, shop\n{text}"],
        cwd=shop.folder,
        env={**inherited, "PYTHONPATH": f"{ROOT}{os.pathsep}{shop.folder}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def ended(beat: Handle, shop: WorkerShop, run: Run, seconds: float = PATIENCE) -> Run:
    """Wait for the end of a run; say what everybody has said where it does not come."""
    try:
        return beat.runs.wait(run.id, seconds)
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{beat.runs.get(run.id)}\n{shop.logs()}") from error


def starts(shop: WorkerShop, run: Run) -> list[Any]:
    """Return when the body of a run began."""
    return [line for line in shop.starts() if line.run == run.id]


@on_each
def test_a_one_off_runs_once_now_or_when_its_time_has_come(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, sqlbeat_dispatch_timeout=DISPATCH)
    shop.work(lane.pool, concurrency=2).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    with client(shop) as beat:
        first = ended(beat, shop, beat.submit("work.note", [1, 2]))  # no beat is there: the submitter publishes
        assert first.state == SUCCESS
        shop.start()
        later = beat.submit("work.note", [1], eta=shop.now() + timedelta(seconds=3))
        assert later.state == "scheduled"
        run = ended(beat, shop, later)
        assert run.state == SUCCESS
        assert run.started_at is not None
        assert timedelta() <= run.started_at - later.scheduled_for < timedelta(seconds=5)
        runs = beat.submit_many({"task": "work.note", "args": [number]} for number in range(20))
        assert {ended(beat, shop, each).state for each in runs} == {SUCCESS}
        assert AsyncResult(first.id, app=beat.app).get(timeout=PATIENCE) == 2
        for each in (first, later, *runs):
            assert len(starts(shop, each)) == 1
        assert {each.id for each in beat.runs.list(one_off=True)} == {each.id for each in (first, later, *runs)}


@on_each
def test_a_beat_takes_over_from_a_submitter_that_was_killed_before_it_published(
    make_workers: MakeWorkers, lane: Lane
) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, sqlbeat_dispatch_timeout=DISPATCH)
    shop.work(lane.pool, concurrency=2).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    killed = program(
        shop,
        """
from celery_sqlbeat.api.submitter import Submitter
Submitter.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
celery_sqlbeat.setup(shop.app).submit("work.note", [1])
""",
    )
    assert killed.returncode == -9, killed.stderr
    with client(shop) as beat:
        (run,) = beat.runs.list(one_off=True)
        assert run.state == "claimed"
        assert starts(shop, run) == []
        shop.start()
        done = ended(beat, shop, run)
        assert (done.id, done.state) == (run.id, SUCCESS)
        assert done.fence > run.fence
        assert len(starts(shop, run)) == 1


@on_each
def test_the_run_of_a_killed_worker_is_tried_again_under_its_own_id(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, sqlbeat_dispatch_timeout=DISPATCH)
    first = shop.work(lane.pool, concurrency=1).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    shop.start()
    with client(shop) as beat:
        run = beat.submit("work.sleep", [30.0, 0.1])
        wait_for(lambda: starts(shop, run), PATIENCE, shop.logs)
        first.kill()
        shop.work(lane.pool, concurrency=1).ready()
        done = ended(beat, shop, run, PATIENCE + LEASE)
        assert (done.id, done.state, done.attempt, done.lost_leases) == (run.id, SUCCESS, 2, 1)
        assert [line.attempt for line in starts(shop, run)] == [1, 2]
        assert AsyncResult(run.id, app=beat.app).state == "SUCCESS"


KEY = """
beat = celery_sqlbeat.setup(shop.app)
beat.submit("work.note", [0])  # its parent has connections and a thread, which no child may use
reading, writing = os.pipe()
for number in range({submitters}):
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 1)  # until all have begun
        run = beat.submit("work.note", [1], idempotency_key="one")
        beat.close()
        os.write(1, f"{{run.id}} {{run.is_new}}\\n".encode())
        os._exit(0)
os.close(writing)
codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range({submitters})]
assert not any(codes), codes
"""


@on_each
def test_twenty_processes_that_submit_one_key_at_once_start_one_run(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    # With time-outs as they come: all wait for who was first.
    shop.write_app(lane, sqlbeat_lock_timeout=120, sqlbeat_heartbeat_interval=30)
    shop.work(lane.pool, concurrency=2).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    done = program(shop, KEY.format(submitters=SUBMITTERS))
    assert done.returncode == 0, done.stderr
    answers = [line.split() for line in done.stdout.splitlines()]
    assert len(answers) == SUBMITTERS
    assert len({run_id for run_id, _ in answers}) == 1
    assert [is_new for _, is_new in answers].count("True") == 1
    with client(shop) as beat:
        run = ended(beat, shop, beat.runs.list(one_off=True)[0])
        assert run.state == SUCCESS
        wait_for(lambda: len(shop.starts()) == 2, PATIENCE, shop.logs)
        assert len(starts(shop, beat.submit("work.note", [1], idempotency_key="one"))) == 1


@pytest.mark.parametrize("lane", LANES[:1], ids=lane_name)
def test_the_command_submits_and_shows_what_became_of_it(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    shop.work(lane.pool, concurrency=2).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)

    def command(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop", "sqlbeat", *arguments],
            cwd=shop.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    run = json.loads(command("submit", "work.note", "--args", "[1, 2]", "--key", "k", "--ttl", "60", "--json"))
    assert (run["is_new"], run["job_name"], run["task"]) == (True, None, "work.note")
    again = command("submit", "work.note", "--args", "[1, 2]", "--key", "k")
    assert f"run {run['id']} of work.note was submitted before" in again
    with client(shop) as beat:
        assert beat.runs.wait(run["id"], PATIENCE).state == SUCCESS
    later = command("submit", "work.note", "--in", "3w", "--strict")
    assert "is scheduled, due" in later
    assert "work.note" in command("runs", "show", run["id"])
    assert command("runs", "list", "--one-off").count("work.note") == 2
    assert "no such task" in command("submit", "work.unheard", "--strict", code=1)
    assert "--in" in command("submit", "work.note", "--in", "soon", code=2)
    assert "time zone" in command("submit", "work.note", "--eta", "2030-01-01T00:00:00")
    conflict = command("submit", "work.note", "--key", "k", code=1)
    assert run["id"] in conflict
    assert "Traceback" not in conflict


GREEN = """
import gevent
beat = celery_sqlbeat.setup(shop.app)
runs = [gevent.spawn(beat.submit, "work.note", [number]) for number in range({submitters})]
gevent.joinall(runs, raise_error=True)
print(*[run.value.id for run in runs])
"""


@pytest.mark.parametrize("lane", LANES, ids=lane_name)
def test_green_threads_submit_beside_each_other_and_the_end_of_their_process_records_it(
    make_workers: MakeWorkers, lane: Lane
) -> None:
    shop = make_workers(lane)
    shop.write_app(lane)
    shop.work(lane.pool, concurrency=2).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    done = program(shop, GREEN.format(submitters=SUBMITTERS), "from gevent import monkey; monkey.patch_all()")
    assert done.returncode == 0, done.stderr
    with client(shop) as beat:
        for run_id in done.stdout.split():
            assert beat.runs.wait(run_id, PATIENCE).state == SUCCESS
    assert len(shop.starts()) == SUBMITTERS


@pytest.mark.parametrize("lane", LANES[:2], ids=lane_name)
def test_what_the_shop_commits_is_noticed_and_what_it_rolls_back_never_runs(
    make_workers: MakeWorkers, lane: Lane
) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, sqlbeat_poll_interval=60)
    shop.work(lane.pool, concurrency=2).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    shop.start().says("beat: Starting")
    is_file = lane.database == "sqlite"
    connection: Any = sqlite3.connect(shop.folder / "beat.db", 30) if is_file else psycopg.connect(shop.database_url)
    with client(shop) as beat:
        lost = beat.submit("work.note", ["lost"], connection=connection)
        connection.rollback()
        kept = beat.submit("work.note", ["kept"], connection=connection)
        connection.commit()
        connection.close()
        assert ended(beat, shop, kept, 20).state == SUCCESS  # long before the next poll
        assert beat.runs.get(lost.id) is None
    assert [line.run for line in shop.starts()] == [kept.id]


FAR = """
from celery import current_app
beat = celery_sqlbeat.setup(shop.app)
note = shop.app.tasks["work.note"]
kept = note.apply_async(["a", "b"], countdown=4, link=note.si("linked"), headers={"tenant": "7"})
revoked = note.apply_async(["never"], countdown=4)
revoked.revoke()
near = note.apply_async(["near"], countdown=0.5)
print(kept.id, revoked.id, near.id)
beat.close()
"""


@pytest.mark.parametrize("lane", LANES[:2], ids=lane_name)
def test_a_call_far_ahead_is_kept_until_its_time_with_its_link_and_a_revoked_one_never_runs(
    make_workers: MakeWorkers, lane: Lane
) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, sqlbeat_durable_eta=2)
    done = program(shop, FAR)
    assert done.returncode == 0, done.stderr
    kept, revoked, near = done.stdout.split()
    shop.work(lane.pool, concurrency=2).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    shop.start()
    with client(shop) as beat:
        assert {run.id for run in beat.runs.list(one_off=True)} == {kept, revoked}
        run = beat.runs.wait(kept, PATIENCE)
        assert (run.state, run.attempt) == (SUCCESS, 1)
        assert beat.runs.wait(revoked, PATIENCE).state == "cancelled"
        assert str(AsyncResult(revoked, app=beat.app).state) == "REVOKED"
        assert AsyncResult(kept, app=beat.app).get(timeout=PATIENCE) == 2
        wait_for(lambda: len(shop.lines(what="end")) == 3, PATIENCE, shop.logs)
        begun = [line.run for line in shop.starts()]
        assert revoked not in begun
        assert {kept, near} < set(begun)
