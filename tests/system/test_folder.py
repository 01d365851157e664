"""The folder as kombu sees it: exchanges, acknowledgement, and what a closed channel gives back."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.brokers import folder_url
from tests.support.folder import Connection, Exchange, Queue


@pytest.fixture
def url(tmp_path: Path) -> str:
    return folder_url(tmp_path / "a folder, 100 % mine")


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    with Connection(url) as made:
        yield made


def publish(connection: Any, body: Any, exchange: Any = "", key: str = "work", **options: Any) -> None:
    connection.Producer().publish(body, exchange=exchange, routing_key=key, **options)


def bound(connection: Any, name: str, exchange: Any = None, key: str = "work", **options: Any) -> Any:
    queue = Queue(name, exchange or Exchange("work", "direct"), routing_key=key, **options)(connection.default_channel)
    queue.declare()
    return queue


def test_the_name_that_settings_of_users_import_is_the_same() -> None:
    from celery_sqlbeat import embedded

    assert embedded.folder_url is folder_url


def test_the_folder_is_the_one_of_the_url(connection: Any, tmp_path: Path) -> None:
    connection.connect()
    assert [path.name for path in tmp_path.iterdir()] == ["a folder, 100 % mine"]


def test_a_url_without_a_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="names no folder"):
        Connection("folder://").connect()


def test_a_folder_that_cannot_be_made_is_a_connection_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    connection = Connection(folder_url(tmp_path / "file" / "broker"))
    with pytest.raises(tuple(connection.connection_errors)):
        connection._establish_connection()


def test_another_connection_gets_what_one_has_sent(connection: Any, url: str) -> None:
    bound(connection, "work")
    publish(connection, {"n": 1}, priority=3)
    with Connection(url) as other:
        message = bound(other, "work").get()
        assert message.payload == {"n": 1}
        assert not message.delivery_info.get("redelivered")
        message.ack()
        assert bound(other, "work").get() is None


def test_an_exchange_keeps_its_kind_and_its_bindings_for_those_who_declare_nothing(connection: Any, url: str) -> None:
    topic = Exchange("news", "topic")
    bound(connection, "sport", topic, "news.sport.#")
    bound(connection, "all", topic, "news.#")
    with Connection(url) as other:
        publish(other, 1, exchange="news", key="news.sport.tennis")
        publish(other, 2, exchange="news", key="news.weather")
    sport, everything = bound(connection, "sport", topic, "news.sport.#"), bound(connection, "all", topic, "news.#")
    assert [sport.get(no_ack=True).payload, sport.get()] == [1, None]
    assert [everything.get(no_ack=True).payload for _ in range(2)] == [1, 2]


def test_a_fanout_reaches_each_queue_once(connection: Any) -> None:
    fanout = Exchange("all", "fanout")
    queues = [bound(connection, name, fanout, "") for name in ("one", "two")]
    publish(connection, "hello", exchange=fanout, key="")
    messages = [queue.get() for queue in queues]
    assert [message.payload for message in messages] == ["hello", "hello"]
    assert len({message.delivery_tag for message in messages}) == 2
    messages[0].ack()
    messages[1].requeue()
    assert queues[0].get() is None
    assert queues[1].get().delivery_info["redelivered"]


def test_a_rejected_message_is_gone(connection: Any) -> None:
    queue = bound(connection, "work")
    publish(connection, 1)
    queue.get().reject()
    assert queue.get() is None


def test_a_closed_channel_gives_back_what_it_held(connection: Any, url: str) -> None:
    with Connection(url) as other:
        bound(other, "work")
        publish(other, 1)
        assert bound(other, "work").get().payload == 1
        assert bound(connection, "work").get() is None
    again = bound(connection, "work").get()
    assert again.payload == 1
    assert again.delivery_info["redelivered"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of 3.12 on: the test runner has threads
def test_a_child_gives_nothing_back_that_its_parent_holds(connection: Any) -> None:
    queue = bound(connection, "work")
    publish(connection, 1)
    held = queue.get()
    child = os.fork()
    if child == 0:
        try:
            connection.default_channel.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert queue.get() is None
    held.ack()


def test_a_consumer_takes_no_more_than_it_may_hold(connection: Any) -> None:
    queue = bound(connection, "work")
    for number in range(5):
        publish(connection, number)
    got: list[Any] = []
    channel = connection.channel()
    channel.basic_qos(0, 2, False)
    with connection.Consumer([queue], channel=channel, callbacks=[lambda _, message: got.append(message)]):
        drain(connection)
        assert [message.payload for message in got] == [0, 1]
        got[0].ack()
        drain(connection)
        assert [message.payload for message in got] == [0, 1, 2]
    channel.close()
    assert bound(connection, "work").get(no_ack=True).payload == 1


def test_the_queue_of_a_temporary_consumer_goes_with_it(connection: Any, tmp_path: Path) -> None:
    queue = Queue("events", Exchange("events", "fanout"), auto_delete=True)
    with connection.Consumer([queue], callbacks=[print]):
        assert (next(tmp_path.iterdir()) / "queues" / "events").is_dir()
    assert not (next(tmp_path.iterdir()) / "queues" / "events").exists()


def drain(connection: Any) -> None:
    try:
        while True:
            connection.drain_events(timeout=0.3)
    except socket.timeout:  # noqa: UP041 - as kombu calls it
        pass
