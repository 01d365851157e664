"""Who may be among the consumers of a queue, by what the broker, the workers and the register say."""

from typing import Any

import pytest

from celery_sqlbeat.beat.consumers import Client, Look
from celery_sqlbeat.beat.evidence import Register, Verdict, judge
from celery_sqlbeat.roster import Answer

Q = "queue"
NOBODY = Register(0, 0, 0, 0, frozenset(), frozenset(), None)
ONE = NOBODY._replace(heard=1, heard_of_all=1, nodes=frozenset({"n1"}), addresses=frozenset({"h:1"}))
PENDING = ONE._replace(heard=0, heard_of_all=0, pending=1, pending_of_all=1)
OURS = Answer("w1", frozenset({Q}), {"node": "n1"})
PLAIN = Answer("w2", frozenset({Q}), None)
ELSEWHERE = Answer("w3", frozenset({"other"}), None)


def look(*roll: Answer, **facts: Any) -> Look:
    return Look(0.0, roll, **facts)


def client(address: str, idle: float = 0.0, waits: bool = True) -> Client:
    return Client(address, waits, idle)


@pytest.mark.parametrize(
    ("consumers", "register", "verdict"),
    [
        (0, NOBODY, Verdict.KEPT),
        (1, ONE, Verdict.KEPT),
        (2, ONE, Verdict.STRANGERS),
        (1, PENDING, Verdict.UNDECIDED),
        (2, PENDING, Verdict.STRANGERS),
        (1, NOBODY, Verdict.STRANGERS),
    ],
)
def test_each_consumer_that_the_broker_counts_must_be_a_worker_heard_of_since(
    consumers: int, register: Register, verdict: Verdict
) -> None:
    assert judge(Q, look(consumers=consumers), register, 10.0) is verdict


def test_a_worker_without_the_extension_that_answers_is_known_whatever_is_counted() -> None:
    assert judge(Q, look(OURS, PLAIN, consumers=1), ONE, 10.0) is Verdict.PLAIN
    assert judge(Q, look(OURS, ELSEWHERE, consumers=1), ONE, 10.0) is Verdict.KEPT


def test_on_redis_each_connection_that_takes_messages_must_be_a_workers() -> None:
    ours, theirs = client("h:1"), client("h:2")
    assert judge(Q, look(OURS, clients=(ours,)), ONE, 10.0) is Verdict.KEPT
    assert judge(Q, look(OURS, clients=(ours, theirs)), ONE, 10.0) is Verdict.STRANGERS
    assert judge(Q, look(OURS, ELSEWHERE, clients=(ours, theirs)), ONE, 10.0) is Verdict.KEPT
    assert judge(Q, look(clients=(ours, theirs)), PENDING, 10.0) is Verdict.STRANGERS
    assert judge(Q, look(clients=(theirs,)), PENDING._replace(addresses=frozenset()), 10.0) is Verdict.UNDECIDED


def test_on_redis_who_is_busy_since_before_the_message_has_not_taken_it() -> None:
    ours = client("h:1")
    assert judge(Q, look(clients=(ours, client("h:2", 60.0, waits=False))), ONE, 10.0) is Verdict.KEPT
    assert judge(Q, look(clients=(ours, client("h:2", 9.0, waits=False))), ONE, 10.0) is Verdict.STRANGERS


def test_where_nobody_counts_silence_is_no_evidence() -> None:
    assert judge(Q, Look(0.0, None), ONE, 10.0) is Verdict.SILENCE
    assert judge(Q, look(), ONE, 10.0) is Verdict.SILENCE
    assert judge(Q, look(ELSEWHERE), ONE, 10.0) is Verdict.SILENCE
    assert judge(Q, look(OURS), ONE, 10.0) is Verdict.KEPT
