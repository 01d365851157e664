"""The rows that MariaDB looks at for each statement of a fire: no more of them on a large table."""

from collections.abc import Callable, Iterator

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.store.sql.dialects.mysql import Mysql, MysqlSession
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.store import SqlStore
from tests.contract.test_plans import BATCH, STATEMENTS, batch

pytestmark = pytest.mark.slow

JOBS, RUNS = 20_000, 100_000
# Each row of a batch is read from JSON up to four times, and finds a job and a run by their keys.
LOOKS = 12 * BATCH


@pytest.fixture(scope="module")
def filled(mysql_database: Callable[[], str]) -> Iterator[MysqlSession]:
    """Yield a database with idle jobs and their history."""
    dialect = Mysql(database_url(mysql_database()), statement_timeout=120)
    database = Database(dialect)
    SqlStore(database).migrate()
    database.close()
    session = dialect.connect()
    session.script(f"""
        INSERT INTO Jobs (JobName, TaskName, Schedule, NextRunTime)
        SELECT concat('job-', s.seq), 'app.task', 'every 60s', utc_timestamp(6) + INTERVAL 3600 + s.seq SECOND
        FROM seq_1_to_{JOBS} AS s""")
    session.script(f"""
        INSERT INTO JobRuns (RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence,
            CreatedAt, FinishedAt)
        SELECT uuid(), 'default', j.Id, j.JobName, 'schedule', utc_timestamp(6) - INTERVAL s.seq MINUTE, 1, 'success',
            'running', s.seq, utc_timestamp(6), utc_timestamp(6)
        FROM seq_1_to_{RUNS // JOBS} AS s CROSS JOIN Jobs AS j""")
    session.script(f"""
        INSERT INTO Jobs (Id, JobName, OneOff, CodeKey, TaskName, Schedule, RetryAt)
        SELECT o.Id, o.Id, 1, 'one_off', 'app.task', 'once', utc_timestamp(6) + INTERVAL 1 HOUR
        FROM (SELECT concat(lpad(hex(s.seq), 8, '0'), '-0000-4000-8000-000000000000') AS Id
        FROM seq_1_to_{JOBS} AS s) AS o""")
    yield session
    session.close()


@pytest.mark.parametrize("state", ["never analysed", "analysed"])
@pytest.mark.parametrize("block", STATEMENTS)
def test_mariadb_goes_by_the_index(filled: MysqlSession, block: str, state: str) -> None:
    if state == "analysed":
        filled.script("ANALYZE TABLE Jobs, JobRuns")
    scalars, _ = STATEMENTS[block]
    if "scan_size" in scalars:
        scalars = {**scalars, "scan_size": BATCH}
    rows = batch("mysql", block)
    filled.script("FLUSH STATUS")
    filled.fetch(block, rows, **scalars)
    looks = {name: int(count) for name, count in filled._run("SHOW SESSION STATUS LIKE 'Handler_read%'")}
    gives_many = bool(rows) or "scan_size" in scalars or "after_name" in scalars
    assert sum(looks.values()) < (LOOKS if gives_many else 50), looks
