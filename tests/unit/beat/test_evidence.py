"""Who may consume a queue, by what the broker, the workers and the register say."""

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_sqlbeat.beat.evidence import Evidence, Heartbeats, Reading, WorkerRegister, judge_evidence, register
from celery_sqlbeat.celery_bridge.inspect_workers import Answer, Client, QueueConsumers
from celery_sqlbeat.model import SeenNode, nodes

Q = "queue"
NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
NOBODY = WorkerRegister(heard=0, pending=0, heard_of_all=0, pending_of_all=0, nodes=frozenset(), addresses=frozenset())
ONE = replace(NOBODY, heard=1, heard_of_all=1, nodes=frozenset({"n1"}), addresses=frozenset({"h:1"}))
PENDING = replace(ONE, heard=0, heard_of_all=0, pending=1, pending_of_all=1)
OURS = Answer("w1", frozenset({Q}), {"node": "n1"})
PLAIN = Answer("w2", frozenset({Q}), None)
ELSEWHERE = Answer("w3", frozenset({"other"}), None)


def snapshot(*roll: Answer, **facts: Any) -> QueueConsumers:
    return QueueConsumers(0.0, roll, **facts)


def client(address: str, idle: float = 0.0, waits: bool = True, keeps_leases: bool = False) -> Client:
    return Client(address, waits, idle, keeps_leases)


@pytest.mark.parametrize(
    ("consumers", "register", "verdict"),
    [
        (0, NOBODY, Evidence.KEPT),
        (1, ONE, Evidence.KEPT),
        (2, ONE, Evidence.STRANGERS),
        (1, PENDING, Evidence.UNDECIDED),
        (2, PENDING, Evidence.STRANGERS),
        (1, NOBODY, Evidence.STRANGERS),
    ],
)
def test_each_consumer_that_the_broker_counts_must_be_a_worker_heard_of_since(
    consumers: int, register: WorkerRegister, verdict: Evidence
) -> None:
    assert judge_evidence(Q, snapshot(consumers=consumers), register, 10.0) is verdict


def test_a_worker_without_the_extension_that_answers_is_known_whatever_is_counted() -> None:
    assert judge_evidence(Q, snapshot(OURS, PLAIN, consumers=1), ONE, 10.0) is Evidence.PLAIN
    assert judge_evidence(Q, snapshot(OURS, ELSEWHERE, consumers=1), ONE, 10.0) is Evidence.KEPT


def test_on_redis_each_connection_that_takes_messages_must_be_a_workers() -> None:
    ours, theirs = client("h:1"), client("h:2")
    assert judge_evidence(Q, snapshot(OURS, clients=(ours,)), ONE, 10.0) is Evidence.KEPT
    assert judge_evidence(Q, snapshot(OURS, clients=(ours, theirs)), ONE, 10.0) is Evidence.STRANGERS
    assert judge_evidence(Q, snapshot(OURS, ELSEWHERE, clients=(ours, theirs)), ONE, 10.0) is Evidence.KEPT
    assert judge_evidence(Q, snapshot(clients=(ours, theirs)), PENDING, 10.0) is Evidence.STRANGERS
    assert (
        judge_evidence(Q, snapshot(clients=(theirs,)), replace(PENDING, addresses=frozenset()), 10.0)
        is Evidence.UNDECIDED
    )


def test_on_redis_who_is_busy_since_before_the_message_has_not_taken_it() -> None:
    ours = client("h:1")
    assert judge_evidence(Q, snapshot(clients=(ours, client("h:2", 60.0, waits=False))), ONE, 10.0) is Evidence.KEPT
    assert judge_evidence(Q, snapshot(clients=(ours, client("h:2", 9.0, waits=False))), ONE, 10.0) is Evidence.STRANGERS


def test_on_redis_a_connection_of_our_name_needs_no_row_and_stands_for_no_other() -> None:
    named = client("proxy:1", keeps_leases=True)
    assert judge_evidence(Q, snapshot(clients=(named, named)), NOBODY, 10.0) is Evidence.KEPT
    assert judge_evidence(Q, snapshot(clients=(named, client("h:2"))), NOBODY, 10.0) is Evidence.STRANGERS
    just_came = Answer("w4", frozenset({"other"}), {"node": "n4", "named": True})
    assert judge_evidence(Q, snapshot(just_came, clients=(named, client("h:2"))), NOBODY, 10.0) is Evidence.STRANGERS


def test_a_worker_whose_connection_has_a_name_is_not_counted_for_one_that_has_none() -> None:
    details = nodes.tell_details([], is_named=True)
    before, since = reading(0, node("n1", -5, 0, details=details)), reading(2, node("n1", -5, 2, details=details))
    for latest, counted in ((since, (0, 1)), (reading(9, node("n1", 5, 9, details=details)), (1, 0))):
        assert heard(before, since, latest) == counted, "RabbitMQ shows no names"
        found = register(Q, before, since, latest, Heartbeats(), 90.0)
        assert (found.heard_of_all, found.pending_of_all) == (0, 0)


def test_where_nobody_counts_silence_is_no_evidence() -> None:
    assert judge_evidence(Q, QueueConsumers(0.0, None), ONE, 10.0) is Evidence.SILENCE
    assert judge_evidence(Q, snapshot(), ONE, 10.0) is Evidence.SILENCE
    assert judge_evidence(Q, snapshot(ELSEWHERE), ONE, 10.0) is Evidence.SILENCE
    assert judge_evidence(Q, snapshot(OURS), ONE, 10.0) is Evidence.KEPT


def test_on_redis_who_answers_may_be_the_busy_one_of_two_that_are_not_known() -> None:
    busy, waiting = client("h:2", 60.0, waits=False), client("h:3")
    assert (
        judge_evidence(Q, snapshot(OURS, ELSEWHERE, clients=(client("h:1"), busy, waiting)), ONE, 10.0)
        is Evidence.STRANGERS
    )


def node(name: str, heard_at: float, now: float, **facts: Any) -> SeenNode:
    known: dict[str, Any] = dict.fromkeys(SeenNode._fields)
    known |= {"node_id": name, "kind": "worker", "queues": json.dumps([Q])}
    known |= {"heartbeat_at": NOON + timedelta(seconds=heard_at), "now": NOON + timedelta(seconds=now)}
    return SeenNode(**{**known, **facts})


def reading(at: float, *nodes: SeenNode) -> Reading:
    return Reading(at, at, NOON + timedelta(seconds=at), nodes)


def heard(before: Reading, since: Reading, latest: Reading, alive: float = 90.0) -> tuple[int, int]:
    heartbeats = Heartbeats()
    for each in (before, since, latest):
        heartbeats.saw(each)
    found = register(Q, before, since, latest, heartbeats, alive)
    return found.heard, found.pending


def test_a_worker_is_heard_of_since_where_its_heartbeat_is_another_one() -> None:
    before, since = reading(0, node("n1", -5, 0)), reading(2, node("n1", -5, 2))
    assert heard(before, since, since) == (0, 1)
    assert heard(before, since, reading(9, node("n1", 5, 9))) == (1, 0)
    assert heard(reading(0), since, reading(9, node("n1", 5, 9))) == (0, 0), "it came after the question"


def test_a_dead_worker_whose_heartbeat_lies_in_the_future_is_not_heard_of() -> None:
    before, since = reading(0, node("n1", 60, 0)), reading(2, node("n1", 60, 2))
    assert heard(before, since, reading(61, node("n1", 60, 61))) == (0, 1)
    assert heard(before, since, reading(100, node("n1", 900, 100)), alive=90) == (1, 0), "another heartbeat"
    assert heard(before, since, reading(91, node("n1", 60, 91))) == (0, 0), "silent for longer than any that lives"


def test_a_worker_that_has_left_in_order_says_nothing_of_what_it_consumed() -> None:
    before, since = reading(0, node("n1", -5, 0)), reading(2, node("n1", -5, 2))
    assert heard(before, since, reading(9, node("n1", 5, 9, stopped_at=NOON))) == (0, 0)


def test_a_reading_agrees_with_a_later_one_unless_the_servers_clock_was_set() -> None:
    first = Reading(10.0, 12.0, NOON, ())
    assert first.agrees(NOON + timedelta(seconds=30), 41.0, 42.0)
    assert not first.agrees(NOON + timedelta(seconds=60), 41.0, 42.0)
    assert not first.agrees(NOON - timedelta(seconds=30), 41.0, 42.0)
