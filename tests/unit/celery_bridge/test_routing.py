"""Which one queue a published message comes to, if it is one."""

from typing import Any

import kombu.entity
import pytest
from celery import Celery
from kombu import common

from celery_sqlbeat.celery_bridge.app import published_to
from tests.support.claims import claim

Exchange: Any = kombu.entity.Exchange  # kombu leaves them without types
Queue: Any = kombu.entity.Queue
Broadcast: Any = common.Broadcast

TOPIC, DIRECT, FANOUT = Exchange("topics", "topic"), Exchange("keys", "direct"), Exchange("all", "fanout")


def app(*queues: Any) -> Celery:
    made = Celery(set_as_current=False)
    made.conf.task_queues = list(queues)
    return made


def to(made: Celery, exchange: Any = "", key: str | None = None, declare: Any = None) -> str | None:
    return published_to(made, claim(), {"exchange": exchange, "routing_key": key, "declare": declare})


def test_without_an_exchange_the_key_is_the_queue() -> None:
    assert to(app(), key="celery") == "celery"


FEEDS, WEB = Queue("feeds", TOPIC, routing_key="feed.#"), Queue("web", TOPIC, routing_key="web.*")


@pytest.mark.parametrize("key", ["feed.import", "feed.#", "feed"])
def test_a_topic_that_one_queue_is_bound_to_is_that_queue(key: str) -> None:
    assert to(app(FEEDS, WEB), "topics", key, [FEEDS]) == to(app(FEEDS, WEB), TOPIC, key, [FEEDS]) == "feeds"


def test_an_exchange_that_nobody_named_a_queue_for_may_have_others() -> None:
    assert to(app(FEEDS, WEB), "topics", "feed.import") is None


def test_a_topic_that_several_queues_are_bound_to_is_none() -> None:
    made = app(FEEDS, WEB, Queue("log", TOPIC, routing_key="#"))
    assert to(made, "topics", "feed.import", [FEEDS]) is None


def test_a_key_of_several_queues_is_none() -> None:
    one, other, third = (Queue(name, DIRECT, routing_key=key) for name, key in (("a", "k"), ("b", "k"), ("c", "c")))
    assert to(app(one, other, third), "keys", "k", [one]) is None
    assert to(app(one, other, third), "keys", "c", [third]) == "c"


def test_a_queue_that_the_app_does_not_name_may_be_declared_with_its_message() -> None:
    assert to(app(), "keys", "k", [Queue("a", DIRECT, routing_key="k")]) == "a"
    assert to(app(), "keys", "k") is None


@pytest.mark.parametrize(
    "queue", [Broadcast("all"), Queue("mine", FANOUT), Queue("two", bindings=[Queue(exchange=FANOUT)])]
)
def test_who_else_is_bound_to_a_fanout_exchange_is_not_known(queue: Any) -> None:
    assert to(app(queue), "all", "") is None
    assert to(app(), "all", "", [queue]) is None
