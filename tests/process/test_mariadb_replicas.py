"""MariaDB with a replica, which stands first in the address: the server that takes writes is used.

Also after each fail-over, by beats and workers that run on.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import DatabaseUnavailable
from celery_sqlbeat.store import dialect_for
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.store import SqlStore
from tests.mariadb_replication import MariadbReplication, mariadb_replication, port_of
from tests.process.test_replicas import check
from tests.process.workers import Lane, Line, WorkerShop, assert_one_start_each
from tests.support.beats import wait_for
from tests.support.brokers import place

pytestmark = pytest.mark.slow

LANE = Lane("prefork", "redis", "mysql", "late")
JOBS = 3
EPOCH = 1_000_000_000  # what a recovery adds to every fence


def crash(servers: MariadbReplication) -> None:
    """End the primary, whose answered commits the replica has received."""
    servers.crash()
    servers.promote()


def switch_over(servers: MariadbReplication) -> None:
    """Let the primary go on, read-only: whoever is connected to it has to leave."""
    servers.execute(servers.primary, "SET GLOBAL read_only = 1")
    servers.wait_for_all()
    servers.promote()


def goes_on(shop: WorkerShop, jobs: int = JOBS) -> None:
    """Wait until each job has run three times more."""
    before = len(shop.lines(what="end"))
    wait_for(lambda: len(shop.lines(what="end")) >= before + 3 * jobs, 60, shop.logs)


def test_a_replica_alone_is_named_and_is_an_error_for_check(tmp_path: Path) -> None:
    with mariadb_replication() as servers:
        primary = SqlStore(Database(dialect_for(database_url(servers.url(servers.primary)), 5.0)))
        primary.migrate()
        primary.close()
        address = servers.url(servers.replica)
        replica = Database(dialect_for(database_url(address), 5.0), patience=0.1)
        with pytest.raises(DatabaseUnavailable, match=rf"127\.0\.0\.1:{port_of(servers.replica)} can only be read"):
            replica.read("read_clock")
        replica.close()
        (tmp_path / "shop.py").write_text("from celery import Celery\napp = Celery('shop', broker='memory://')\n")
        code, said = check(tmp_path, address)
        assert code == 1, said
        [finding] = [one for one in json.loads(said)["findings"] if one["name"] == "database"]
        assert finding["level"] == "error" and str(port_of(servers.replica)) in finding["says"]
        assert finding["remedy"].startswith("name the primary, or all hosts")


@pytest.mark.parametrize("fail_over", [crash, switch_over])
def test_beats_and_workers_go_on_with_the_replica_that_became_the_primary(
    tmp_path: Path, fail_over: Callable[[MariadbReplication], None]
) -> None:
    with mariadb_replication() as servers, place(LANE.broker) as where:
        shop = WorkerShop(tmp_path, servers.url(servers.replica, servers.primary), where)
        try:
            shop.store.migrate()
            entries = {f"job-{number}": {"task": "work.note", "schedule": 1.0} for number in range(JOBS)}
            shop.write_app(LANE, beat_schedule=entries)
            worker = shop.work(LANE.pool, concurrency=2).ready()
            beats = [shop.start(), shop.start()]
            goes_on(shop)
            fail_over(servers)
            shop.store.close()  # it only reads, and may be connected to a primary that has become a replica
            goes_on(shop)
            for process in (*beats, worker):
                process.stop()
                assert "Traceback" not in process.log, process.log
            assert_one_start_each(shop)
        finally:
            shop.close()


def test_after_a_fail_over_that_lost_commits_a_recovery_raises_every_fence(tmp_path: Path) -> None:
    """What began before is fenced off by what begins from then on, although the rows forgot it."""
    with mariadb_replication(loses=True) as servers, place(LANE.broker) as where:
        shop = WorkerShop(tmp_path, servers.url(servers.replica, servers.primary), where)
        try:
            shop.store.migrate()
            entries = {f"job-{number}": {"task": "work.note", "schedule": 1.0} for number in range(JOBS)}
            shop.write_app(LANE, beat_schedule=entries)
            worker = shop.work(LANE.pool, concurrency=2).ready()
            beat = shop.start()
            goes_on(shop)
            servers.execute(servers.replica, "STOP SLAVE IO_THREAD")
            goes_on(shop)  # which the replica will never know
            crash(servers)
            shop.store.recover()
            lost = fences(shop.starts())
            wait_for(lambda: min(fences(shop.starts()[-JOBS:]).values()) > EPOCH, 60, shop.logs)
            goes_on(shop)
            after = [line for line in shop.starts() if (line.fence or 0) > EPOCH]
            assert fences(after).keys() == lost.keys()
            for process in (beat, worker):
                process.stop()
                assert "Traceback" not in process.log, process.log
        finally:
            shop.close()


def fences(lines: list[Line]) -> dict[str, int]:
    """Return the highest fence of each job."""
    found: dict[str, int] = {}
    for line in lines:
        if line.job is not None and line.fence is not None:
            found[line.job] = max(found.get(line.job, 0), line.fence)
    return found
