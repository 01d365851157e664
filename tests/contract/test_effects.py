"""The effects of a slot, in a transaction of the shop: at most once, whoever ends it and when."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import AlreadyDone, LeaseLost, SecondTransaction, SqlbeatError, UnusableConnection
from celery_sqlbeat.store import dialect_for
from celery_sqlbeat.store.records import RunQuery
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.guard import GuardedRun, guard_script
from celery_sqlbeat.worker.current import CurrentRun
from tests.contract.conftest import Place
from tests.contract.test_foreign import ALCHEMY, plain
from tests.support.beats import wait_for
from tests.support.world import NOON, World

pytestmark = pytest.mark.parametrize("place", ["sqlite", "postgresql", "mysql"], indirect=True)

STORE = "6f9619ff-8b86-d011-b42d-00c04fc964ff"  # of jobs that are in another database


@pytest.fixture
def shop(place: Place, world: World) -> Iterator[Callable[[], Any]]:
    """Connect to the shop's database, which is that of the jobs here, with a table of effects."""
    with closing(plain(place)) as connection:
        connection.cursor().execute("CREATE TABLE IF NOT EXISTS Effects (Namespace varchar(100), What varchar(100))")
        connection.commit()
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(plain(place)))


def run_of(
    world: World, attempt: int = 1, fence: int = 1, minutes: int = 0, is_exclusive: bool = True, **given: Any
) -> CurrentRun:
    """Make a run of `nightly`, for so many minutes after noon, as its task sees it."""
    slot = NOON + timedelta(minutes=minutes)
    guarded = GuardedRun(
        STORE, world.namespace, "nightly", "schedule", slot, attempt, fence, "run", is_exclusive, 86400.0
    )._replace(**given)
    return CurrentRun("nightly", slot, attempt, fence, lambda: False, "run", "job", guarded=guarded)


def do(connection: Any, world: World, what: str) -> None:
    text = f"INSERT INTO Effects VALUES ('{world.namespace}', '{what}')"
    if hasattr(connection, "begin_nested"):
        connection.execute(sqlalchemy.text(text))
    else:
        connection.cursor().execute(text)


def fail() -> None:
    raise KeyError


def act(
    run: CurrentRun, connection: Any, world: World, what: str = "", then: Callable[[], object] = lambda: None
) -> None:
    """Do an effect of a run, as its body does, and something after it in the same block."""
    with run.transaction(connection):
        if what:
            do(connection, world, what)
        then()


def effects(place: Place, world: World) -> list[str]:
    rows = place.sql("SELECT What FROM Effects WHERE Namespace = ? ORDER BY What", [world.namespace])
    return [row["what"] for row in rows]


def test_the_effects_of_a_slot_are_done_once(place: Place, world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    act(run_of(world), connection, world, "first")
    with pytest.raises(AlreadyDone, match=r"'nightly' for 2027-03-01T12:00:00\+00:00 were done by attempt 1"):
        act(run_of(world, attempt=2, fence=3), connection, world, "second")
    assert effects(place, world) == ["first"]


def test_a_raise_inside_leaves_nothing_and_a_later_attempt_does_it(
    place: Place, world: World, shop: Callable[[], Any]
) -> None:
    connection = shop()
    with pytest.raises(KeyError):
        act(run_of(world), connection, world, "first", fail)
    act(run_of(world, attempt=2, fence=3), connection, world, "second")
    assert effects(place, world) == ["second"]


def test_a_run_whose_successor_was_here_is_refused(place: Place, world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    act(run_of(world, fence=5, minutes=1), connection, world)
    with pytest.raises(LeaseLost, match="has lost its lease"):
        act(run_of(world, fence=3), connection, world, "late")
    assert effects(place, world) == []


def test_runs_that_may_overlap_do_their_effects_in_any_order(
    place: Place, world: World, shop: Callable[[], Any]
) -> None:
    connection, other = shop(), shop()
    if isinstance(connection, sqlite3.Connection):  # it has one writer at a time
        other = connection
    for each, fence, minutes in ((connection, 9, 1), (other, 5, 0)):
        act(run_of(world, fence=fence, minutes=minutes, is_exclusive=False), each, world, str(minutes))
    assert effects(place, world) == ["0", "1"]
    with pytest.raises(LeaseLost):
        act(run_of(world, fence=4, is_exclusive=False), connection, world, "an older attempt of the slot")


def test_overlapping_runs_do_not_wait_for_one_another(world: World, shop: Callable[[], Any]) -> None:
    connection, other = shop(), shop()
    if isinstance(connection, sqlite3.Connection):
        pytest.skip("SQLite has one writer at a time")
    with run_of(world, fence=9, minutes=1, is_exclusive=False).transaction(connection):
        act(run_of(world, fence=5, is_exclusive=False), other, world)


def test_a_dead_letter_that_is_replayed_after_later_slots_is_known(world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    for at in range(3):
        act(run_of(world, fence=at + 1, minutes=at), connection, world)
    with pytest.raises(AlreadyDone):
        act(run_of(world, attempt=2, fence=9), connection, world)
    act(run_of(world, fence=9, kind="manual"), connection, world)


def test_a_one_off_has_one_slot_whenever_its_attempts_are(world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    act(run_of(world, kind="one_off", job_name="its-id"), connection, world)
    with pytest.raises(AlreadyDone):
        act(run_of(world, 2, 2, minutes=5, kind="one_off", job_name="its-id"), connection, world)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_attempt_waits_for_the_end_of_the_one_before_it(
    place: Place, world: World, shop: Callable[[], Any], end: str
) -> None:
    kind = place.dialect().name
    if kind == "sqlite":
        pytest.skip("SQLite has one writer at a time, which its file lock decides")
    waiting = {
        "postgresql": "SELECT 1 AS x FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()",
        "mysql": "SELECT 1 AS x FROM information_schema.global_status"
        " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS' AND variable_value > 0",
    }[kind]
    first, second = shop(), shop()
    do(first, world, "before")
    act(run_of(world), first, world, "first")
    with ThreadPoolExecutor(1) as executor:
        later = executor.submit(act, run_of(world, 2, 3), second, world, "second")
        try:
            wait_for(lambda: place.sql(waiting, []), 30)
            assert not later.done()
        finally:
            getattr(first, end)()
        assert isinstance(later.exception(30), AlreadyDone) == (end == "commit")
    assert effects(place, world) == (["before", "first"] if end == "commit" else ["second"])


def test_a_transaction_that_was_open_is_its_owners(place: Place, world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    do(connection, world, "before")
    with pytest.raises(KeyError):
        act(run_of(world), connection, world, "undone", fail)
    act(run_of(world), connection, world, "inside")
    assert effects(place, world) == []
    connection.rollback()
    do(connection, world, "again")
    with run_of(world).transaction(connection):
        do(connection, world, "inside")
    connection.commit()
    assert effects(place, world) == ["again", "inside"]
    with pytest.raises(AlreadyDone):
        act(run_of(world, 2, 3), connection, world)


def test_a_connection_in_autocommit_gets_a_transaction(place: Place, world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    if isinstance(connection, sqlite3.Connection):
        connection.isolation_level = None
    elif isinstance(connection, psycopg.Connection):
        connection.autocommit = True
    else:
        connection.autocommit(True)
    with pytest.raises(KeyError):
        act(run_of(world), connection, world, "undone", fail)
    act(run_of(world), connection, world, "done")
    assert effects(place, world) == ["done"]


def test_a_commit_inside_of_the_block_is_told(place: Place, world: World, shop: Callable[[], Any]) -> None:
    connection = shop()

    def commit() -> None:
        connection.commit()
        do(connection, world, "late")

    with pytest.raises((UnusableConnection, psycopg.ProgrammingError), match=r"inside|context"):
        act(run_of(world), connection, world, "early", commit)
    assert "late" not in effects(place, world)


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemys_transactions_are_used(place: Place, world: World, kind: str, shop: Callable[[], Any]) -> None:
    engine = sqlalchemy.create_engine(
        ALCHEMY[place.dialect().name], creator=lambda: plain(place), poolclass=sqlalchemy.NullPool
    )

    def open_one() -> Any:
        return engine.connect() if kind == "connection" else orm.Session(engine)

    with open_one() as connection:
        act(run_of(world), connection, world, "own")
    assert effects(place, world) == ["own"]
    with open_one() as connection, connection.begin():
        with pytest.raises(KeyError):
            act(run_of(world, minutes=1, fence=2), connection, world, "undone", fail)
        act(run_of(world, minutes=1, fence=2), connection, world, "outer")
        assert effects(place, world) == ["own"]
    assert effects(place, world) == ["outer", "own"]
    with open_one() as connection, pytest.raises(AlreadyDone):
        act(run_of(world, 2, 3, 1), connection, world)
    with open_one() as connection, pytest.raises(UnusableConnection, match="committed or rolled back inside"):
        act(run_of(world, 1, 4, 2), connection, world, "early", connection.commit)
    engine.dispose()
    engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    with open_one() as connection, pytest.raises(UnusableConnection, match="commits each statement"):
        act(run_of(world, 1, 5, 3), connection, world)
    engine.dispose()


DJANGO = """
import sys
from datetime import datetime, timezone
import django
from django.conf import settings
from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import AlreadyDone
from celery_sqlbeat.store.sql.guard import GuardedRun
from celery_sqlbeat.worker.current import CurrentRun

address, engine, name, namespace, store_id = sys.argv[1:]
url, noon = database_url(address), datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
host, port = url.hosts[0] if url.hosts else ("", "")
where = dict(ENGINE=f"django.db.backends.{engine}", NAME=name, USER=url.user, PASSWORD=url.password)
settings.configure(DATABASES={"default": where | dict(HOST=host, PORT=port)}, USE_TZ=True)
django.setup()
from django.db import connection, transaction

def act(fence, what, fails=False, **given):
    guarded = GuardedRun(store_id, namespace, "nightly", "schedule", noon, fence, fence, "run", True, 86400.0)
    run = CurrentRun("nightly", noon, fence, fence, lambda: False, "run", "job", guarded=guarded)
    with run.transaction(**given):
        connection.cursor().execute("INSERT INTO Effects VALUES (%s, %s)", [namespace, what])
        if fails:
            raise KeyError

for fence, given in ((1, {"using": "default"}), (2, {"connection": connection})):
    try:
        act(fence, "undone", True, **given)
    except KeyError:
        pass
try:
    with transaction.atomic():
        act(3, "rolled back", using="default")
        raise KeyError
except KeyError:
    pass
act(4, "done", using="default")
try:
    act(5, "second", connection=connection)
except AlreadyDone as error:
    print(error.attempt)
"""


def test_djangos_transactions_are_used(place: Place, world: World, shop: Callable[[], Any]) -> None:
    kind = place.dialect().name
    if kind == "mysql":
        pytest.skip("Django's way to MySQL is mysqlclient, which is no wheel")
    name = place.address.removeprefix("sqlite:///") if kind == "sqlite" else str(database_url(place.address).name)
    engine = kind.replace("sqlite", "sqlite3")
    command = [sys.executable, "-c", DJANGO, place.address, engine, name, world.namespace, STORE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")
    assert effects(place, world) == ["done"]


def test_celerys_own_retry_of_the_same_attempt_finds_the_effects_done(world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    act(run_of(world), connection, world)
    with pytest.raises(AlreadyDone, match="by attempt 1"):
        act(run_of(world), connection, world)


def test_psycopg2_is_a_way_too(place: Place, world: World, shop: Callable[[], Any]) -> None:
    if place.dialect().name != "postgresql":
        pytest.skip("psycopg2 leads to PostgreSQL alone")
    import psycopg2

    with closing(psycopg2.connect(place.address)) as connection:
        for fence, autocommit in ((1, False), (2, True)):
            connection.autocommit = autocommit
            with pytest.raises(KeyError):
                act(run_of(world, 1, fence, fence), connection, world, "undone", fail)
            act(run_of(world, 1, fence, fence), connection, world, str(fence))
            assert effects(place, world)[-1] == str(fence)
            with pytest.raises(AlreadyDone):
                act(run_of(world, 2, fence, fence), connection, world)


def test_a_body_that_asks_a_second_time_is_told_so(world: World, shop: Callable[[], Any]) -> None:
    connection, run = shop(), run_of(world)
    with run.transaction(connection):
        pass
    with pytest.raises(SecondTransaction, match="into one block"):
        act(run, connection, world)


def test_a_lost_lease_ends_the_block_with_nothing_done(place: Place, world: World, shop: Callable[[], Any]) -> None:
    connection, lost = shop(), [False]
    run = CurrentRun("nightly", NOON, 1, 1, lambda: lost[0], "run", "job", guarded=run_of(world)._guarded)
    with pytest.raises(LeaseLost):
        act(run, connection, world, "late", lambda: lost.__setitem__(0, True))
    assert effects(place, world) == []


def test_the_run_of_the_same_database_is_marked_in_the_same_commit(
    place: Place, world: World, shop: Callable[[], Any]
) -> None:
    world.add()
    started, connection = world.running(), shop()

    def marks() -> list[int]:
        rows = place.sql("SELECT EffectsDone FROM JobRuns WHERE RunId = ?", [run_id])
        return [int(row["effectsdone"]) for row in rows]

    run_id = started.run_id
    given: dict[str, Any] = {"store_id": world.store.store_id, "run_id": run_id}
    do(connection, world, "outer")
    act(run_of(world, fence=started.fence, **given), connection, world, "inner")
    assert marks() == [0]
    connection.commit()
    assert marks() == [1]
    assert [run.effects_done for run in world.store.runs(RunQuery(run_ids=[run_id]))] == [1]
    assert world.finish(started)
    with pytest.raises(LeaseLost):
        act(run_of(world, 2, started.fence, 1, **given), connection, world, "after its end")
    connection.rollback()
    assert effects(place, world) == ["inner", "outer"]


def test_old_slots_are_forgotten(place: Place, world: World, shop: Callable[[], Any]) -> None:
    connection = shop()
    for at in range(3):
        act(run_of(world, fence=at + 1, minutes=at), connection, world)
    days = "TouchedAt - interval '3 days'" if place.dialect().name == "postgresql" else "TouchedAt - INTERVAL 3 DAY"
    if place.dialect().name == "sqlite":
        days = "datetime(TouchedAt, '-3 days')"
    place.sql(f"UPDATE SqlbeatGuard SET TouchedAt = {days} WHERE Namespace = ?", [world.namespace])
    act(run_of(world, fence=9, minutes=9), connection, world)
    rows = place.sql("SELECT Slot FROM SqlbeatGuard WHERE Namespace = ?", [world.namespace])
    assert sorted(row["slot"] for row in rows) == ["", "schedule 2027-03-01T12:09:00+00:00"]


def test_the_script_creates_what_is_missing_and_may_be_run_again(place: Place, world: World, tmp_path: Any) -> None:
    kind = place.dialect().name
    database = Database(dialect_for(database_url(place.address), 5.0))
    database.write(lambda session: session.script(guard_script(kind)))
    database.close()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        with pytest.raises(UnusableConnection, match="init --guard"):
            act(run_of(world), connection, world)
        connection.executescript(guard_script("sqlite"))
        act(run_of(world), connection, world)


def test_a_run_that_no_worker_has_started_has_no_guard(shop: Callable[[], Any]) -> None:
    run = CurrentRun("nightly", NOON, 1, 1, lambda: False, "run", "job")
    with pytest.raises(SqlbeatError, match="a worker of this package"), run.transaction(shop()):
        pass
