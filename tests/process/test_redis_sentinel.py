"""Redis with two replicas under a sentinel: beats and workers go on after each fail-over."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_sqlbeat.model.lifecycle import SUCCESS
from tests.process.test_mariadb_replicas import EPOCH, JOBS, fences, goes_on
from tests.process.test_redis_store import command
from tests.process.workers import PATIENCE, Lane, WorkerShop, assert_one_start_each
from tests.support.beats import wait_for
from tests.support.brokers import place
from tests.support.private_servers import PrivateServer, private_redis, private_sentinel

pytestmark = pytest.mark.slow

LANE = Lane("prefork", "rabbitmq", "redis", "late")
# Seconds of silence until the sentinel acts by itself: more than a busy machine needs, and never.
BY_ITSELF, BY_HAND = 5.0, 3600.0


class Servers:
    """A primary, its replicas, and the sentinel that knows them as "shop"."""

    def __init__(self, primary: PrivateServer, sentinel: PrivateServer) -> None:
        self.primary, self.sentinel = primary, sentinel

    @property
    def url(self) -> str:
        """The address for a shop."""
        return f"{self.sentinel.url}/0?sentinel=shop"

    def fail_over(self) -> None:
        """Tell the sentinel to promote a replica."""
        wait_for(self._is_promoting, PATIENCE, self.told)

    def told(self) -> str:
        """Return what the sentinel says of its servers."""
        with redis.Redis.from_url(self.sentinel.url) as client:
            return json.dumps(client.sentinel_slaves("shop"), default=str)

    def cut(self) -> None:
        """Give replicas nothing any more of what is written to the primary."""
        with redis.Redis.from_url(self.primary.url) as client:
            client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def _is_promoting(self) -> bool:
        with redis.Redis.from_url(self.sentinel.url) as client, contextlib.suppress(redis.ResponseError):
            return bool(client.execute_command("SENTINEL", "FAILOVER", "shop"))
        return False


@contextlib.contextmanager
def replicated(down_after: float) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(private_redis())
        port = primary.url.removesuffix("/0").rpartition(":")[2]
        for _ in range(2):
            stack.enter_context(private_redis("--replicaof", "127.0.0.1", port))
        with redis.Redis.from_url(primary.url) as client:
            wait_for(lambda: len(_linked(client)) == 2, PATIENCE, lambda: str(client.info("replication")))
        made = Servers(primary, stack.enter_context(private_sentinel(primary, down_after)))
        with redis.Redis.from_url(made.sentinel.url) as client:
            wait_for(lambda: len(client.sentinel_slaves("shop")) == 2, PATIENCE, made.told)
        yield made


def _linked(primary: Any) -> list[str]:
    found = primary.info("replication")
    return [name for name, each in found.items() if name.startswith("slave") and each["state"] == "online"]


@contextlib.contextmanager
def working(folder: Path, servers: Servers, **conf: Any) -> Iterator[WorkerShop]:
    """Yield a shop whose two beats and worker have run each job three times."""
    with place(LANE.broker) as where:
        shop = WorkerShop(folder, servers.url, where)
        try:
            shop.store.migrate()
            entries = {f"job-{number}": {"task": "work.note", "schedule": 1.0} for number in range(JOBS)}
            shop.write_app(LANE, beat_schedule=entries, **conf)
            processes = [shop.work(LANE.pool, concurrency=2).ready(), shop.start(), shop.start()]
            goes_on(shop)
            yield shop
            for process in processes:
                process.stop()
                assert "Traceback" not in process.log, process.log
        finally:
            shop.close()


def crash(servers: Servers) -> None:
    """End the primary; the sentinel notices."""
    servers.primary.stop(9)


def switch_over(servers: Servers) -> None:
    """Let the primary go on, as a replica soon: whoever is connected to it has to leave.

    Without the pause it would take writes until then, and lose them.
    """
    with redis.Redis.from_url(servers.primary.url) as client:
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    servers.fail_over()


@pytest.mark.parametrize("fail_over", [crash, switch_over])
def test_beats_and_workers_go_on_with_the_replica_that_became_the_primary(
    tmp_path: Path, fail_over: Callable[[Servers], None]
) -> None:
    with replicated(BY_ITSELF) as servers, working(tmp_path, servers, sqlbeat_redis_replicas=1) as shop:
        fail_over(servers)
        shop.store.close()  # it only reads, and may be connected to a primary that has become a replica
        goes_on(shop)
        if fail_over is crash:
            servers.primary.start()  # it comes back as a primary, until the sentinel has told it otherwise
        goes_on(shop)
        assert_nothing_is_lost(shop)


def test_what_a_replica_must_have_is_not_lost_by_a_fail_over(tmp_path: Path) -> None:
    """Nothing begins that only the primary knows of."""
    with (
        replicated(BY_HAND) as servers,
        working(tmp_path, servers, sqlbeat_redis_replicas=1) as shop,
    ):
        servers.cut()
        wait_for(lambda: "0 replicas of 1" in shop.logs(), PATIENCE, shop.logs)
        servers.primary.stop(9)
        servers.fail_over()
        goes_on(shop)
        assert_nothing_is_lost(shop)


def test_after_a_fail_over_that_lost_writes_a_recovery_raises_every_fence(tmp_path: Path) -> None:
    """What began before is fenced off by what begins from then on, although the rows forgot it."""
    with replicated(BY_HAND) as servers, working(tmp_path, servers) as shop:
        servers.cut()
        goes_on(shop)  # which no replica will ever know
        servers.primary.stop(9)
        lost = fences(shop.starts())
        servers.fail_over()
        goes_on(shop)
        assert {line.run for line in shop.starts()} - {run.run_id for run in shop.runs()}, "nothing was lost"
        command(shop, "init", "--recovered")
        wait_for(lambda: min(fences(shop.starts()[-JOBS:]).values()) > EPOCH, PATIENCE, shop.logs)
        goes_on(shop)
        after = [line for line in shop.starts() if (line.fence or 0) > EPOCH]
        assert fences(after).keys() == lost.keys()


def assert_nothing_is_lost(shop: WorkerShop) -> None:
    """Each body has the row of its run, and each that ended its outcome."""
    assert_one_start_each(shop)
    wait_for(lambda: not _open(shop), PATIENCE, lambda: f"{_open(shop)}\n{shop.logs()}")


def _open(shop: WorkerShop) -> list[str]:
    ended = {line.run for line in shop.lines(what="end")[: -3 * JOBS]}
    return [run.run_id for run in shop.runs() if run.run_id in ended and run.state != SUCCESS]
