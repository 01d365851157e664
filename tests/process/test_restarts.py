"""Database and broker are restarted, in order and by a crash, while beats fire.

Every slot has its one outcome.
"""

import signal
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.beats import LONG, Shop, assert_clean, assert_no_slot_is_missing, assert_sent_once, shop
from tests.support.brokers import Place, place
from tests.support.private_servers import PrivateServer, private_postgresql, private_redis

pytestmark = pytest.mark.slow

BEATS = 4 if LONG else 2
INTERVALS = {f"job-{number}": 1.0 for number in range(20)}
ENTRIES = {name: {"task": "shop.add", "schedule": interval, "args": [1]} for name, interval in INTERVALS.items()}


@pytest.fixture
def postgresql() -> Iterator[PrivateServer]:
    with private_postgresql() as server:
        yield server


@pytest.fixture
def redis_server() -> Iterator[PrivateServer]:
    with private_redis() as server:
        yield server


def database_on(server: PrivateServer) -> str:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
    return urllib.parse.urlsplit(server.url)._replace(path="/shop").geturl()


def fires_through(shop: Shop, server: PrivateServer, copies: int) -> None:
    shop.write(ENTRIES, sqlbeat_dispatch_timeout=3)
    beats = [shop.start() for _ in range(BEATS)]
    shop.wait_for_more(40)
    for number, pause in [(signal.SIGTERM, 0.0), (signal.SIGKILL, 2.0)]:
        server.restart(number, pause)
        shop.wait_for_more(40, seconds=60)
    shop.wait_until_settled()
    for beat in beats:
        assert beat.stop() < 15
    assert_clean(*beats)
    assert_sent_once(shop, copies_of_a_run=copies)
    assert_no_slot_is_missing(shop, INTERVALS)


def test_every_slot_has_one_outcome_through_restarts_of_the_database(postgresql: PrivateServer, tmp_path: Path) -> None:
    with place("redis") as broker, shop(_folder(tmp_path), database_on(postgresql), broker) as made:
        fires_through(made, postgresql, copies=3)


def test_every_slot_has_one_outcome_through_restarts_of_the_broker(redis_server: PrivateServer, tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with shop(folder, f"sqlite:///{folder / 'beat.db'}", Place("redis", redis_server.url)) as made:
        fires_through(made, redis_server, copies=3)


def test_every_slot_has_one_outcome_through_restarts_of_redis_as_the_database(
    redis_server: PrivateServer, tmp_path: Path
) -> None:
    with place("rabbitmq") as broker, shop(_folder(tmp_path), redis_server.url, broker) as made:
        made.store.migrate()
        fires_through(made, redis_server, copies=3)


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    return folder
