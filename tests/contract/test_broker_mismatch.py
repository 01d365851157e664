"""Beats of one namespace keep to one broker: the later one gives way while an earlier one lives."""

import pytest

from celery_sqlbeat.beat.membership import BeatMembership
from celery_sqlbeat.errors import BrokerMismatch
from celery_sqlbeat.model import Node
from celery_sqlbeat.model.nodes import tell_queues
from tests.support.views import NodeView, of_process
from tests.support.world import World

ALIVE, MEMORY = 30.0, 3600.0
REDIS, OTHER_REDIS, RABBITMQ = "redis//one:6379/0", "redis//two:6379/0", "amqp//one:5672//"


def beat(world: World, broker: str | None) -> BeatMembership:
    return BeatMembership(of_process(world.store), "0.1.0", None, MEMORY, ALIVE, broker=broker)


def test_beats_of_one_broker_stand_side_by_side(world: World) -> None:
    for broker in (REDIS, REDIS, OTHER_REDIS, None):
        beat(world, broker).join(ALIVE)
    assert len(NodeView(world.store).seen(ALIVE)) == 4


def test_a_beat_of_another_broker_is_refused_and_not_registered(world: World) -> None:
    first = beat(world, REDIS)
    first.join(ALIVE)
    with pytest.raises(BrokerMismatch, match=f"{RABBITMQ}.*{first.name}.*{REDIS}"):
        beat(world, RABBITMQ).join(ALIVE)
    assert [node.node_id for node in NodeView(world.store).seen(ALIVE)] == [first.name]


@pytest.mark.parametrize("ends", ["in order", "by force"])
def test_the_other_broker_may_come_once_nobody_uses_the_first(world: World, ends: str) -> None:
    first, second = beat(world, REDIS), beat(world, RABBITMQ)
    first.join(ALIVE)
    if ends == "in order":
        first.say_stopped()
    else:
        world.later(ALIVE + 1)
    second.join(ALIVE)
    with pytest.raises(BrokerMismatch):
        beat(world, REDIS).join(ALIVE)


def test_of_two_beats_that_start_in_one_moment_the_later_gives_way(world: World) -> None:
    """Staged: the second registers after the first has looked around and before it registers."""
    first, second = beat(world, REDIS), beat(world, RABBITMQ)
    heartbeat = first._store.heartbeat
    second_at: list[object] = []

    def beat_late(node: object) -> object:
        if not second_at:
            second_at.append(second.join(ALIVE))
            world.later(1)
        return heartbeat(node)  # type: ignore[arg-type]

    first._store.heartbeat = beat_late  # type: ignore[method-assign, assignment]
    with pytest.raises(BrokerMismatch):
        first.join(ALIVE)
    living = [node.node_id for node in NodeView(world.store).seen(ALIVE) if node.stopped_at is None]
    assert living == [second.name]
    second.join(ALIVE)


def worker(left: dict[str, float] | None = None) -> Node:
    """Return a worker that consumes one queue and has left others, so many seconds ago."""
    return Node("worker@a/1", "worker", "a", 1, "0.1.0", queues=tell_queues(["default"], left or {}))


@pytest.mark.parametrize("ends", ["in order", "by force"])
def test_a_queue_is_leased_as_long_after_its_last_worker_as_is_remembered(world: World, ends: str) -> None:
    nodes = NodeView(world.store)
    nodes.heartbeat(worker())
    if ends == "in order":
        nodes.heartbeat(worker()._replace(is_stopped=True))
    world.later(MEMORY - 1)
    assert beat(world, None).leases("default") and not beat(world, None).may_republish("default")
    world.later(2)
    assert not beat(world, None).leases("default")


def test_a_queue_that_a_living_worker_has_left_is_leased_as_long_and_gets_no_copies(world: World) -> None:
    nodes = NodeView(world.store)
    nodes.heartbeat(worker())
    world.later(60)
    nodes.heartbeat(worker({"left": 50.0}))
    membership = beat(world, None)
    assert membership.leases("left") and not membership.may_republish("left")
    assert membership.leases("default") and membership.may_republish("default")
    assert not membership.leases("other") and not membership.leases(None)
    world.later(60)
    nodes.heartbeat(worker({"left": MEMORY + 1}))
    assert not beat(world, None).leases("left")


def test_a_worker_that_stops_is_remembered_for_what_it_left_from_when_it_left_it(world: World) -> None:
    nodes = NodeView(world.store)
    nodes.heartbeat(worker({"left": 600.0}))
    nodes.heartbeat(worker()._replace(is_stopped=True))
    world.later(MEMORY - 601)
    assert beat(world, None).leases("left")
    world.later(2)
    assert not beat(world, None).leases("left") and beat(world, None).leases("default")
