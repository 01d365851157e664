"""The register of beats and workers over rows that are compared and set."""

from datetime import timedelta

import pytest

from celery_sqlbeat.model import Node
from tests.support.memory_place import NOON, Bench

BEAT = Node(
    "beat@host/1", "beat", "host", 1, "0.1.0", "release-1", '["celery"]', "print", 0.25, 3, "shop", '["a"]', '{"b": 1}'
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_node_is_seen_as_it_described_itself(bench: Bench) -> None:
    assert bench.nodes.heartbeat(BEAT) == NOON
    (seen,) = bench.nodes.nodes(60)
    assert seen[:12] == (*BEAT[:11], BEAT.details)
    assert (seen.started_at, seen.heartbeat_at, seen.stopped_at, seen.now) == (NOON, NOON, None, NOON)


def test_a_node_says_again_that_it_is_alive(bench: Bench) -> None:
    bench.nodes.heartbeat(BEAT)
    bench.later(30)
    bench.nodes.heartbeat(BEAT._replace(claimed=9, skew_seconds=None, details=None))
    (seen,) = bench.nodes.nodes(60)
    assert (seen.claimed, seen.skew_seconds, seen.details, seen.started_at) == (9, None, BEAT.details, NOON)
    assert seen.heartbeat_at == NOON + timedelta(seconds=30)


def test_a_node_that_stopped_is_told_apart_until_it_comes_back_and_others_notice_it(bench: Bench) -> None:
    bench.nodes.heartbeat(BEAT)
    before = bench.changes()
    bench.nodes.heartbeat(BEAT._replace(is_stopped=True))
    assert bench.nodes.nodes(60)[0].stopped_at == NOON
    assert bench.changes() == before + 1
    bench.nodes.heartbeat(BEAT)
    assert bench.nodes.nodes(60)[0].stopped_at is None
    assert bench.changes() == before + 1


def test_a_node_that_nobody_knows_stops_without_a_row(bench: Bench) -> None:
    assert bench.nodes.heartbeat(BEAT._replace(is_stopped=True)) == NOON
    assert bench.nodes.nodes(60) == []


def test_a_silent_node_is_not_seen(bench: Bench) -> None:
    bench.nodes.heartbeat(BEAT)
    bench.later(60)
    assert bench.nodes.nodes(60) == []
    assert [node.node_id for node in bench.nodes.nodes(61)] == [BEAT.node_id]


def test_nodes_are_in_order_of_kinds_and_names(bench: Bench) -> None:
    for name, kind in (("b", "worker"), ("z", "beat"), ("a", "worker")):
        bench.nodes.heartbeat(Node(name, kind, "host", 1, "0.1"))
    assert [node.node_id for node in bench.nodes.nodes(60)] == ["z", "a", "b"]


def test_the_tasks_of_workers_are_read_by_themselves(bench: Bench) -> None:
    bench.nodes.heartbeat(Node("w1", "worker", "a", 1, "0.1", tasks='["app.a"]'))
    bench.nodes.heartbeat(Node("w1", "worker", "a", 1, "0.1"))  # what is not given stays
    bench.nodes.heartbeat(Node("w2", "worker", "a", 2, "0.1"))
    assert bench.nodes.tasks(["w1", "w2", "w4"]) == {"w1": '["app.a"]', "w2": None}
    assert bench.nodes.tasks([]) == {}
