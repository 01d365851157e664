"""What a look makes of errors while the broker counts consumers, with a connection of the test."""

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_sqlbeat.celery_bridge.inspect_workers import QueueConsumers, _count
from celery_sqlbeat.celery_bridge.redis import KEEPS_LEASES

LOOK = QueueConsumers(0.0, ())


class Redis:
    """A connection whose every command fails."""

    connection = None
    connection_errors = (ConnectionError,)
    driver_type = "redis"

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.transport = self

    @property
    def default_channel(self) -> Any:
        raise self._error


def test_a_broker_that_does_not_say_who_consumes_a_queue_leaves_it_to_the_workers_answers() -> None:
    assert _count(Redis(PermissionError("no CLIENT LIST")), "q", LOOK) == LOOK


@pytest.mark.parametrize("error", [ConnectionResetError("lost"), OperationalError("lost")])
def test_a_broker_that_goes_away_while_it_counts_has_said_nothing(error: Exception) -> None:
    with pytest.raises(type(error)):
        _count(Redis(error), "q", LOOK)


class Lists:
    """A connection to a Redis whose lists hold these messages."""

    connection, connection_errors, driver_type = None, (ConnectionError,), "redis"
    global_keyprefix, sep, priority_steps = "shop:", "|", (0, 3)

    def __init__(self, **lists: list[str]) -> None:
        self.lists = lists
        self.transport = self.default_channel = self.client = self
        self.connection_pool = SimpleNamespace(connection_kwargs={})

    def lrange(self, name: str, first: int, last: int) -> list[str]:
        """Return what a list holds, both ends included."""
        return self.lists.get(name, [])[first : last + 1]

    def queue_declare(self, queue: str) -> Any:
        """Count, as kombu does."""
        return SimpleNamespace(message_count=sum(map(len, self.lists.values())))

    def client_list(self) -> list[dict[str, str]]:
        """Return who is connected."""
        waits = {"addr": "h:1", "flags": "b", "cmd": "brpop", "db": "0"}
        return [{**waits, "name": KEEPS_LEASES}, waits, {**waits, "cmd": "get"}]


def message(run: str) -> str:
    return json.dumps({"headers": {"sqlbeat": {"run": run}}})


def waiting_runs(lists: Mapping[str, list[str]]) -> frozenset[str] | None:
    return _count(Lists(**lists), "q", LOOK).waiting_runs


def test_redis_shows_whose_messages_wait_where_they_are_few() -> None:
    assert waiting_runs({"shop:q": [message("a"), '{"headers": {}}'], "shop:q|3": [message("b")]}) == frozenset(
        {"a", "None", "b"}
    )
    assert waiting_runs({}) == frozenset()
    assert waiting_runs({"shop:q": [message("a")] * 100}) == frozenset({"a"})
    assert waiting_runs({"shop:q": [message("a")] * 101}) is None


@pytest.mark.parametrize("lists", [{"shop:shop:q": [message("a")]}, {"shop:q": ["no JSON"]}, {"shop:q": ["[]"]}])
def test_where_it_cannot_be_seen_whose_messages_wait_it_may_be_anybodys(lists: Mapping[str, list[str]]) -> None:
    counted = _count(Lists(**lists), "q", LOOK)
    assert counted.waiting_runs is None
    assert counted.may_hold("run")


def test_connections_that_bear_the_name_of_our_workers_are_told_from_others() -> None:
    clients = _count(Lists(), "q", LOOK).clients
    assert clients is not None
    assert [client.keeps_leases for client in clients] == [True, False]
