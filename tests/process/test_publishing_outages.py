"""A broker that goes away in the middle.

Nothing counts as sent that is not confirmed, and every call ends in time.
"""

import multiprocessing
import socket
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat.errors import BrokerUnavailable
from celery_sqlbeat.publish.publisher import Publisher
from tests.support.brokers import Place, Wire, place
from tests.support.claims import claim

LATE = 1.5  # seconds that a busy machine may add


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Iterator[Place]:
    with place(request.param) as made:
        yield made
        made.take()


@pytest.fixture
def wire(broker: Place) -> Iterator[Wire]:
    made = Wire(broker.url)
    yield made
    made.close()


@pytest.fixture
def publisher(broker: Place, wire: Wire) -> Iterator[Publisher]:
    made = Publisher(broker.app(wire.url), patience=0.5)
    made.connect(5)
    made.publish([claim()], time.monotonic() + 5)
    yield made
    made.close()


def assert_works_again(publisher: Publisher) -> None:
    publisher.connect(5)
    result = publisher.publish([claim("shop.x", i) for i in range(3)], time.monotonic() + 5)
    assert len(result.confirmed) == 3 and result.failed == []


@pytest.mark.slow
@pytest.mark.parametrize("stopped_after", [0, 5_000, 100_000])
def test_what_a_silent_broker_did_not_confirm_is_failed_in_time(
    broker: Place, wire: Wire, publisher: Publisher, stopped_after: int
) -> None:
    broker.take()
    wire.stop_after = wire.passed + stopped_after
    claims = [claim("shop.x", i) for i in range(500)]
    started = time.monotonic()
    result = publisher.publish(claims, started + 1.5)
    assert time.monotonic() - started < 1.5 + LATE
    assert result.failed != [], "it cannot have confirmed everything"
    assert {sent.claim.run_id for sent in result.confirmed} | {each.run_id for each, _ in result.failed} == {
        each.run_id for each in claims
    }
    wire.mend()
    assert_works_again(publisher)
    arrived = {message.headers["id"] for message in broker.take()}
    assert arrived >= {sent.claim.run_id for sent in result.confirmed}


def test_a_connection_that_is_cut_fails_what_is_outstanding_and_comes_back(
    broker: Place, wire: Wire, publisher: Publisher
) -> None:
    wire.cut()
    result = publisher.publish([claim("shop.x", i) for i in range(50)], time.monotonic() + 5)
    assert result.confirmed == [] and len(result.failed) == 50
    assert all(reason and "\n" not in reason for _, reason in result.failed)
    with pytest.raises(BrokerUnavailable):
        publisher.connect(1)
    assert [reason for _, reason in publisher.publish([claim()], time.monotonic() + 1).failed] == [
        "the broker is not connected"
    ]
    wire.mend()
    assert_works_again(publisher)
    broker.take()


def test_connect_notices_that_an_idle_connection_is_gone(
    broker: Place, wire: Wire, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_sqlbeat.publish.connection._TRUSTED_SECONDS", 0)
    wire.cut()
    wire.mend()
    assert_works_again(publisher)
    broker.take()


@pytest.mark.slow
def test_connect_notices_that_an_idle_connection_has_fallen_silent(
    broker: Place, wire: Wire, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_sqlbeat.publish.connection._TRUSTED_SECONDS", 0)
    wire.stop_after = 0
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        publisher.connect(2)
    assert time.monotonic() - started < 2 + LATE
    wire.mend()
    assert_works_again(publisher)
    broker.take()


@pytest.mark.parametrize("url", ["{scheme}://someone:hidden-word@127.0.0.1:1//", "{scheme}://:hidden-word@127.0.0.1:1"])
def test_the_error_of_a_broker_that_is_away_is_one_line_without_the_password(broker: Place, url: str) -> None:
    publisher = Publisher(broker.app(url.format(scheme=urllib.parse.urlsplit(broker.url).scheme)))
    with pytest.raises(BrokerUnavailable) as caught:
        publisher.connect(2)
    assert "127.0.0.1:1" in str(caught.value)
    assert "hidden-word" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("user", ["nobody:wrong-word"])
def test_a_refused_login_is_a_broker_that_is_away(broker: Place, user: str) -> None:
    parts = urllib.parse.urlsplit(broker.url)
    publisher = Publisher(broker.app(parts._replace(netloc=f"{user}@{parts.hostname}:{parts.port}").geturl()))
    with pytest.raises(BrokerUnavailable) as caught:
        publisher.connect(3)
    assert "wrong-word" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_broker_that_accepts_and_says_nothing_is_given_up_in_time(broker: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        parts = urllib.parse.urlsplit(broker.url)
        publisher = Publisher(broker.app(parts._replace(netloc=f"127.0.0.1:{mute.getsockname()[1]}").geturl()))
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            publisher.connect(1)
        assert time.monotonic() - started < 1 + LATE


def test_the_second_broker_of_a_list_is_taken_where_the_first_is_away(broker: Place) -> None:
    away = urllib.parse.urlsplit(broker.url)._replace(netloc="127.0.0.1:1").geturl()
    publisher = Publisher(broker.app(f"{away};{broker.url}"))
    publisher.connect(4)
    assert len(publisher.publish([claim()], time.monotonic() + 5).confirmed) == 1
    publisher.close()
    broker.take()


def test_nothing_is_published_after_the_deadline(broker: Place) -> None:
    publisher = Publisher(broker.app())
    publisher.connect(5)
    result = publisher.publish([claim(), claim()], time.monotonic() - 1)
    assert result.confirmed == [] and len(result.failed) == 2
    publisher.connect(5)
    publisher.close()
    assert broker.take() == []


def test_messages_that_are_slow_to_make_go_out_as_far_as_the_time_allows(
    broker: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = broker.app()

    def nothing(*args: Any) -> None: ...

    slow = app.task(shared=False, name="shop.slow")(nothing)
    monkeypatch.setattr(slow, "apply_async", _slowly(slow.apply_async))
    publisher = Publisher(app, patience=0.2)
    publisher.connect(5)
    claims = [claim("shop.slow", i) for i in range(40)]
    started = time.monotonic()
    result = publisher.publish(claims, started + 1)
    assert time.monotonic() - started < 1 + LATE
    publisher.close()
    assert 0 < len(result.confirmed) < 40 and len(result.confirmed) + len(result.failed) == 40
    assert {message.headers["id"] for message in broker.take()} >= {sent.claim.run_id for sent in result.confirmed}


def _slowly(function: Any) -> Any:
    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.05)
        return function(*args, **kwargs)

    return slowly


def _publish_in_a_child(publisher: Publisher, answers: Any) -> None:
    refused = [reason for _, reason in publisher.publish([claim()], time.monotonic() + 5).failed]
    publisher.connect(5)
    result = publisher.publish([claim("shop.child", i) for i in range(20)], time.monotonic() + 5)
    answers.put((refused, len(result.confirmed)))
    publisher.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_opens_a_connection_of_its_own_and_leaves_the_parents_alone(broker: Place) -> None:
    publisher = Publisher(broker.app())
    publisher.connect(5)
    publisher.publish([claim()], time.monotonic() + 5)
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    children = [fork.Process(target=_publish_in_a_child, args=(publisher, answers)) for _ in range(3)]
    for child in children:
        child.start()
    for turn in range(20):
        result = publisher.publish([claim("shop.parent", turn)], time.monotonic() + 5)
        assert len(result.confirmed) == 1, result.failed
    outcomes = [answers.get(timeout=20) for _ in children]
    for child in children:
        child.join(20)
        assert child.exitcode == 0
    assert outcomes == [(["the broker is not connected"], 20)] * 3
    result = publisher.publish([claim()], time.monotonic() + 5)
    assert len(result.confirmed) == 1, "the connection outlived the children"
    publisher.close()
    assert len(broker.take()) == 1 + 60 + 20 + 1


def test_no_connection_is_opened_before_it_is_asked_for(broker: Place) -> None:
    app: Celery = broker.app("amqp://127.0.0.1:1")
    publisher = Publisher(app)
    assert publisher.publish([], time.monotonic() + 1).failed == []
    publisher.close()
    publisher.close()
