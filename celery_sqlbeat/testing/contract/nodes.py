"""Nodes: how beats and workers register themselves, and who has been seen."""

from celery_sqlbeat.model import Node
from celery_sqlbeat.store.records import OldNodes
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import World

BEAT = Node(
    "beat@host/1", "beat", "host", 1, "0.1.0", "release-1", '["celery"]', "print", 0.25, 3, "shop", '["a"]', '{"b": 1}'
)


class NodeContract(Contract):
    """Rules of `heartbeat`, `nodes` and `tasks`."""

    def test_a_node_is_seen_as_it_described_itself(self, world: World) -> None:
        at = world.store.heartbeat(BEAT)
        assert at == world.near(world.noon)
        (seen,) = world.store.nodes(60)
        assert seen[:12] == (*BEAT[:11], BEAT.details)
        assert (seen.started_at, seen.heartbeat_at, seen.stopped_at) == (at, at, None)

    def test_a_node_says_again_that_it_is_alive(self, world: World) -> None:
        first = world.store.heartbeat(BEAT)
        world.later(0.5)
        second = world.store.heartbeat(BEAT._replace(claimed=9, skew_seconds=None))
        (seen,) = world.store.nodes(60)
        assert (seen.claimed, seen.skew_seconds) == (9, None)
        assert (seen.started_at, seen.heartbeat_at) == (first, second) and second > first

    def test_details_that_are_not_told_again_stay(self, world: World) -> None:
        """A worker says what it knows when that changes, not with each heartbeat."""
        world.store.heartbeat(BEAT)
        world.store.heartbeat(BEAT._replace(tasks=None, details=None))
        assert world.store.nodes(60)[0].details == BEAT.details
        world.store.heartbeat(BEAT._replace(details="{}"))
        assert world.store.nodes(60)[0].details == "{}"

    def test_a_node_that_stopped_is_told_apart(self, world: World) -> None:
        world.store.heartbeat(BEAT)
        world.store.heartbeat(BEAT._replace(node_id="worker@host/2", kind="worker"))
        world.store.heartbeat(BEAT._replace(is_stopped=True))
        seen = {node.kind: node.stopped_at is not None for node in world.store.nodes(60)}
        assert seen == {"beat": True, "worker": False}

    def test_a_node_that_stopped_may_come_back(self, world: World) -> None:
        world.store.heartbeat(BEAT)
        world.store.heartbeat(BEAT._replace(is_stopped=True))
        world.store.heartbeat(BEAT)
        assert world.store.nodes(60)[0].stopped_at is None

    def test_a_node_that_fell_silent_is_not_seen_and_is_purged(self, world: World) -> None:
        world.store.heartbeat(BEAT)
        world.later(61)
        assert world.store.nodes(60) == []
        assert len(world.store.nodes(3600)) == 1
        assert world.store.purge(OldNodes(30)).rows >= 1
        assert world.store.nodes(3600) == []

    def test_a_living_node_is_not_purged(self, world: World) -> None:
        world.store.heartbeat(BEAT)
        world.store.purge(OldNodes(30))
        assert len(world.store.nodes(60)) == 1

    def test_the_tasks_of_workers_are_read_by_themselves(self, world: World) -> None:
        world.store.heartbeat(Node("w1", "worker", "a", 1, "0.1", tasks='["app.a"]'))
        world.store.heartbeat(Node("w1", "worker", "a", 1, "0.1"))  # what is not given stays
        world.store.heartbeat(Node("w2", "worker", "a", 2, "0.1"))
        world.sibling().heartbeat(Node("w3", "worker", "a", 3, "0.1", tasks='["theirs"]'))
        assert world.store.tasks(["w1", "w2", "w3", "w4"]) == {"w1": '["app.a"]', "w2": None}
        assert world.store.tasks([]) == {}

    def test_nodes_of_another_namespace_are_not_seen(self, world: World) -> None:
        world.sibling().heartbeat(BEAT)
        assert world.store.nodes(60) == []

    def test_the_store_has_one_id(self, world: World) -> None:
        schema = world.store.check_schema()
        assert schema.store_id and schema.version >= 1
        assert schema == world.store.check_schema()
        assert world.another_store().check_schema().store_id == schema.store_id

    def test_a_store_that_is_up_to_date_takes_no_step(self, world: World) -> None:
        assert world.store.migrate() == []
