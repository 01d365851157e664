"""Beats and workers behind a PgBouncer in transaction mode, shared with another client."""

from pathlib import Path

import psycopg
import pytest

from tests.pgbouncer import pgbouncer
from tests.process.conftest import MakeWorkers
from tests.process.workers import Lane, lane_name
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

LANES = (Lane("prefork", "redis", "postgresql", "late"), Lane("threads", "rabbitmq", "postgresql", "early"))
# Without those that a server connection has once a trigger has run there.
SETTINGS = "SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'plpgsql.%' ORDER BY name"


@pytest.mark.parametrize("lane", LANES, ids=lane_name)
def test_beats_and_workers_share_server_connections_with_other_programs(
    make_workers: MakeWorkers, lane: Lane, tmp_path: Path
) -> None:
    """Two beats, a worker and a foreign client on two server connections.

    No error, and nothing left behind.
    """
    shop = make_workers(lane)
    with pgbouncer(tmp_path, "transaction", size=2) as pooler:
        url = pooler.url(shop.database_url)
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as foreigner:
            before = foreigner.execute(SETTINGS).fetchall()
            entries = {f"job-{number}": {"task": "work.note", "schedule": 0.5} for number in range(6)}
            shop.write_app(lane, sqlbeat_database_url=url, beat_schedule=entries)
            worker = shop.work(lane.pool, concurrency=2).ready()
            beats = [shop.start(), shop.start()]
            wait_for(lambda: len(shop.lines(what="end")) >= 60, 60, shop.logs)
            for _ in range(20):
                assert foreigner.execute(SETTINGS).fetchall() == before
                assert foreigner.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
            for process in (*beats, worker):
                process.stop()
                assert "Traceback" not in process.log and "ERROR" not in process.log, process.log
            for _ in range(4):
                assert foreigner.execute(SETTINGS).fetchall() == before
