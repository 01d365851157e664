"""On Redis the acknowledgements of messages whose run has begun go together; nobody else's wait."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import kombu.messaging
import pytest

from celery_sqlbeat.celery_bridge.redis import MOST, WAIT_SECONDS, RedisAcks
from tests.support.brokers import Place, place


class Desk:
    """A consumer's channel on a real broker, and a timer that the test lets run."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._app = where.app()
        self.connection = self._app.connection_for_read()
        self.channel: Any = self.connection.channel()  # of Redis, with more than a StdChannel
        self.due: list[Callable[[], None]] = []
        self.acks = RedisAcks(self._later)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        assert seconds == WAIT_SECONDS
        self.due.append(action)

    def messages(self, count: int) -> list[Any]:
        """So many, received and not acknowledged."""
        queue = self._where.queues["default"]
        with self._app.amqp.producer_pool.acquire() as producer:
            for number in range(count):
                producer.publish(
                    {"number": number}, routing_key=queue.routing_key, exchange=queue.exchange, declare=[queue]
                )
        found: list[Any] = []
        consumer: Any = kombu.messaging.Consumer
        with consumer(self.channel, [queue], on_message=found.append, prefetch_count=2 * MOST):
            while len(found) < count:
                self.connection.drain_events(timeout=10)
        return found

    def unacknowledged(self) -> int:
        """How many messages Redis would deliver again."""
        client = self.channel.client
        count = client.hlen(self.channel.unacked_key)
        assert count == len(client.zrange(self.channel.unacked_index_key, 0, -1))
        return int(count)

    def taken(self) -> int:
        """How many places of the prefetch are taken."""
        return len(self.channel.qos._delivered) - len(self.channel.qos._dirty)

    def lose(self) -> None:
        """Lose the connection, and open another one."""
        self.acks.leave(is_closing=False)
        self.channel = self.connection.channel()


@pytest.fixture
def desk() -> Iterator[Desk]:
    with place("redis") as where:
        made = Desk(where)
        yield made
        made.connection.release()


def test_they_go_together_after_a_moment(desk: Desk) -> None:
    messages = desk.messages(3)
    for message in messages:
        desk.acks.gather(message)
        message.ack()
    assert desk.taken() == 0, "the broker may send more at once"
    assert [message.acknowledged for message in messages] == [True] * 3
    assert desk.unacknowledged() == 3
    [due] = desk.due
    due()
    assert desk.unacknowledged() == 0


def test_as_many_as_one_round_trip_holds_do_not_wait(desk: Desk) -> None:
    messages = desk.messages(MOST + 1)
    for message in messages[:-1]:
        desk.acks.gather(message)
        message.ack()
    assert desk.unacknowledged() == 1
    desk.due.pop()()  # comes late, and finds nothing
    desk.acks.gather(messages[-1])
    messages[-1].ack()
    desk.due.pop()()
    assert desk.unacknowledged() == 0


def test_other_messages_do_not_wait(desk: Desk) -> None:
    ours, other = desk.messages(2)
    desk.acks.gather(ours)
    other.ack()
    assert desk.unacknowledged() == 1 and not desk.due
    ours.reject(requeue=True)
    assert desk.unacknowledged() == 0 and not desk.due, "only what is done may wait"


def test_a_worker_that_ends_says_what_waits_and_then_each_at_once(desk: Desk) -> None:
    first, second = desk.messages(2)
    for message in (first, second):
        desk.acks.gather(message)
    first.ack()
    desk.acks.leave(is_closing=True)
    assert desk.unacknowledged() == 1
    second.ack()
    assert desk.unacknowledged() == 0


def test_what_a_lost_connection_did_not_take_goes_with_the_next(desk: Desk) -> None:
    first, late = desk.messages(2)
    for message in (first, late):
        desk.acks.gather(message)
    first.ack()
    desk.lose()
    desk.due.pop()()
    late.ack()
    assert desk.unacknowledged() == 1
    [another] = desk.messages(1)
    desk.acks.gather(another)
    another.ack()
    desk.due.pop()()
    assert desk.unacknowledged() == 0


def test_a_channel_with_messages_of_ours_makes_one_client(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    create = desk.channel._create_client

    def counted(**options: Any) -> Any:
        made.append(options)
        return create(**options)

    monkeypatch.setattr(desk.channel, "_create_client", counted)
    [ours, last] = desk.messages(2)
    desk.acks.gather(ours)
    made.clear()
    for message in desk.messages(5):
        message.ack()
    assert len(made) <= 1 and desk.unacknowledged() == 2
    desk.acks.leave(is_closing=True)
    made.clear()
    for message in desk.messages(2):
        message.ack()
    assert len(made) >= 4, "then as ever: one for each message and each acknowledgement"
    desk.acks.gather(last)
    desk.channel._disconnect_pools()  # as at its end, when kombu may still have something to say
    last.ack()
    desk.acks.leave(is_closing=True)
    assert desk.unacknowledged() == 1  # ours, that was not acknowledged


def test_an_error_of_the_broker_ends_here(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [message] = desk.messages(1)
    desk.acks.gather(message)
    message.ack()

    def away(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the broker is away")

    with monkeypatch.context() as patch:
        patch.setattr(desk.channel.qos, "pipe_or_acquire", away)
        with caplog.at_level(logging.WARNING):
            desk.due.pop()()
    assert 'error="the broker is away"' in caplog.text
    assert desk.unacknowledged() == 1


def test_another_broker_acknowledges_as_ever() -> None:
    with place("rabbitmq") as where:
        desk = Desk(where)
        [message] = desk.messages(1)
        channel = message.channel
        desk.acks.gather(message)
        assert message.channel is channel
        message.ack()
        desk.connection.release()
        assert where.take() == []
