"""What the gate does to the prefetch of its consumer, what it makes of revoked messages, and the ids of starts."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery.app.task import Context
from kombu.common import QoS

from celery_sqlbeat.worker import running
from celery_sqlbeat.worker.gate import Gate, _start_id
from celery_sqlbeat.worker.header import HEADER
from tests.process.brokers import SLOT
from tests.unit.worker.test_header import RAW


def gate_on(value: int, initial: int = 8) -> tuple[Gate, Any]:
    qos = cast(Any, QoS)(lambda prefetch_count: None, value)
    gate = Gate(cast(Any, None), cast(Any, None), cast(Any, None))
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
    Gate(cast(Any, None), cast(Any, None), cast(Any, None)).read_ahead(32)


class Office:
    """Writes down whose runs are asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, header: Any, *_: Any) -> None:
        self.asked.append(header.run)


@pytest.mark.parametrize("forged", [{}, {"started": ["j", "slot", 1, 7, 0]}, {"started": None}], ids=repr)
def test_a_revoked_message_ends_its_run_whatever_it_says_of_itself(forged: dict[str, Any]) -> None:
    """So do the messages of Celery's retries, which have all the headers of the one before."""
    office = Office()
    request: dict[str, Any] = {"id": RAW["run"], "retries": 1, "delivery_info": {"redelivered": False}}
    Gate(cast(Any, office), cast(Any, None), cast(Any, None)).bury(
        Context({**request, HEADER: {**RAW, **forged}}), expired=False
    )
    assert office.asked == [RAW["run"]]


def test_the_end_of_a_run_that_has_begun_here_is_told_by_others() -> None:
    office = Office()
    request: dict[str, Any] = {"id": RAW["run"], "retries": 0, "delivery_info": {"redelivered": False}, HEADER: RAW}
    begun = SimpleNamespace(job_name="j", scheduled_for=SLOT.scheduled_for, attempt=1, fence=7, run_id="r", job_id="j")
    running.write(request, cast(Any, begun), 0)
    Gate(cast(Any, office), cast(Any, None), cast(Any, None)).bury(Context(request), expired=False)
    assert office.asked == []


def test_every_start_has_an_id_of_its_own() -> None:
    ids = [_start_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one) for one in ids)
