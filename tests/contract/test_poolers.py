"""A PgBouncer between us and the server.

What is ours ends with our transaction, and no client meets another's.
"""

import multiprocessing
import secrets
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar, cast

import psycopg
import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.errors import DatabaseBusy
from celery_sqlbeat.model import AddJob, JobDraft, StartRequest
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import after_success
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.dialects.postgresql import PooledSession, Postgresql, PostgresqlSession
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.store import SqlStore
from tests.pgbouncer import Pooler, pgbouncer
from tests.support.claiming import claim_due
from tests.support.views import AdminView, BeatView, NodeView, WorkerView

pytestmark = pytest.mark.slow

SIZE = 2  # server connections, so that everybody meets everybody's
IDS = Ids()
PLANNER = Planner(Rules(policies_from_setting({}), "UTC", 120.0, 3))
# What clients could leave to each other: settings, prepared statements, locks, temporary tables,
# what is listened to.
LEFT = """
    SELECT 'setting', name, setting FROM pg_settings WHERE source = 'session' OR name IN
        ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'plan_cache_mode', 'jit',
         'enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'enable_sort', 'TimeZone', 'application_name')
    UNION ALL SELECT 'prepared', name, statement FROM pg_prepared_statements
    UNION ALL SELECT 'lock', objid::text, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
    UNION ALL SELECT 'table', relname, '' FROM pg_class WHERE relnamespace = pg_my_temp_schema()
    UNION ALL SELECT 'channel', c, '' FROM pg_listening_channels() AS c
    ORDER BY 1, 2, 3
"""


@pytest.fixture(params=["transaction", "session"])
def pooler(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pooler]:
    with pgbouncer(tmp_path, request.param, SIZE) as made:
        yield made


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Pooler]:
    """In transaction mode."""
    with pgbouncer(tmp_path, "transaction", SIZE) as made:
        yield made


def migrated(url: str) -> str:
    database = Database(Postgresql(database_url(url)))
    SqlStore(database).migrate()
    database.close()
    return url


class Foreigner:
    """Another program of the shop, on the same server connections."""

    def __init__(self, url: str) -> None:
        self._url = url

    def looks(self) -> dict[int, list[Any]]:
        """Return what it finds on each server connection, all of them held at once."""
        found: dict[int, list[Any]] = {}
        with ThreadPoolExecutor(SIZE) as pool:
            for pid, rows in pool.map(lambda _: self._look(), range(SIZE)):
                found[pid] = rows
        return found

    def _look(self) -> tuple[int, list[Any]]:
        with psycopg.connect(self._url, autocommit=True, prepare_threshold=None) as connection:
            connection.execute("BEGIN")
            pid = connection.execute("SELECT pg_backend_pid(), pg_sleep(0.2)").fetchall()[0][0]
            rows = connection.execute(LEFT).fetchall()
            connection.execute("ROLLBACK")
            return pid, rows


def fire(store: SqlStore, names: list[str], worker: str = "worker") -> int:
    """Add jobs that are due and take each of them all the way; returns how many ended well."""
    draft = JobDraft(
        "", "shop.add", "every 1h", None, "[]", None, None, None, True, None, NodeView(store).clock(), None
    )
    AdminView(store).write_jobs([AddJob(draft._replace(job_name=name)) for name in names])
    beat, hands = BeatView(store, f"beat of {worker}"), WorkerView(store, worker)
    beat.next_deadlines()
    claims = claim_due(beat, PLANNER, 500, 15.0).claims
    beat.mark_published([(claim, 120.0) for claim in claims])
    begun = hands.start([StartRequest(c.run_id, c.claim_id, c.fence, IDS.random_id(), 0) for c in claims])
    assert hands.extend([(run, 120.0) for run in begun.values()]).lost == set()
    assert hands.finish([(run, after_success()) for run in begun.values()]) == set()
    return len(begun)


class Watched(Postgresql):
    """A dialect that notes each error: none of them is to be mended behind anybody's back."""

    said: ClassVar[list[str]] = []

    def classify(self, error: BaseException) -> Fault:
        self.said.append(str(error))
        return super().classify(error)


def store_at(url: str, namespace: str = "default") -> SqlStore:
    return SqlStore(Database(Watched(database_url(url))), namespace)


def test_nothing_of_ours_stays_on_a_connection_that_others_use(
    pooler: Pooler, postgresql_database: Callable[[], str]
) -> None:
    url = pooler.url(migrated(postgresql_database()))
    foreigner = Foreigner(url)
    before = foreigner.looks()
    clean = next(iter(before.values()))
    assert all(rows == clean for rows in before.values())
    store = store_at(url)
    for turn in range(8):  # the driver prepares what comes more than five times
        assert fire(store, [f"job-{turn}"]) == 1
    # In session mode our session has its server connection for itself until it is closed.
    if pooler.mode == "transaction":
        assert list(foreigner.looks().values()) == [clean] * SIZE
    store.close()
    after = foreigner.looks()
    assert list(after.values()) == [clean] * SIZE
    assert after.keys() & before.keys(), "some of them have been ours meanwhile"


def test_a_long_query_of_another_client_is_not_cut_off(shared: Pooler, postgresql_database: Callable[[], str]) -> None:
    url = shared.url(migrated(postgresql_database()))
    store = SqlStore(Database(Postgresql(database_url(url), statement_timeout=0.2)))
    fire(store, ["job"])
    with psycopg.connect(url, autocommit=True) as foreigner:
        for _ in range(SIZE):
            foreigner.execute("SELECT pg_sleep(0.7)")
    store.close()


def test_statements_of_ours_have_their_own_time_outs(shared: Pooler, postgresql_database: Callable[[], str]) -> None:
    """By the server, not by a client that goes away and leaves a backend waiting for a lock."""
    direct = migrated(postgresql_database())
    store = SqlStore(Database(Postgresql(database_url(shared.url(direct)), statement_timeout=0.4), patience=0.1))
    fire(store, ["job"])
    with psycopg.connect(direct) as holder:
        rows = holder.execute("UPDATE Jobs SET Version = Version RETURNING Id::text").fetchall()
        with pytest.raises(DatabaseBusy, match="lock timeout"):
            store.database.fetch("raise_job_fences", rows, floor=99, step=1)
        with pytest.raises(DatabaseBusy, match="lock timeout"):
            store.database.write(lambda session: session.fetch("raise_job_fences", rows, floor=99, step=1))
    store.close()


def test_a_pooler_is_told_from_a_server(pooler: Pooler, postgresql_database: Callable[[], str]) -> None:
    direct = postgresql_database()
    for url, kind, says in (
        (direct, PostgresqlSession, None),
        (pooler.url(direct), PooledSession, f"{pooler.mode}s"),
    ):
        dialect = Postgresql(database_url(url))
        session = dialect.connect()
        assert type(session) is kind
        session.close()
        assert Database(dialect).pooling() == says


def test_instants_are_utc_whatever_the_time_zone_of_the_connection(
    shared: Pooler, postgresql_database: Callable[[], str]
) -> None:
    url = migrated(postgresql_database())
    with psycopg.connect(url, autocommit=True) as by_hand:
        by_hand.execute("ALTER DATABASE {} SET timezone = 'America/New_York'".format(url.rpartition("/")[2]))
    store = store_at(shared.url(url))
    now = NodeView(store).clock()
    assert now.tzinfo is timezone.utc
    assert abs(now - datetime.now(timezone.utc)) < timedelta(minutes=5)
    assert fire(store, ["job"]) == 1
    store.close()


def _many(url: str, namespace: str, told: Any) -> None:
    """Run all steps of many fires in one process, on two connections in turn."""
    try:
        stores = [store_at(url, namespace), store_at(url, namespace)]
        done = sum(fire(stores[turn % 2], [f"job-{turn}-{n}" for n in range(3)]) for turn in range(40))
        for store in stores:
            store.close()
        told.put((done, Watched.said))
    except BaseException:
        told.put(traceback.format_exc())


def test_processes_that_share_server_connections_meet_no_statement_of_each_other(
    shared: Pooler, postgresql_database: Callable[[], str]
) -> None:
    url = shared.url(migrated(postgresql_database()))
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    processes = [
        context.Process(target=_many, args=(url, f"space-{number}-{secrets.token_hex(4)}", told)) for number in range(4)
    ]
    for process in processes:
        process.start()
    answers = [told.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(30)
    assert answers == [(120, [])] * 4
    assert cast(Any, told).empty()
