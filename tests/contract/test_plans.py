"""Query plans on large tables: whatever the statistics say, a statement goes by its index."""

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, cast

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import Claim, StartedRun, StartRequest
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.records import LAST_ID
from celery_sqlbeat.store.sql.dialects import sqlite as lite
from celery_sqlbeat.store.sql.dialects.postgresql import PooledSession, Postgresql, PostgresqlSession
from celery_sqlbeat.store.sql.dialects.postgresql_connection import of_transaction
from celery_sqlbeat.store.sql.dialects.postgresql_text import values_of
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Columns, Rows, load
from celery_sqlbeat.store.sql.store import SqlStore
from tests.contract.conftest import POOLED
from tests.support.claiming import claim_due
from tests.support.views import BeatView, WorkerView

pytestmark = pytest.mark.slow

JOBS, RUNS, ONE_OFFS = 100_000, 1_000_000, 50_000
BATCH = 500
LOOK_SECONDS = 60.0  # far longer than autovacuum looks at a table, on a machine that is not busy
IDS = Ids()
# How SQLite names what is not a table: the rows given, a list of keys, and what a statement
# computed before.
COMPUTED = r"SEARCH e$|SCAN (p|s|e|ended|leased|json_each|\d+ CONSTANT ROW|CONSTANT ROW|\d+-ROW|\(subquery)"
SCOPE = {"namespace": "default"}
CLAIMABLE = {**SCOPE, "code_owner": "shop", "code_keys": ["abc"], "other_entries": ["other"]}
DUE = {**CLAIMABLE, "batch_size": BATCH, "share": "048c", "besides": [IDS.random_id()], "queued_seconds": 3600.0}
RELEASE = {"only_unstarted": 0, "only_ended": 0, "only_replaceable": 0}


def batch(database: str, block: str) -> Rows | None:
    """As many rows as a busy beat gives to a block.

    Nothing matches them, which is the same to the planner.
    """
    made: dict[str, Callable[[], Any]] = {"bigint": lambda: 1, "int": lambda: 0, "flag": lambda: 1}
    made |= {"seconds": lambda: 1.0, "id": IDS.random_id, "instant": lambda: None}
    kinds = load(database)[block].rows.kinds
    return [[made.get(kind, lambda: "success")() for kind in kinds] for _ in range(BATCH)] if kinds else None


# The statements of the way of a fire, with their scalars, and the only indexes that they may go by.
KEYS = {"jobs_pkey", "jobruns_pkey"}
Asked = dict[str, tuple[dict[str, Any], set[str]]]
STATEMENTS: Asked = {
    "read_due": (DUE, {"jobs_due", "jobruns_beside"}),
    "read_outbox": (DUE, {"jobruns_outbox", "jobs_pkey", "jobruns_beside"}),
    "read_attempts": ({}, {"jobruns_pkey"}),
    "claim_jobs": ({"beat": "b", "dispatch_seconds": 15.0}, KEYS),
    "advance_jobs": ({}, KEYS),
    "insert_runs": ({"beat": "b"}, KEYS),
    "reopen_runs": ({"beat": "b"}, KEYS),
    "mark_published": ({}, {"jobs_pkey"}),
    "refuse_starts": (SCOPE, {"jobruns_pkey", "jobs_pkey"}),
    "read_refused": (SCOPE, {"jobruns_pkey"}),
    "extend_leases": ({}, {"jobs_pkey"}),
    "extend_held": ({}, {"jobruns_pkey"}),
    "postpone_start_deadline": ({"beat": "b"}, {"jobs_pkey"}),
    "read_ended": ({**SCOPE, "batch_size": BATCH}, {"jobs_leased", "jobruns_pkey"}),
    "read_ended_held": ({**SCOPE, "batch_size": BATCH}, {"jobruns_held"}),
    "read_next": (
        CLAIMABLE,
        {"jobs_due", "jobs_leased", "jobruns_held", "jobruns_outbox", "jobs_pkey", "changes_pkey"},
    ),
    "read_later": (
        {**CLAIMABLE, "after": datetime(2027, 3, 1, tzinfo=timezone.utc)},
        {"jobs_due", "jobruns_outbox", "jobs_pkey"},
    ),
    "read_changes": (SCOPE, {"jobs_oneoffs", "jobs_due", "jobs_leased", "changes_pkey"}),
    "read_keys": (SCOPE, {"idempotencykeys_pkey", "jobruns_pkey"}),
    "add_one_offs": ({**SCOPE, "submitter": "s", "dispatch_seconds": 15.0}, {"jobruns_pkey"}),
    "add_one_off_runs": (SCOPE, KEYS),
    "read_submitted": (SCOPE, {"jobruns_pkey"}),
    "reopen_dead": (SCOPE, KEYS | {"jobruns_dead"}),
    "list_jobs": ({**SCOPE, "after_name": "", "page_size": BATCH}, {"jobs_listed"}),
    "list_one_offs": ({**SCOPE, "state": "", "before_id": LAST_ID, "scan_size": BATCH}, {"jobs_name", "jobruns_pkey"}),
    "purge_keys": ({**SCOPE, "batch_size": BATCH}, {"idempotencykeys_ended"}),
    "list_runs_in": ({**SCOPE, "state": "cancelled", "before_id": LAST_ID, "scan_size": 20_000}, {"jobruns_pkey"}),
    "read_rows_needing_repair": (
        {**SCOPE, "code_owner": "shop", "after_id": "00000000-0000-0000-0000-000000000000", "page_size": BATCH},
        {"jobs_attention"},
    ),
}


# What one database does in several steps and the other at once.
IN_STEPS: Asked = {
    "start_jobs": ({**SCOPE, "worker": "w"}, KEYS),
    "start_runs": ({**SCOPE, "worker": "w"}, KEYS),
    "release_jobs": (RELEASE, KEYS),
    "close_runs": (RELEASE, KEYS),
}
AT_ONCE: Asked = {
    "start_at_once": ({**SCOPE, "worker": "w"}, KEYS),
    "finish_at_once": ({**SCOPE, **RELEASE}, KEYS),
    "release_at_once": ({**SCOPE, **RELEASE}, KEYS),
    "submit_at_once": ({**SCOPE, "submitter": "s", "dispatch_seconds": 15.0}, {"jobruns_pkey"}),
}
# Where SQLite goes by more of them: its instants are text, and a month 13 is found among what is
# due.
ENTERED_BY = {
    "jobs_pkey": "(id ",
    "jobs_name": "jobname",
    "jobruns_pkey": "runid",
    "idempotencykeys_pkey": "keytext",
}
AUTOMATIC = {
    "sqlite_autoindex_jobs_1": "jobs_pkey",
    "sqlite_autoindex_jobs_2": "jobs_name",
    "sqlite_autoindex_jobruns_1": "jobruns_pkey",
    "sqlite_autoindex_idempotencykeys_1": "idempotencykeys_pkey",
}
ON_SQLITE = {
    "purge_keys": {"idempotencykeys_ended", "idempotencykeys_pkey"},
    "read_rows_needing_repair": {"jobs_attention", "jobs_due", "jobs_pkey"},
}


@pytest.fixture(scope="module")
def filled(postgresql_database: Callable[[], str]) -> Iterator[PostgresqlSession]:
    """Yield a filled PostgreSQL database that nobody analyses behind our back."""
    dialect = Postgresql(database_url(postgresql_database()), statement_timeout=120)
    database = Database(dialect)
    SqlStore(database).migrate()
    database.close()
    session = dialect.connect()
    session._connection.prepare_threshold = None
    session.script("SET synchronous_commit = off; ALTER TABLE Jobs SET (autovacuum_enabled = off)")
    session.script("ALTER TABLE JobRuns SET (autovacuum_enabled = off)")
    session.script(f"""
        INSERT INTO Jobs (JobName, TaskName, Schedule, NextRunTime)
        SELECT 'job-' || n, 'app.task', 'every 60s', now() + (n - 1000) * interval '1 second'
        FROM generate_series(1, {JOBS}) AS n""")
    session.script(f"""
        INSERT INTO JobRuns (RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence,
            CreatedAt, FinishedAt)
        SELECT gen_random_uuid(), 'default', j.Id, j.JobName, 'schedule', now() - n * interval '1 minute', 1,
            'success', 'running', n, now(), now()
        FROM generate_series(1, {RUNS // JOBS}) AS n, Jobs AS j""")
    session.script(f"""
        INSERT INTO Jobs (Id, JobName, OneOff, CodeKey, TaskName, Schedule, IntervalMinutes, RetryAt, RetryRunId)
        SELECT o.Id, o.Id::text, 1, 'one_off', 'app.task', 'once', NULL, now() + interval '1 hour', o.Id
        FROM (SELECT gen_random_uuid() AS Id FROM generate_series(1, {ONE_OFFS})) AS o""")
    yield session
    session.close()


@pytest.fixture(scope="module", params=["never analysed", "analysed"])
def session(filled: PostgresqlSession, request: pytest.FixtureRequest) -> PostgresqlSession:
    """Connect twice: at first the planner knows nothing of the contents."""
    if request.param == "analysed":
        filled.script("ANALYZE Jobs; ANALYZE JobRuns")
    return filled


_HERE = {"jobs_listed": "jobs_name"}  # PostgreSQL has no index of the jobs alone


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan", POOLED])
@pytest.mark.parametrize("block", [*STATEMENTS, *AT_ONCE])
def test_postgresql_goes_by_the_index(session: PostgresqlSession, block: str, mode: str) -> None:
    """The driver prepares a statement that comes often.

    Both kinds of plan must be right, and that behind a pooler.
    """
    scalars, indexes = (STATEMENTS | AT_ONCE)[block]
    plan = _pooled_plan(session, block, scalars) if mode == POOLED else _plan(session, block, scalars, mode)
    nodes = list(_nodes(plan))
    tables = [node for node in nodes if node.get("Relation Name") in ("jobs", "jobruns", "changes")]
    scans = [node for node in tables if "Scan" in node["Node Type"]]
    assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    assert used <= {_HERE.get(index, index) for index in indexes}, used
    assert not [node for node in nodes if node["Node Type"] == "Index Scan" and not _bounded(node)]
    loose = [node for node in nodes if ENTERED_BY.get(node.get("Index Name", ""), "") not in node.get("Index Cond", "")]
    assert not loose, "a table is read for each row"
    if block in ("read_due", "read_outbox", "read_attempts", "read_next", "read_later"):
        assert not [node for node in nodes if node["Node Type"] == "Sort"], json.dumps(plan, indent=1)
    if block in ("read_next", "read_later"):
        [above] = [node for node in nodes if "jobs_due" in [one.get("Index Name") for one in node.get("Plans", [])]]
        assert above["Node Type"] == "Limit", "all that waits is read, not only the first"


def _bounded(node: dict[str, Any]) -> bool:
    """Whether an index is entered by a key, or is small because few rows meet its condition."""
    return "Index Cond" in node or node["Index Name"] in ("jobs_leased", "jobruns_held", "jobs_attention")


def _plan(session: PostgresqlSession, block: str, scalars: dict[str, Any], mode: str) -> dict[str, Any]:
    """Return the plan of the store's own statement, prepared as the driver prepares it."""
    found = load("postgresql")[block]
    values = values_of(found, batch("postgresql", block), scalars)
    connection = cast(Any, session._connection)
    connection.execute(f"SET plan_cache_mode = {mode}")
    connection.execute("PREPARE asked AS " + found.text)
    from psycopg import sql

    given = sql.SQL(", ").join(sql.Literal(value) for value in values)
    asked = sql.SQL("EXPLAIN (FORMAT JSON) EXECUTE asked") + (sql.SQL("({})").format(given) if values else sql.SQL(""))
    try:
        return cast(dict[str, Any], connection.execute(asked).fetchone()[0][0]["Plan"])
    finally:
        connection.execute("DEALLOCATE asked")


def _pooled_plan(session: PostgresqlSession, block: str, scalars: dict[str, Any]) -> dict[str, Any]:
    """Return the plan of a statement with its values in the text, and an unchanged session."""
    connection = cast(Any, session._connection)
    pooled = PooledSession(connection, {}, of_transaction(5000))
    found = load("postgresql")[block]
    connection.execute("BEGIN")
    connection.execute("RESET ALL")
    try:
        connection.execute(of_transaction(5000))
        asked = b"EXPLAIN (FORMAT JSON) " + pooled.filled(found, batch("postgresql", block), scalars)
        return cast(dict[str, Any], connection.execute(asked).fetchone()[0][0]["Plan"])
    finally:
        connection.execute("ROLLBACK")  # which brings the session's own settings back


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def test_marks_starts_and_heartbeats_write_no_index_entry_on_postgresql(filled: PostgresqlSession) -> None:
    """They change no indexed column of a job.

    Where the pages have room, all of them are heap-only updates.
    """
    filled.script("ALTER TABLE Jobs SET (autovacuum_enabled = off)")
    fleet = _Fleet(filled, "hot")
    fleet.add(4 * BATCH, seconds=3600)
    fleet.make_every_fourth_due()
    claims = fleet.claim()
    published = [(claim, 120.0) for claim in claims]
    assert fleet.updates_by(lambda: fleet.beat.mark_published(published).done) == (BATCH, BATCH)
    requests = [StartRequest(c.run_id, c.claim_id, c.fence, IDS.random_id(), 0) for c in claims]
    runs: list[StartedRun] = []
    assert fleet.updates_by(lambda: runs.extend(fleet.worker.start(requests).values())) == (BATCH, BATCH)
    assert fleet.updates_by(lambda: fleet.worker.extend([(run, 120.0) for run in runs])) == (BATCH, BATCH)


def test_the_cost_of_claiming_one_job_does_not_grow_with_the_table_on_postgresql(filled: PostgresqlSession) -> None:
    """Counted in pages, which no busy machine can falsify.

    A larger index may be one level deeper.
    """
    fleet = _Fleet(filled, "one")
    filled._connection.prepare_threshold = 0  # as a beat's statements soon are: no plan is made for each claim
    try:
        few = fleet.pages_of_a_claim()
        fleet.add(1_000_000 - JOBS, seconds=3600)
        many = fleet.pages_of_a_claim()
    finally:
        filled._connection.prepare_threshold = None
    assert few < 50
    assert many <= few + 6


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """Yield a filled SQLite database, never analysed."""
    dialect = lite.Sqlite(database_url(f"sqlite:///{tmp_path_factory.mktemp('plans') / 'jobs.db'}"))
    database = Database(dialect)
    SqlStore(database).migrate()
    database.close()
    session = dialect.connect()
    connection = cast(Any, session)._connection
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    numbers = "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {})"
    connection.execute(f"""
        {numbers.format(JOBS)} INSERT INTO Jobs (JobName, TaskName, Schedule, NextRunTime)
        SELECT 'job-' || n, 'app.task', 'every 60s', strftime('%Y-%m-%d %H:%M:%f000', 'now', (n - 1000) || ' seconds')
        FROM s""")
    connection.execute(f"""
        {numbers.format(RUNS // JOBS)} INSERT INTO JobRuns (RunId, Namespace, JobId, JobName, Kind, ScheduledFor,
            Attempt, State, PriorState, Fence, CreatedAt, FinishedAt)
        SELECT printf('%08x-%s', n, substr(j.Id, 10)), 'default', j.Id, j.JobName, 'schedule',
            strftime('%Y-%m-%d %H:%M:%f000', 'now', -n || ' minutes'), 1, 'success', 'running', n, '', ''
        FROM s, Jobs AS j""")
    connection.execute(f"""
        {numbers.format(ONE_OFFS)} INSERT INTO Jobs (Id, JobName, OneOff, CodeKey, TaskName, Schedule, RetryAt)
        SELECT printf('%08x-one', n), printf('%08x-one', n), 1, 'one_off', 'app.task', 'once',
            strftime('%Y-%m-%d %H:%M:%f000', 'now', '1 hour') FROM s""")
    connection.execute("COMMIT")
    yield connection
    session.close()


@pytest.fixture(scope="module", params=["never analysed", "analysed"])
def connection(file: sqlite3.Connection, request: pytest.FixtureRequest) -> sqlite3.Connection:
    """Connect twice to the file."""
    if request.param == "analysed":
        file.execute("ANALYZE")
        file.execute("SELECT * FROM sqlite_master")  # a new schema is read again
    return file


@pytest.mark.parametrize("block", [*STATEMENTS, *IN_STEPS])
def test_sqlite_goes_by_the_index(connection: sqlite3.Connection, block: str) -> None:
    """The rows of a batch and small partial indexes are scanned, no table.

    What is due comes in order.
    """
    scalars, indexes = (STATEMENTS | IN_STEPS)[block]
    indexes = ON_SQLITE.get(block, indexes)
    found = load("sqlite")[block]
    asked = {block: replace(found, text="EXPLAIN QUERY PLAN " + found.text, returns=Columns())}
    session = lite.SqliteSession(connection, lite.host_clock, asked)
    steps = [row[3] for row in session.fetch(block, batch("sqlite", block), **scalars)]
    computed = COMPUTED + ("|SCAN r$" if "r AS MATERIALIZED" in found.text else "")
    looks = [step for step in steps if re.match("(SCAN|SEARCH) ", step) and not re.match(computed, step)]
    assert looks
    for step in looks:
        assert step.startswith("SEARCH"), steps
        used = re.search(r"USING (?:COVERING )?INDEX (\w+)", step)
        name = used[1].lower() if used else ""
        assert AUTOMATIC.get(name, name) in (indexes | {"sqlite_autoindex_changes_1"}), steps
    if block in ("read_due", "read_outbox"):
        assert not [step for step in steps if "TEMP B-TREE" in step], steps


class _Fleet:
    """A beat and a worker on a namespace of the filled database, and what its server counts."""

    def __init__(self, session: PostgresqlSession, namespace: str) -> None:
        self._session = session
        self._namespace = namespace
        dialect = cast(Any, Postgresql(database_url("postgresql://localhost/none")))
        dialect.connect = lambda: session  # the server counts what a session did when that session asks for it
        store = SqlStore(Database(dialect), namespace)
        self.beat, self.worker = BeatView(store, "beat"), WorkerView(store, "worker")
        self._planner = Planner(Rules(policies_from_setting({}), "UTC", 120.0, 3))

    def add(self, count: int, seconds: int = -60) -> None:
        """Add jobs that are due so many seconds from now, and a second apart."""
        self._session.script(f"""
            INSERT INTO Jobs (JobName, TaskName, Schedule, NextRunTime, Namespace)
            SELECT 'job-' || n || '{IDS.random_id()}', 'app.task', 'every 60s',
                now() + ({seconds} + n % 50) * interval '1s',
                '{self._namespace}'
            FROM generate_series(1, {count}) AS n""")

    def make_every_fourth_due(self) -> None:
        """Let some of the jobs be due: not all those of a page at once."""
        self._session.script(f"""
            UPDATE Jobs SET NextRunTime = now() - interval '1s'
            FROM (SELECT Id, row_number() OVER (ORDER BY ctid) AS n FROM Jobs
                WHERE Namespace = '{self._namespace}') AS s
            WHERE Jobs.Id = s.Id AND n % 4 = 0""")

    def claim(self) -> list[Claim]:
        """Claim a batch of what is due."""
        return claim_due(self.beat, self._planner, BATCH, 15.0).claims

    def updates_by(self, work: Callable[[], object]) -> tuple[int, ...]:
        """Return the updates of jobs that this makes, in pages that have room.

        All of them, and those that are heap-only.
        """
        self._make_room()
        text = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        before = self._counted(text, "jobs")
        work()
        return tuple(later - sooner for sooner, later in zip(before, self._counted(text, "jobs"), strict=True))

    def _make_room(self) -> None:
        """Remove old versions.

        A look at any table of this database keeps them, and autovacuum looks when it likes.
        """
        connection = cast(Any, self._session._connection)
        others = """SELECT pid, backend_type, query FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL"""
        deadline = time.monotonic() + LOOK_SECONDS
        while found := connection.execute(others).fetchall():
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        self._session.script("VACUUM Jobs")

    def pages_of_a_claim(self) -> int:
        """How many pages of tables and indexes the claim of one job needs."""
        self.add(1)
        assert len(self.claim()) == 1  # the first one fills the caches of the session
        self.add(1)
        before = self._pages()
        assert len(self.claim()) == 1
        return self._pages() - before

    def _pages(self) -> int:
        text = "SELECT heap_blks_read + heap_blks_hit, idx_blks_read + idx_blks_hit FROM pg_statio_user_tables"
        return sum(self._counted(text, "jobs")) + sum(self._counted(text, "jobruns"))

    def _counted(self, text: str, table: str) -> tuple[int, ...]:
        connection = cast(Any, self._session._connection)
        connection.execute("SELECT pg_stat_force_next_flush()")
        return tuple(connection.execute(f"{text} WHERE relname = '{table}'").fetchone())
