"""Effects that a transaction guards, and a worker that is killed at each of its statements."""

import contextlib
import sqlite3
from collections.abc import Callable

import psycopg
import pytest

from celery_sqlbeat.store.sql.guard import guard_script
from tests.process.conftest import MakeWorkers
from tests.process.outcomes import assert_outcome
from tests.process.test_one_offs import client, ended
from tests.process.workers import LEASE, PATIENCE, Lane, WorkerShop

pytestmark = pytest.mark.slow

TABLE = "CREATE TABLE Effects (Job varchar(200), Attempt integer)"
DONE_BEFORE = "effects were done by attempt 1"
NEVER = 999


def among_the_jobs(shop: WorkerShop, name: str) -> str:
    """Give the database of the jobs themselves."""
    return str(shop.folder / "beat.db") if shop.database_url.startswith("sqlite") else shop.database_url


def in_a_file(shop: WorkerShop, name: str) -> str:
    """Give a database of the shop's own, each job one, since SQLite has one writer at a time."""
    where = shop.folder / f"{name}.db"
    with contextlib.closing(sqlite3.connect(where)) as file:
        file.executescript(f"{TABLE}; {guard_script('sqlite')}")
    return str(where)


def effects_in(where: str, name: str) -> list[int]:
    """Return by which attempts the effects of a job were done."""
    text = f"SELECT Attempt FROM Effects WHERE Job = '{name}'"
    if where.startswith("postgresql"):
        with psycopg.connect(where) as connection:
            return [int(attempt) for (attempt,) in connection.execute(text.encode())]
    with contextlib.closing(sqlite3.connect(where)) as file:
        return [int(attempt) for (attempt,) in file.execute(text)]


@pytest.mark.parametrize(
    ("lane", "place", "at_once"),
    [
        (Lane("prefork", "redis", "postgresql", "late"), among_the_jobs, True),
        (Lane("prefork", "rabbitmq", "sqlite", "early"), in_a_file, True),
        # Who stands still has the file, so that one does at a time.
        (Lane("prefork", "redis", "sqlite", "late"), among_the_jobs, False),
    ],
    ids=["postgresql", "sqlite", "sqlite-of-the-jobs"],
)
def test_effects_are_done_once_wherever_their_worker_is_killed(
    make_workers: MakeWorkers, lane: Lane, place: Callable[[WorkerShop, str], str], at_once: bool
) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, extra="import tests.process.effect_tasks", sqlbeat_policies={})
    if lane.database == "postgresql":
        with psycopg.connect(shop.database_url) as connection:
            connection.execute(TABLE)
    elif place is among_the_jobs:
        with contextlib.closing(sqlite3.connect(shop.folder / "beat.db")) as file:
            file.execute(TABLE)
    places = {"count": place(shop, "count")}
    shop.order("work.once", places["count"], NEVER, name="count")
    worker = shop.work(concurrency=1).ready()
    shop.dispatch()
    shop.wait_for_states("count", "success")
    (line,) = shop.lines("count", what="steps")
    worker.stop()
    # Before each statement, after the last one, and after the commit at the end of the body.
    points = line.more["steps"] + 1
    assert points >= 9, line
    names = [f"stop-{at:02}" for at in range(points)]
    for group in [names] if at_once else [[name] for name in names]:
        for name in group:
            places[name] = place(shop, name)
            shop.order("work.once", places[name], names.index(name), name=name)
        worker = shop.work(concurrency=len(group)).ready()
        shop.dispatch()
        shop.wait_for_line("stands", *group, times=len(group))
        worker.kill()
    before = {name: effects_in(places[name], name) for name in names}
    assert list(before.values()) == [[]] * (points - 1) + [[1]], before
    again = shop.work(concurrency=4).ready()
    shop.dispatch_until(lambda: all(shop.states(name) == ["retry", "success"] for name in names))
    assert {name: effects_in(places[name], name) for name in names} == {name: before[name] or [2] for name in names}
    done = "It lets `AlreadyDone` out: an earlier attempt has done its effects"
    assert_outcome(shop, names[-1], done, attempt=2)
    reasons = {name: shop.attempts(name)[-1].reason for name in names}
    assert reasons == {name: DONE_BEFORE if before[name] else None for name in names}
    again.stop()
    assert effects_in(places["count"], "count") == [1]


def test_the_effects_of_a_one_off_are_done_once_whatever_store_it_is_in(make_workers: MakeWorkers) -> None:
    lane = Lane("prefork", "redis", "redis", "late")
    shop = make_workers(lane)
    shop.write_app(lane, extra="import tests.process.effect_tasks", sqlbeat_dispatch_timeout=3.0)
    where = in_a_file(shop, "shop")
    worker = shop.work(concurrency=1).ready()
    shop.start()
    with client(shop) as beat:
        counted = ended(beat, shop, beat.submit("work.once", [where, NEVER]))
        (line,) = shop.lines(what="steps")
        run = beat.submit("work.once", [where, line.more["steps"]])
        shop.wait_for_line("stands")
        worker.kill()
        shop.work(concurrency=1).ready()
        done = ended(beat, shop, run, PATIENCE + LEASE)
    assert (done.state, done.attempt, done.reason) == ("success", 2, DONE_BEFORE)
    assert effects_in(where, counted.id) == effects_in(where, run.id) == [1]
