"""Connections that are slow, cut, refused or inherited.

Calls end in time, and no step is lost or done twice.
"""

import os
import secrets
import socket
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from celery import Celery

from celery_sqlbeat.beat_schedule.entries import read_entries
from celery_sqlbeat.beat_schedule.plan import SchedulePlanner
from celery_sqlbeat.beat_schedule.sync import import_code
from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, StoreError, TransientError
from celery_sqlbeat.model import Node, Quarantine, RepairJob
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import Ending, after_success, released
from celery_sqlbeat.store import dialect_for
from celery_sqlbeat.store.faults import Breaker
from celery_sqlbeat.store.records import Recorded
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Call, Dialect
from celery_sqlbeat.store.sql.store import SqlStore
from tests.contract.conftest import Place
from tests.servers import server
from tests.support.by_hand import by_hand, name_of
from tests.support.views import BeatView, NodeView, WorkerView
from tests.support.world import NOON, World

# From Python 3.12 on a fork beside other threads is warned of; Celery's prefork pool does it all
# the same.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

on_servers = pytest.mark.parametrize("place", ["postgresql", "mysql", "mssql"], indirect=True)
PATIENCE = 0.3
LONGEST = PATIENCE + 6  # seconds; ODBC counts its time-outs in whole ones
NODE = Node("n", "beat", "host", 1, "0")._asdict() | {"namespace": "default"}
TIMEOUT = 0.5


class Cut:
    """A dialect whose sessions lose their connection at the next commit, after or before it."""

    def __init__(self, inner: Dialect) -> None:
        self._inner = cast(Any, inner)
        self.name, self.errors = inner.name, inner.errors
        self.single_statements_commit, self.at_once = inner.single_statements_commit, inner.at_once
        self.sessions_survive_fork = inner.sessions_survive_fork
        self.is_spent, self.classify, self.explain = inner.is_spent, inner.classify, inner.explain
        self.armed: str | None = None

    def connect(self) -> Any:
        return CutSession(self._inner.connect(), self)

    def error(self) -> Exception:
        if self.name == "sqlite":
            return sqlite3.OperationalError("disk I/O error")
        if self.name == "mssql":
            text = "[08S01] TCP Provider: Error code 0x2746 (10054) (SQLExecDirectW)"
            return cast(Exception, pytest.importorskip("pyodbc").OperationalError("08S01", text))
        if self.name == "mysql":
            lost = pytest.importorskip("pymysql").OperationalError(2013, "Lost connection to MySQL server during query")
            return cast(Exception, lost)
        psycopg = pytest.importorskip("psycopg")
        return cast(Exception, psycopg.OperationalError("server closed the connection unexpectedly"))


class CutSession:
    """One of its sessions."""

    def __init__(self, inner: Any, dialect: Cut) -> None:
        self._inner, self._dialect = inner, dialect
        self._in_transaction = False
        self.rollback, self.close, self.script = inner.rollback, inner.close, inner.script

    def begin(self) -> None:
        self._inner.begin()
        self._in_transaction = True

    def fetch(self, name: str, rows: Any = None, /, **scalars: Any) -> Any:
        if self._in_transaction or name.startswith("read"):
            return self._inner.fetch(name, rows, **scalars)
        return self._cut(lambda: self._inner.fetch(name, rows, **scalars))

    def fetch_together(self, calls: Sequence[Call]) -> Any:
        return [self.fetch(call.block, call.rows, **call.scalars) for call in calls]

    def commit(self) -> None:
        self._cut(self._inner.commit)
        self._in_transaction = False

    def _cut(self, commit: Callable[[], Any]) -> Any:
        armed, self._dialect.armed = self._dialect.armed, None
        if armed is None:
            return commit()
        if armed == "after it happened":
            commit()
        raise self._dialect.error()


def impatient(place: Place, world: World) -> SqlStore:
    """Return a store whose statements and calls give up soon."""
    dialect = cast(Any, place.dialect())
    dialect._timeout = TIMEOUT
    return SqlStore(Database(dialect, patience=PATIENCE), world.namespace)


def backend_of(session: Any) -> int:
    """Return the server's number of a session's connection."""
    ask = {
        "postgresql": "SELECT pg_backend_pid()",
        "mssql": "SELECT @@SPID",
        "mysql": "SELECT connection_id()",
    }[name_of(session)]
    return cast(int, by_hand(session, ask)[0][0])


def cut(world: World, backend: int) -> None:
    """Let the server end a connection."""
    if world.store.database.dialect.name != "postgresql":
        world.sql(f"KILL {backend}")
    else:
        world.sql("SELECT pg_terminate_backend(?)", backend)


def run_lease(place: Place, name: str, table: str = "Jobs") -> Any:
    """Return a session whose transaction holds the row of a job, or those of its runs."""
    holder = cast(Any, place.dialect()).connect()
    holder.begin()
    by_hand(holder, f"UPDATE {table} SET JobName = JobName WHERE JobName = ?", name)
    return holder


def in_a_child(check: Callable[[], object]) -> None:
    """Fork, run the check there, and fail here if it failed there."""
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("when", ["after it happened", "before it happened"])
def test_a_commit_without_an_answer_is_settled_for_every_step_of_a_fire(world: World, place: Place, when: str) -> None:
    """Each step gives what it would have given, and is there once."""
    name = world.add()
    dialect = Cut(place.dialect())
    store = SqlStore(Database(cast(Any, dialect), sleep=lambda _: None), world.namespace)
    beat, worker = BeatView(store, "beat-1"), WorkerView(store, "worker-1")

    dialect.armed = when
    (claim,) = world.claim(beat).claims
    assert world.states(name) == ["claimed"]
    assert world.job(name)["fence"] == claim.fence == 1

    dialect.armed = when
    assert beat.mark_published([(claim, 120.0)]).done == {claim.run_id}

    dialect.armed = when
    run = worker.start([world.request(claim)])[claim.run_id]
    assert world.job(name)["lockedby"] == "worker-1"

    dialect.armed = when
    assert worker.extend([(run, 120.0)]).lost == set()

    dialect.armed = when
    assert worker.finish([(run, after_success())]) == set()
    assert world.states(name) == ["success"]
    assert world.job(name)["fence"] == 2
    store.close()


class Gone(Cut):
    """The same, and then no connection can be had as long as `is_gone`."""

    is_gone = False

    def connect(self) -> Any:
        if self.is_gone:
            raise self.error()
        return super().connect()

    def error(self) -> Exception:
        self.is_gone = True
        return super().error()


@pytest.mark.parametrize("when", ["after it happened", "before it happened"])
def test_a_claim_that_nobody_could_ask_after_is_due_again_as_soon_as_the_database_is_back(
    world: World, place: Place, when: str
) -> None:
    """It was never published: nobody has to wait for the end of its dispatch time-out."""
    name = world.add()
    dialect = Gone(place.dialect())
    never = Breaker(longest=0.0)
    store = SqlStore(Database(cast(Any, dialect), patience=0.0, breaker=never, sleep=lambda _: None), world.namespace)
    beat = BeatView(store, "beat-1")
    dialect.armed = when
    with pytest.raises(DatabaseUnavailable):
        world.claim(beat)
    with pytest.raises(DatabaseUnavailable):
        beat.next_deadlines()
    assert world.states(name) == (["claimed"] if when == "after it happened" else [])
    dialect.is_gone = False
    starts_at = beat.next_deadlines().starts_at()
    assert starts_at is not None and starts_at <= NodeView(store).clock()
    (claim,) = world.claim(beat).claims
    assert (world.states(name), claim.slot.attempt) == (["claimed"], 1)
    store.close()


@pytest.mark.parametrize("when", ["after it happened", "before it happened"])
@pytest.mark.parametrize("step", ["release_claims", "mark_dispatched"])
def test_a_release_without_an_answer_is_settled(world: World, place: Place, when: str, step: str) -> None:
    name = world.add()
    dialect = Cut(place.dialect())
    store = SqlStore(Database(cast(Any, dialect), sleep=lambda _: None), world.namespace)
    beat = BeatView(store, "beat-1")
    (claim,) = world.claim(beat).claims
    dialect.armed = when
    record = partial(beat.release_claims, reason="no broker") if step == "release_claims" else beat.mark_dispatched
    assert record([claim]) == Recorded({claim.run_id}, set())
    assert world.states(name) == ["scheduled" if step == "release_claims" else "dispatched"]
    assert world.job(name)["fence"] == 2
    store.close()


@pytest.mark.parametrize("when", ["after it happened", "before it happened"])
def test_an_import_without_an_answer_is_settled_and_tells_what_it_did(world: World, place: Place, when: str) -> None:
    dialect = Cut(place.dialect())
    store = SqlStore(Database(cast(Any, dialect), sleep=lambda _: None), world.namespace)
    app = Celery("shop", set_as_current=False)

    def imports(**entries: int) -> tuple[list[str], list[str], list[str], bool]:
        code = read_entries(app, {name: {"task": "t", "schedule": seconds} for name, seconds in entries.items()}, "v1")
        plan = SchedulePlanner(code, Rules(Policies(), "UTC", 120.0, 3))
        dialect.armed = when
        done = import_code(store, "shop", "v1", code.told(), plan, 100.0)
        return done.added, done.changed, done.left, done.is_stale

    assert imports(one=60, two=60) == (["one", "two"], [], [], False)
    assert imports(one=30, two=60) == ([], ["one"], [], False)
    assert imports(two=60) == ([], [], ["one"], False)
    assert [world.job(name)["version"] for name in ("one", "two")] == [3, 1]
    store.close()


def test_a_locked_row_ends_the_call_in_time(world: World, place: Place) -> None:
    name = world.add()
    run = world.running()
    holder = run_lease(place, name)
    store = impatient(place, world)
    began = time.monotonic()
    with pytest.raises(DatabaseBusy):
        WorkerView(store, "worker-1").finish([(run, after_success())])
    assert time.monotonic() - began < LONGEST
    holder.rollback()
    assert WorkerView(store, "worker-1").finish([(run, after_success())]) == set()
    holder.close()
    store.close()


on_postgresql = pytest.mark.parametrize("place", ["postgresql"], indirect=True)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what the server does by itself."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def asking(world: World) -> list[int]:
    """Return the backends that are at the end of a run."""
    of_ours = "query LIKE 'WITH asked%' AND state = 'active' AND datname = current_database()"
    return [row["pid"] for row in world.sql(f"SELECT pid FROM pg_stat_activity WHERE {of_ours}")]


@on_postgresql
def test_a_mark_whose_session_is_cut_while_it_waits_is_made_again(world: World, place: Place) -> None:
    name = world.add()
    (claim,) = world.claim().claims
    holder = cast(Any, place.dialect()).connect()
    holder.begin()
    holder.script("LOCK TABLE JobRuns IN SHARE MODE")  # a row that is locked would be passed by
    with ThreadPoolExecutor() as threads:
        recorded = threads.submit(world.beat.mark_dispatched, [claim])
        until(lambda: bool(asking(world)))
        for backend in asking(world):
            cut(world, backend)
        until(lambda: not asking(world))
        holder.rollback()
        holder.close()
        assert recorded.result().done == {claim.run_id}
    assert (world.states(name), world.job(name)["fence"]) == (["dispatched"], 2)


@on_servers
@pytest.mark.parametrize("table", ["Jobs", "JobRuns"])
@pytest.mark.parametrize("step", ["mark_dispatched", "release_claims", "cancel", "mark_published", "reclaim"])
def test_what_a_beat_records_passes_by_a_row_that_is_locked(world: World, place: Place, table: str, step: str) -> None:
    locked, _ = world.add(), world.add()
    claims = world.claim().claims
    if step == "reclaim":
        world.later(1000)
    left = {claim.run_id for claim in claims if claim.job_name == locked}
    if table == "JobRuns" and step == "mark_published":
        left = set()  # this one writes only to the job
    holder = run_lease(place, locked, table)

    def act() -> Recorded:
        if step == "release_claims" or step == "cancel":
            recorded: Recorded = getattr(world.beat, step)(claims, "for a reason")
            return recorded
        if step == "mark_published":
            return world.beat.mark_published([(claim, 120.0) for claim in claims])
        if step == "reclaim":
            ended = [(lease, released("not published in time")) for lease in world.beat.ended(10)]
            return Recorded(world.beat.reclaim(ended), left)
        return world.beat.mark_dispatched(claims)

    began = time.monotonic()
    assert act() == Recorded({claim.run_id for claim in claims} - left, left)
    assert time.monotonic() - began < 1.0
    holder.rollback()
    holder.close()
    claims, done, left = [claim for claim in claims if claim.run_id in left], left, set()
    assert not claims or act() == Recorded(done, left)


@on_servers
@pytest.mark.parametrize("table", ["Jobs", "JobRuns"])
def test_ended_leases_that_somebody_keeps_locked_hide_no_others(world: World, place: Place, table: str) -> None:
    """As many of them as a batch takes."""
    names = [world.add() for _ in range(4)]
    claims = world.claim().claims
    world.publish(*claims)
    world.later(1000)
    everyone = {lease.job_name for lease in world.beat.ended(10)}
    assert everyone == set(names)
    (first, second) = (lease.job_name for lease in world.beat.ended(2))
    holders = [run_lease(place, name, table) for name in (first, second)]
    began = time.monotonic()
    found = world.beat.ended(2)
    assert {lease.job_name for lease in found} == everyone - {first, second}
    taken = world.beat.reclaim([(lease, released("not published in time")) for lease in found])
    assert taken == {lease.run_id for lease in found}
    assert time.monotonic() - began < 1.0
    for holder in holders:
        holder.rollback()
        holder.close()
    assert {lease.job_name for lease in world.beat.ended(2)} == {first, second}


@on_servers
def test_runs_to_replace_that_somebody_keeps_locked_hide_no_others(world: World, place: Place) -> None:
    names = [world.add(Policies='{"overlap": "replace"}') for _ in range(2)]
    claims = world.claim().claims
    world.publish(*claims)
    assert all(world.start(claim) for claim in claims)
    world.later(200)
    (first,) = (run.job_name for run in world.beat.replaceable(1))
    holder = run_lease(place, first)
    assert [run.job_name for run in world.beat.replaceable(1)] == [name for name in names if name != first]
    holder.rollback()
    holder.close()


@on_servers
def test_an_attempt_that_is_locked_keeps_no_other_job_from_being_claimed(world: World, place: Place) -> None:
    locked = world.add()
    world.finish(world.running(), Ending("retry", "failed", 0.0, 1))
    free = world.add()
    holder = run_lease(place, locked, "JobRuns")
    began = time.monotonic()
    assert [claim.job_name for claim in world.claim().claims] == [free]
    assert world.claim().claims == []
    assert time.monotonic() - began < 1.0
    holder.rollback()
    holder.close()
    (claim,) = world.claim().claims
    assert (claim.job_name, claim.slot.attempt) == (locked, 2)


@on_servers
def test_deletions_and_mends_pass_by_a_row_that_is_locked(world: World, place: Place) -> None:
    locked, free = world.add(), world.add()
    ids = {name: world.job(name)["id"] for name in (locked, free)}
    world.sql("UPDATE Jobs SET DeleteRequested = 1 WHERE Namespace = ?", world.namespace)
    holder = run_lease(place, locked)
    began = time.monotonic()
    assert world.beat.delete_requested([str(each) for each in ids.values()]).done == {str(ids[free])}
    assert world.beat.repair_rows([RepairJob(locked, str(ids[locked]), 0, 1, NOON, None)]).done == set()
    assert world.beat.repair_rows([], [Quarantine(str(ids[locked]), locked, 0, 1, "odd")]).done == set()
    assert time.monotonic() - began < 1.0
    holder.rollback()
    holder.close()
    assert world.beat.delete_requested([str(ids[locked])]).done == {str(ids[locked])}


@on_postgresql
def test_a_migration_takes_as_long_as_it_takes_and_what_follows_does_not(place: Place) -> None:
    url = cast(Any, place.dialect())._url
    session = cast(Any, dialect_for(url, 0.3).connect())
    usual = session._connection.patience
    session.begin()
    session.migration_lock()
    session.script(f"SELECT pg_sleep({usual + 0.5})")
    session.commit()
    assert session._connection.patience == usual
    session.close()


@on_servers
def test_a_slow_statement_ends_the_call_in_time(world: World, place: Place) -> None:
    store = impatient(place, world)
    text = {
        "mssql": "WAITFOR DELAY '00:01:00'",
        "mysql": "SELECT sleep(60)",
        "postgresql": "SELECT pg_sleep(60)",
    }[store.database.dialect.name]
    began = time.monotonic()
    with pytest.raises(TransientError):  # the driver of SQL Server cannot tell whether its cancellation met a commit
        store.database.write(lambda session: by_hand(session, text))
    assert time.monotonic() - began < LONGEST
    store.close()


@on_servers
def test_work_whose_connection_is_cut_is_repeated_once_on_a_new_one(world: World, place: Place) -> None:
    name = world.add()
    pids: list[int] = []

    def work(session: Any) -> None:
        pids.append(backend_of(session))
        by_hand(session, "UPDATE Jobs SET Version = Version + 1 WHERE JobName = ?", name)
        if len(pids) == 1:
            cut(world, pids[0])
        session.fetch("read_clock")

    before = world.job(name)["version"]
    world.store.database.write(work)
    assert len(set(pids)) == 2
    assert world.job(name)["version"] == before + 1


@on_servers
def test_an_idle_connection_that_was_cut_is_replaced_unnoticed(world: World) -> None:
    world.add()
    cut(world, world.store.database.write(backend_of))
    assert len(world.claim().claims) == 1


@on_servers
@pytest.mark.slow
def test_the_victim_of_a_deadlock_is_repeated(world: World, place: Place) -> None:
    names = [world.add(), world.add()]
    both = threading.Barrier(2)

    def cross(first: str, second: str) -> None:
        store = place.store(world.namespace)
        tries: list[int] = []

        def work(session: Any) -> None:
            for name in (first, second):
                text = "UPDATE Jobs SET Version = Version + 1 WHERE Namespace = ? AND JobName = ?"
                by_hand(session, text, world.namespace, name)
                if name == first and not tries:
                    tries.append(1)
                    both.wait(10)

        store.database.write(work)
        store.close()

    before = [world.job(name)["version"] for name in names]
    threads = [threading.Thread(target=cross, args=order) for order in (names, names[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [world.job(name)["version"] for name in names] == [version + 2 for version in before]


def test_a_child_of_a_fork_works_and_leaves_its_parents_connection_alone(world: World) -> None:
    name = world.add()
    run = world.running()
    in_a_child(lambda: _is_true(world.worker.extend([(run, 300.0)]).lost == set()))
    assert world.worker.extend([(run, 120.0)]).lost == set()
    assert world.finish(run)
    assert world.states(name) == ["success"]


def test_a_child_that_closes_its_store_closes_nothing_of_its_parent(world: World) -> None:
    world.add()
    run = world.running()
    in_a_child(world.store.close)
    assert world.worker.extend([(run, 120.0)]).lost == set()


def test_what_a_child_commits_to_sqlite_stays_though_its_parent_closes(tmp_path: Path) -> None:
    """The parent closes last in its own eyes, but must keep the log that the child writes to."""
    address = database_url(f"sqlite:///{tmp_path / 'jobs.db'}")
    store = SqlStore(Database(dialect_for(address, 5.0)))
    store.migrate()
    before = store.database.fetch("note_node", **NODE)
    opened, closed = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        NodeView(store).clock()
        os.write(opened[1], b"x")
        os.read(closed[0], 1)
        store.database.fetch("stop_node", node_id="n", namespace="default")
        os._exit(0)
    os.read(opened[0], 1)
    store.close()
    os.write(closed[1], b"x")
    assert os.waitpid(pid, 0)[1] == 0
    for end in (*opened, *closed):
        os.close(end)
    (node,) = NodeView(store).seen(3600)
    assert node.stopped_at is not None
    assert node.stopped_at >= before[0][0]
    store.close()


def _is_true(fact: bool) -> None:
    assert fact


def test_to_construct_a_store_opens_nothing(tmp_path: Path) -> None:
    for address in (f"sqlite:///{tmp_path / 'none' / 'jobs.db'}", "postgresql://beat@127.0.0.1:1/none"):
        store = SqlStore(Database(dialect_for(database_url(address), 1.0)))
        BeatView(store, "beat")
        store.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://beat:{}@127.0.0.1:1/jobs",
        "mysql://beat:{}@127.0.0.1:1/jobs",
        "sqlite:////missing/{}/jobs.db",
        "mssql://beat:{}@127.0.0.1:1/jobs",
        "mssql+odbc:Server=tcp:127.0.0.1,1;UID=beat;PWD={{{};}}}}}};Encrypt=no",
    ],
)
def test_a_database_that_is_not_there_is_told_soon_in_one_line(address: str) -> None:
    if address.startswith("mssql"):
        server("odbc")
    secret = secrets.token_hex(8)
    database = Database(dialect_for(database_url(address.format(secret)), 1.0), patience=PATIENCE)
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailable) as caught:
        database.read("read_clock")
    assert time.monotonic() - began < LONGEST
    assert "\n" not in str(caught.value)
    assert secret not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mssql"])
def test_a_server_that_never_answers_is_given_up_in_time(scheme: str) -> None:
    if scheme == "mssql":
        server("odbc")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"{scheme}://beat:x@127.0.0.1:{silent.getsockname()[1]}/jobs"
        database = Database(dialect_for(database_url(address), TIMEOUT), patience=PATIENCE)
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            database.read("read_clock")
        assert time.monotonic() - began < 8


@on_servers
def test_a_login_that_is_refused_is_not_tried_again(world: World, place: Place) -> None:
    good = cast(Any, place.dialect())._url
    if good.odbc is None:
        refused = database_url(f"{good.database}://nobody_here:s3cret-word@{good.host}:{good.port}/{good.name}")
    else:  # of two equal keywords the first counts
        refused = database_url(f"mssql+odbc:UID=nobody_here;PWD=s3cret-word;{good.odbc}")
    slept: list[float] = []
    database = Database(dialect_for(refused, 2.0), sleep=slept.append)
    with pytest.raises(StoreError) as caught:
        database.read("read_clock")
    assert not isinstance(caught.value, DatabaseUnavailable)
    assert "s3cret-word" not in str(caught.value)
    assert slept == []
