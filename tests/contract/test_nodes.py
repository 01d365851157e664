"""Beats and workers register themselves, and the store knows its own id."""

from datetime import timedelta

from celery_sqlbeat.model import Node
from celery_sqlbeat.store.protocols import OldNodes
from tests.support.world import NOON, World

BEAT = Node(
    "beat@host/1", "beat", "host", 1, "0.1.0", "release-1", '["celery"]', "print", 0.25, 3, "shop", '["a"]', '{"b": 1}'
)


def test_a_node_is_seen_as_it_described_itself(world: World) -> None:
    nodes = world.store.nodes()
    assert nodes.heartbeat(BEAT) == NOON
    (seen,) = nodes.seen(60)
    assert seen[:12] == (*BEAT[:11], BEAT.details)
    assert (seen.started_at, seen.heartbeat_at, seen.stopped_at, seen.now) == (NOON, NOON, None, NOON)


def test_a_node_says_again_that_it_is_alive(world: World) -> None:
    nodes = world.store.nodes()
    nodes.heartbeat(BEAT)
    world.later(30)
    nodes.heartbeat(BEAT._replace(claimed=9, skew_seconds=None))
    (seen,) = nodes.seen(60)
    assert (seen.claimed, seen.skew_seconds, seen.started_at) == (9, None, NOON)
    assert seen.heartbeat_at == NOON + timedelta(seconds=30)


def test_details_that_are_not_told_again_stay(world: World) -> None:
    """A worker says what it knows when that changes, not with each heartbeat."""
    nodes = world.store.nodes()
    nodes.heartbeat(BEAT)
    nodes.heartbeat(BEAT._replace(tasks=None, details=None))
    assert nodes.seen(60)[0].details == BEAT.details
    nodes.heartbeat(BEAT._replace(details="{}"))
    assert nodes.seen(60)[0].details == "{}"


def test_a_node_that_stopped_or_fell_silent_is_told_apart(world: World) -> None:
    nodes = world.store.nodes()
    nodes.heartbeat(BEAT)
    nodes.heartbeat(BEAT._replace(node_id="worker@host/2", kind="worker"))
    world.later(10)
    nodes.heartbeat(BEAT._replace(is_stopped=True))
    assert [(seen.kind, seen.stopped_at is not None) for seen in nodes.seen(60)] == [("beat", True), ("worker", False)]
    world.later(60)
    assert nodes.seen(60) == []
    world.admin.purge(OldNodes(30))
    assert nodes.seen(10_000) == []


def test_the_store_has_one_id(world: World) -> None:
    schema = world.store.check_schema()
    assert schema.store_id and schema == world.store.check_schema()
    assert world.store.nodes().clock() == NOON


def test_the_tasks_of_workers_are_read_by_themselves(world: World) -> None:
    nodes = world.store.nodes()
    nodes.heartbeat(Node("w1", "worker", "a", 1, "0.1", tasks='["app.a"]'))
    nodes.heartbeat(Node("w1", "worker", "a", 1, "0.1"))  # what is not given stays
    nodes.heartbeat(Node("w2", "worker", "a", 2, "0.1"))
    world.sibling().nodes().heartbeat(Node("w3", "worker", "a", 3, "0.1", tasks='["theirs"]'))
    assert nodes.tasks(["w1", "w2", "w3", "w4"]) == {"w1": '["app.a"]', "w2": None}
    assert nodes.tasks([]) == {}
