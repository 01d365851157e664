"""Nodes: how beats and workers register themselves, and who has been seen."""

from celery_sqlbeat.model import DeleteJob, Node
from celery_sqlbeat.model.locks import HeldLock
from celery_sqlbeat.store.purges import OldNodes, OldRuns, WholeNamespace
from celery_sqlbeat.store.records import RunQuery
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.contract.claims import add_from_code, code_job
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

    def test_a_namespace_that_nobody_uses_is_forgotten_as_a_whole(self, world: World) -> None:
        add_from_code(world, "shop", code_job("minute"))
        world.running()
        fence = world.job("minute").fence
        world.write(DeleteJob("minute", force=True))
        world.later(1)
        world.store.purge(OldRuns(0, limit=100))
        token = world.ids.random_id()
        taken = world.store.take_lock("stock", token, "a", 60)
        assert taken is not None and world.store.release_locks([HeldLock("stock", token, taken.fence, 60)])
        assert fence > 0 and world.store.pulse().changes > 0
        assert world.store.purge(WholeNamespace()).rows >= 3
        assert (world.store.pulse().changes, world.store.runs(RunQuery())) == (0, [])
        world.store.migrate()
        assert world.store.newest_release("shop", "v1", 60).imported is None
        assert world.job(world.add("minute")).fence == 0
        again = world.store.take_lock("stock", world.ids.random_id(), "b", 60)
        assert again is not None and again.fence == taken.fence

    def test_a_namespace_with_a_job_a_node_or_a_held_lock_is_not_forgotten(self, world: World) -> None:
        name = world.add()
        counter = world.store.pulse().changes
        assert world.store.purge(WholeNamespace()).rows == 0
        world.write(DeleteJob(name))
        world.store.heartbeat(BEAT)
        assert world.store.purge(WholeNamespace()).rows == 0
        world.later(61)
        world.store.purge(OldNodes(30))
        world.store.take_lock("stock", world.ids.random_id(), "a", 60)
        assert world.store.purge(WholeNamespace()).rows == 0
        assert world.store.pulse().changes > counter
        world.later(61)
        assert world.store.purge(WholeNamespace()).rows > 0

    def test_another_namespace_forgets_nothing_of_this_one(self, world: World) -> None:
        world.write(DeleteJob(world.add()))
        counter = world.store.pulse().changes
        world.sibling().purge(WholeNamespace())
        assert world.store.pulse().changes == counter > 0

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
