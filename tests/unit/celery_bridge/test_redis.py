"""What goes back to Redis goes while this worker waits for nothing there."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.transport import virtual

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge import redis, symbols
from celery_sqlbeat.celery_bridge.redis import KEEPS_LEASES, ConnectionName, RedisRequeue, free_places_of_lost_messages


class Channel:
    """A channel of kombu's for Redis, as far as it waits for messages."""

    do_restore = False

    def __init__(self) -> None:
        self.waits = 0

    def _brpop_start(self, timeout: float | None = None) -> None:
        self.waits += 1


Channel._brpop_start.__module__ = "kombu.transport.redis"


class Desk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, has_loop: bool) -> None:
        self.now, self.slept = 1000.0, list[float]()
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.given: list[tuple[str, int]] = []
        monkeypatch.setattr(environment, "monotonic", lambda: self.now)
        monkeypatch.setattr(redis, "time", SimpleNamespace(sleep=self.slept.append))
        self.channel: Any = Channel()
        made = RedisRequeue.of(
            SimpleNamespace(task_consumer=SimpleNamespace(channel=self.channel), hub="hub" if has_loop else None),
            lambda seconds, action: self.later.append((seconds, action)),
        )
        assert made is not None
        self.requeue = made

    def give(self, name: str) -> None:
        self.requeue.give(lambda: self.given.append((name, self.channel.waits)))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch, has_loop=True)


def test_messages_go_back_before_the_worker_waits_again_and_others_have_a_moment_for_them(desk: Desk) -> None:
    desk.channel._brpop_start()
    desk.give("one")
    desk.give("two")
    assert desk.given == [], "it waits for a message, and might be the first in the line"
    desk.channel._brpop_start()
    assert desk.given == [("one", 1), ("two", 1)]
    desk.channel._brpop_start()
    assert desk.channel.waits == 1, "its loop has woken for something else"
    desk.now += 0.11
    desk.channel._brpop_start()
    assert desk.channel.waits == 2
    assert min(seconds for seconds, _ in desk.later) == pytest.approx(0.1), "or the loop might sleep on"


def test_a_worker_that_waits_often_takes_few_breaks(desk: Desk) -> None:
    desk.give("one")
    desk.channel._brpop_start()
    desk.now += 0.2
    desk.give("two")
    desk.channel._brpop_start()
    assert [name for name, _ in desk.given] == ["one"] and desk.channel.waits == 1
    desk.now += 0.9
    desk.channel._brpop_start()
    assert [name for name, _ in desk.given] == ["one", "two"]


def test_without_an_event_loop_it_sleeps_for_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, has_loop=False)
    desk.give("one")
    desk.channel._brpop_start()
    assert desk.given == [("one", 0)] and desk.channel.waits == 1 and desk.slept == [pytest.approx(0.1)]


def test_a_worker_that_does_not_wait_any_more_gives_them_back_after_a_while(desk: Desk) -> None:
    desk.give("one")
    (due,) = desk.later
    due[1]()
    assert desk.given == [("one", 0)] and due[0] == pytest.approx(2.0)
    desk.channel._brpop_start()
    assert len(desk.given) == 1


def test_with_the_connection_everything_ends(desk: Desk) -> None:
    desk.give("one")
    desk.requeue.leave()
    desk.channel._brpop_start()
    desk.later[0][1]()
    assert desk.given == [] and desk.channel.waits == 1


def test_other_brokers_and_another_kombu_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(task_consumer=SimpleNamespace(channel=SimpleNamespace()), hub=None)
    assert RedisRequeue.of(other, lambda seconds, action: None) is None
    monkeypatch.setitem(symbols._off, symbols.RETURNING, symbols.verify("worker")[0])
    redis = SimpleNamespace(task_consumer=SimpleNamespace(channel=Channel()), hub=None)
    assert RedisRequeue.of(redis, lambda seconds, action: None) is None


class Places(virtual.QoS):
    """Places in the prefetch, beside a Redis that is away while it is told to be."""

    is_away = True

    def ack(self, delivery_tag: str) -> None:
        """Tell Redis first, as kombu does."""
        if self.is_away:
            raise ConnectionError
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Do the same."""
        self.ack(delivery_tag)


@pytest.mark.parametrize("how", ["ack", "reject"])
def test_a_message_that_redis_was_not_told_of_keeps_no_place(how: str) -> None:
    channel: Any = Channel()
    channel.qos = qos = Places(channel, prefetch_count=1)
    free_places_of_lost_messages(
        SimpleNamespace(task_consumer=SimpleNamespace(channel=channel), connection_errors=(ConnectionError,))
    )
    qos.append("message", "tag")
    assert not qos.can_consume()
    with pytest.raises(ConnectionError):
        getattr(qos, how)("tag")
    assert qos.can_consume()


class RefusedError(Exception):
    """What Redis answers to a command that it does not take."""


class Waiting(Channel):
    """A channel whose connection notes what it is asked."""

    ResponseError = RefusedError

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, ...]] = []
        self.refuses = False
        self.client = SimpleNamespace(connection=self)
        self._sock = object()

    def send_command(self, *words: str) -> None:
        """Take a command."""
        self.sent.append(words)

    def read_response(self) -> None:
        """Answer it."""
        if self.refuses:
            raise RefusedError("NOPERM")

    def is_named_by(self, name: ConnectionName) -> bool:
        """Begin with this channel; whether its connections are named."""
        name.keep(SimpleNamespace(task_consumer=SimpleNamespace(channel=self)))
        return name.is_kept


NAMES = ("CLIENT", "SETNAME", KEEPS_LEASES)


def test_each_connection_is_named_before_it_takes_messages() -> None:
    name, channel = ConnectionName(), Waiting()
    assert channel.is_named_by(name)
    channel._brpop_start()
    channel._brpop_start()
    assert (channel.sent, channel.waits) == ([NAMES], 2)
    channel._sock = object()  # kombu connects again by itself
    channel._brpop_start()
    assert (channel.sent, channel.waits) == ([NAMES, NAMES], 3)
    another = Waiting()
    assert another.is_named_by(name)
    another._brpop_start()
    assert another.sent == [NAMES], "after a lost connection Celery makes another channel"


def test_where_redis_takes_no_name_the_worker_says_so_and_goes_on() -> None:
    name, channel = ConnectionName(), Waiting()
    channel.refuses = True
    assert channel.is_named_by(name)
    channel._brpop_start()
    channel._brpop_start()
    assert (name.is_kept, channel.sent, channel.waits) == (False, [NAMES], 2)


def test_the_name_that_a_shop_gives_and_other_brokers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    name, channel = ConnectionName(), Waiting()
    monkeypatch.setattr(channel, "client_name", "shop", raising=False)
    assert not channel.is_named_by(name)
    channel._brpop_start()
    assert (channel.sent, channel.waits) == ([], 1)
    name.keep(SimpleNamespace(task_consumer=SimpleNamespace(channel=SimpleNamespace())))
    assert not name.is_kept
