"""Database or broker away at start, during the run, at the stop.

Beats stay up, say so in a line, and lose nothing.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import celery.beat
import pytest

from celery_sqlbeat.model.lifecycle import CLAIMED
from tests.process.conftest import MakeShop
from tests.support.beats import Beat, Shop, assert_no_slot_is_missing, assert_sent_once, wait_for
from tests.support.brokers import Wire

pytestmark = pytest.mark.slow

SECRET = "hush-hush"
INTERVALS = {f"job-{number}": 1.0 for number in range(20)}
ENTRIES = {name: {"task": "shop.add", "schedule": interval, "args": [1]} for name, interval in INTERVALS.items()}


@contextlib.contextmanager
def wire(url: str) -> Iterator[Wire]:
    made = Wire(url)
    try:
        yield made
    finally:
        made.close()


def with_password(url: str) -> str:
    """Return the same address with a password that the server does not ask for."""
    scheme, _, rest = url.partition("://")
    user, _, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0] or 'postgres'}:{SECRET}@{host}"


def assert_calm(*beats: Beat) -> None:
    """Assert that an outage is logged line by line, with neither tracebacks nor the password."""
    for beat in beats:
        assert beat.process.poll() in (None, 0), beat.log
        assert "Traceback" not in beat.log, beat.log
        assert SECRET not in beat.log
        assert beat.log.count("ERROR") < 60, beat.log


@pytest.mark.parametrize("database", ["postgresql", "mysql"])
def test_a_database_that_is_away_is_waited_for(make_shop: MakeShop, database: str) -> None:
    shop = make_shop(database, "redis")
    # MariaDB refuses a password where the user has none.
    with wire(with_password(shop.database_url) if database == "postgresql" else shop.database_url) as line:
        line.cut()
        shop.write(ENTRIES, sqlbeat_database_url=line.url, sqlbeat_dispatch_timeout=3)
        beats = [shop.start(), shop.start()]
        for beat in beats:
            beat.says("the database cannot be used for now")
            beat.says("retry_seconds=")
        line.mend()
        shop.wait_for_more(20)
        for outage in (line.cut, lambda: setattr(line, "stop_after", 0)):  # refused, and without an answer
            told = [len(beat.log) for beat in beats]
            outage()
            for beat, after in zip(beats, told, strict=True):
                beat.says("retry_seconds=", times=2, after=after)
            line.cut()
            line.mend()
            shop.wait_for_more(40)
        shop.wait_until_settled()
        for beat in beats:
            beat.stop()
        assert_calm(*beats)
    assert_sent_once(shop, copies_of_a_run=3)
    assert_no_slot_is_missing(shop, INTERVALS)


@pytest.mark.parametrize("database", ["postgresql", "mysql"])
def test_a_beat_stops_in_order_while_the_database_is_away(make_shop: MakeShop, database: str) -> None:
    shop = make_shop(database, "redis")
    with wire(shop.database_url) as line:
        shop.write(ENTRIES, sqlbeat_database_url=line.url, sqlbeat_dispatch_timeout=3)
        refused, unanswered = shop.start(), shop.start()
        shop.wait_for_more(20)
        line.cut()
        refused.says("retry_seconds=")
        assert refused.stop() < 10
        line.mend()
        shop.wait_for_more(20)
        line.stop_after = 0
        unanswered.says("retry_seconds=", after=len(unanswered.log))
        assert unanswered.stop() < 10
        assert_calm(refused, unanswered)


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_broker_that_is_away_is_waited_for(make_shop: MakeShop, broker: str) -> None:
    shop = make_shop("sqlite", broker)
    with wire(shop.place.url) as line:
        line.cut()
        shop.write(ENTRIES, broker_url=line.url, sqlbeat_dispatch_timeout=3)
        beats = [shop.start(), shop.start()]
        for beat in beats:
            beat.says("cannot be reached")
        assert not shop.dispatched()
        line.mend()
        shop.wait_for_more(20)
        told = [len(beat.log) for beat in beats]
        line.cut()
        for beat, after in zip(beats, told, strict=True):
            beat.says("cannot be reached", after=after)
        line.mend()
        shop.wait_for_more(40)
        shop.wait_until_settled()
        line.cut()
        assert all(beat.stop() < 10 for beat in beats)
        assert_calm(*beats)
    assert_sent_once(shop, copies_of_a_run=3)
    assert_no_slot_is_missing(shop, INTERVALS)


def test_a_wrong_address_is_said_in_one_line_and_tried_again(make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", "redis")
    missing = with_password(make_shop("postgresql", "redis").database_url) + "_missing"
    shop.write(ENTRIES, sqlbeat_database_url=missing)
    beat = shop.start()
    beat.says("does not exist")
    beat.says("retry_seconds=", times=2)
    assert beat.stop() < 10
    assert_calm(beat)


def test_a_beat_stops_soon_while_the_broker_confirms_nothing(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "rabbitmq")
    with wire(shop.place.url) as line:
        shop.write(ENTRIES, broker_url=line.url, sqlbeat_dispatch_timeout=60)
        beat = shop.start()
        shop.wait_for_more(20)
        line.stop_after = 0
        beat.says("Sending due task", after=len(beat.log))
        assert beat.stop() < 20, "it would wait for 42 s"
        line.mend()
        assert_calm(beat)
    assert not [run for run in shop.runs() if run.state == CLAIMED], "what was not confirmed is given back"


def test_a_setting_that_cannot_work_is_said_in_one_line_and_ends_the_beat(make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", "redis")
    shop.write(ENTRIES, sqlbeat_poll_interval="soon")
    beat = shop.start()
    assert beat.process.wait(60) == 1
    assert "celery-sqlbeat: sqlbeat_poll_interval = 'soon': must be a number of seconds" in beat.log
    assert "Traceback" not in beat.log


def test_tables_that_are_made_later_are_found(make_shop: MakeShop, postgresql_database: object) -> None:
    shop = make_shop("sqlite", "redis")
    assert callable(postgresql_database)
    url = postgresql_database()
    shop.write(ENTRIES, sqlbeat_database_url=url)
    beat = shop.start()
    beat.says("retry_seconds=")
    assert "init" in beat.log, beat.log
    later = Shop(shop.folder, url, shop.place)
    later.store.migrate()
    beat.says("Sending due task")
    assert beat.stop() < 10
    assert_calm(beat)
    later.close()


def test_a_message_that_no_broker_takes_does_not_keep_a_beat_busy(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "rabbitmq")
    shop.write({"well": {"task": "shop.add", "schedule": 1}})
    shop.add("lost", options='{"exchange": "sqlbeat_test_no_such_exchange", "routing_key": "x"}', at=shop.now())
    beat = shop.start()
    beat.says("a message was not published: job_name=lost ", times=3)
    wait_for(lambda: len(shop.dispatched()) >= 5, 30, shop.logs)
    assert beat.log.count("a message was not published: job_name=lost ") <= 6, beat.log
    beat.stop()
    assert_calm(beat)


def test_inspect_ping_is_answered_while_the_database_is_away(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "redis")
    app = shop.place.app()
    if not hasattr(celery.beat, "BeatPidbox"):
        pytest.skip("this Celery's beat answers no remote control")
    with wire(shop.database_url) as line:
        shop.write(ENTRIES, sqlbeat_database_url=line.url, beat_enable_remote_control=True)
        beat = shop.start()
        shop.wait_for_more(20)
        for outage in (line.cut, lambda: setattr(line, "stop_after", 0)):
            outage()
            beat.says("retry_seconds=", times=2, after=len(beat.log))
            wait_for(lambda: answers(app), 20, lambda: beat.log)
            line.cut()
            line.mend()
        beat.stop()
    assert_calm(beat)


def answers(app: Any) -> bool:
    return any("pong" in reply.values() for each in app.control.ping(timeout=2) for reply in each.values())
