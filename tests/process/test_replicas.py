"""Several hosts in the address, the standby first, as after each fail-over.

The one that can be written to is taken.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import DatabaseUnavailable
from celery_sqlbeat.store.sql.dialects.postgresql import Postgresql
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.store import SqlStore
from tests.process.workers import PATIENCE, Lane, WorkerShop, assert_one_start_each
from tests.replication import Replication, replication
from tests.support.beats import wait_for
from tests.support.brokers import place

pytestmark = pytest.mark.slow

LANE = Lane("prefork", "redis", "postgresql", "late")


@pytest.fixture(scope="module")
def servers() -> Iterator[Replication]:
    with replication() as made:
        yield made


def check(folder: Path, url: str) -> tuple[int, str]:
    """Return what `celery sqlbeat check` says, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "shop", "sqlbeat", "check", "--json"],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": f"{Path.cwd()}:{folder}", "SQLBEAT_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_standby_alone_is_named_and_is_an_error_for_check(servers: Replication, tmp_path: Path) -> None:
    primary = SqlStore(Database(Postgresql(database_url(servers.url(servers.primary)))))
    primary.migrate()
    primary.close()
    database = Database(Postgresql(database_url(servers.url(servers.standby))), patience=0.1)
    with pytest.raises(DatabaseUnavailable, match=rf"127\.0\.0\.1, port {servers.standby}, can only be read"):
        database.read("read_clock")
    (tmp_path / "shop.py").write_text("from celery import Celery\napp = Celery('shop', broker='memory://')\n")
    code, said = check(tmp_path, servers.url(servers.standby))
    assert code == 1, said
    [finding] = [one for one in json.loads(said)["findings"] if one["name"] == "database"]
    assert finding["level"] == "error" and str(servers.standby) in finding["says"]
    assert finding["remedy"].startswith("name the primary, or all hosts")


def test_beats_and_workers_go_on_with_the_standby_that_became_the_primary(servers: Replication, tmp_path: Path) -> None:
    """Listed first, it is passed by as long as it is a standby.

    After its promotion all goes on there.
    """
    with place(LANE.broker) as where:
        shop = WorkerShop(tmp_path, servers.url(servers.standby, servers.primary), where)
        try:
            shop.store.migrate()
            entries = {f"job-{number}": {"task": "work.note", "schedule": 1.0} for number in range(3)}
            shop.write_app(LANE, beat_schedule=entries)
            worker = shop.work(LANE.pool, concurrency=2).ready()
            beats = [shop.start(), shop.start()]
            wait_for(lambda: len(shop.lines(what="end")) >= 9, 60, shop.logs)
            servers.promote()
            before = len(shop.lines(what="end"))
            wait_for(lambda: len(shop.lines(what="end")) >= before + 9, 60, shop.logs)
            for process in (*beats, worker):
                process.stop()
                assert "Traceback" not in process.log, process.log
            assert_one_start_each(shop)
        finally:
            shop.close()
