"""What the gate does to the prefetch of its consumer, and the ids that it gives to starts."""

import re
from types import SimpleNamespace
from typing import Any, cast

from kombu.common import QoS

from celery_sqlbeat.worker.gate import Gate, _start_id


def gate_on(value: int, initial: int = 8) -> tuple[Gate, Any]:
    qos = cast(Any, QoS)(lambda prefetch_count: None, value)
    gate = Gate(cast(Any, None), cast(Any, None))
    gate.connected(SimpleNamespace(qos=qos, initial_prefetch_count=initial))
    return gate, qos


def test_some_more_messages_may_come_and_then_as_many_as_before() -> None:
    gate, qos = gate_on(8)
    gate.read_ahead(32)
    assert qos.value == 40
    gate.read_ahead(-32)
    assert qos.value == 8


def test_a_broker_that_sends_all_it_has_goes_on_to() -> None:
    gate, qos = gate_on(0)
    gate.read_ahead(32)
    gate.read_ahead(-32)
    assert qos.value == 0


def test_never_fewer_messages_come_than_celery_would_have_it() -> None:
    """After a lost connection Celery sets the prefetch anew, whatever it was."""
    gate, qos = gate_on(8)
    gate.read_ahead(32)
    qos.value = 10
    gate.read_ahead(-32)
    assert qos.value == 8
    gate.read_ahead(-32)
    assert qos.value == 8


def test_without_a_connection_there_is_nothing_to_change() -> None:
    Gate(cast(Any, None), cast(Any, None)).read_ahead(32)


def test_every_start_has_an_id_of_its_own() -> None:
    ids = [_start_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one) for one in ids)
