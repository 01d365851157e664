"""What admission does to the prefetch, to revoked messages, and to the ids of starts."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery.app.task import Context
from kombu.common import QoS

from celery_sqlbeat.celery_bridge.consumer import RawMessage
from celery_sqlbeat.celery_bridge.message_header import HEADER, read
from celery_sqlbeat.config.policy import RetryRule
from celery_sqlbeat.worker.admission import Admission, PendingMessage, _start_id
from celery_sqlbeat.worker.lease import RunLease, StaleMessage, Started
from celery_sqlbeat.worker.lease.starts import StartQuestion
from celery_sqlbeat.worker.task import flags
from celery_sqlbeat.worker.task.own_strategy import StrategyMessage
from tests.support.claims import SLOT
from tests.support.headers import RAW


def gate_on(value: int, initial: int = 8) -> tuple[Admission, Any]:
    qos = cast(Any, QoS)(lambda prefetch_count: None, value)
    admission = Admission(cast(Any, None), cast(Any, None), cast(Any, None))
    admission.connected(
        SimpleNamespace(qos=qos, initial_prefetch_count=initial, task_consumer=SimpleNamespace(channel=None))
    )
    return admission, qos


def test_some_more_messages_may_come_and_then_as_many_as_before() -> None:
    admission, qos = gate_on(8)
    admission.read_ahead(32)
    assert qos.value == 40
    admission.read_ahead(-32)
    assert qos.value == 8


def test_a_broker_that_sends_all_it_has_goes_on_to() -> None:
    admission, qos = gate_on(0)
    admission.read_ahead(32)
    admission.read_ahead(-32)
    assert qos.value == 0


def test_never_fewer_messages_come_than_celery_would_have_it() -> None:
    """After a lost connection Celery sets the prefetch anew, whatever it was."""
    admission, qos = gate_on(8)
    admission.read_ahead(32)
    qos.value = 10
    admission.read_ahead(-32)
    assert qos.value == 8
    admission.read_ahead(-32)
    assert qos.value == 8


def test_without_a_connection_there_is_nothing_to_change() -> None:
    Admission(cast(Any, None), cast(Any, None), cast(Any, None)).read_ahead(32)


class FakeRuntime:
    """Writes down whose runs are asked about."""

    def __init__(self) -> None:
        self.pending: list[str] = []
        self.questions: list[StartQuestion] = []
        self.released: list[RunLease] = []

    def ask(self, header: Any, question: StartQuestion) -> None:
        self.pending.append(header.run)
        self.questions.append(question)

    def withdraw(self, question: StartQuestion) -> None:
        question.answered = None

    def unstart(self, run_lease: RunLease) -> None:
        self.released.append(run_lease)


@pytest.mark.parametrize("forged", [{}, {"started": ["j", "slot", 1, 7, 0]}, {"started": None}], ids=repr)
def test_a_revoked_message_ends_its_run_whatever_it_says_of_itself(forged: dict[str, Any]) -> None:
    """So do the messages of Celery's retries, which have all the headers of the one before."""
    worker_runtime = FakeRuntime()
    request: dict[str, Any] = {"id": RAW["run"], "retries": 1, "delivery_info": {"redelivered": False}}
    Admission(cast(Any, worker_runtime), cast(Any, None), cast(Any, None)).end_revoked(
        Context({**request, HEADER: {**RAW, **forged}}), expired=False
    )
    assert worker_runtime.pending == [RAW["run"]]


def test_a_question_says_what_the_message_says_of_retries() -> None:
    worker_runtime = FakeRuntime()
    headers = {"id": RAW["run"], HEADER: {**RAW, "retry": {"dead_on": ["KeyError"]}}}
    Admission(cast(Any, worker_runtime), cast(Any, None), cast(Any, None)).end_revoked(Context(headers), expired=False)
    assert [question.retry for question in worker_runtime.questions] == [RetryRule(None, None, ("KeyError",))]


def test_the_end_of_a_run_that_has_begun_here_is_told_by_others() -> None:
    worker_runtime = FakeRuntime()
    request: dict[str, Any] = {"id": RAW["run"], "retries": 0, "delivery_info": {"redelivered": False}, HEADER: RAW}
    begun = SimpleNamespace(job_name="j", scheduled_for=SLOT.scheduled_for, attempt=1, fence=7, run_id="r", job_id="j")
    flags.write(request, cast(Any, begun), 0)
    Admission(cast(Any, worker_runtime), cast(Any, None), cast(Any, None)).end_revoked(Context(request), expired=False)
    assert worker_runtime.pending == []


def test_every_start_has_an_id_of_its_own() -> None:
    ids = [_start_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one) for one in ids)


def test_an_expired_message_of_an_own_strategy_is_dropped() -> None:
    """It is none of Celery's requests, which know by themselves how to expire."""
    said: list[str] = []
    message = SimpleNamespace(headers={"id": RAW["run"]}, ack_log_error=lambda *_: said.append("acknowledged"))
    consumer = SimpleNamespace(connection_errors=(), event_dispatcher=None)
    handed: Any = StrategyMessage(consumer, message, "shop.add", cast(Any, None), cast(Any, None))
    admission = Admission(cast(Any, None), cast(Any, None), cast(Any, None))
    pending = PendingMessage(handed, cast(Any, read(RAW, {"id": RAW["run"]})))
    admission.receive(pending)
    admission.refuse(pending, StaleMessage("too late", expired=True))
    assert said == ["acknowledged"] and not admission.is_open(pending)


class Waiting:
    """A message that has asked for its lease and waits for its pool."""

    def __init__(self) -> None:
        self.worker_runtime, self.heard = FakeRuntime(), 0
        self.admission = Admission(cast(Any, self.worker_runtime), cast(Any, None), cast(Any, self))
        req: Any = RawMessage(SimpleNamespace(connection_errors=()), SimpleNamespace(headers={}), "id", "shop.add")
        header: Any = read(RAW, {"id": RAW["run"]})
        self.pending = PendingMessage(cast(Any, SimpleNamespace(req=req, begin=lambda run_lease: None)), header)
        self.run_lease = cast(RunLease, SimpleNamespace(take=lambda: True))
        assert self.admission.receive(self.pending)
        self.admission.ask(self.pending, lambda *_: setattr(self, "heard", self.heard + 1))

    def begun(self, _header: Any) -> None:
        """Be told, as `WaitingRuns`, that the run has begun."""

    def answer(self) -> None:
        self.worker_runtime.questions[0].answer(Started(self.run_lease))


def test_a_lease_that_waits_for_its_pool_is_given_back_where_the_connection_ends() -> None:
    """Nobody would use it or let it go, and heartbeats would extend it for ever."""
    waiting = Waiting()
    waiting.answer()
    assert waiting.heard == 1
    waiting.admission.leave(is_closing=False)
    assert waiting.worker_runtime.released == [waiting.run_lease]
    assert not waiting.admission.begins(waiting.pending, waiting.run_lease), "its turn in the pool comes after that"
    waiting.admission.unstart_late(waiting.pending, waiting.run_lease)
    assert waiting.worker_runtime.released == [waiting.run_lease]


def test_a_lease_that_comes_when_the_connection_has_ended_is_given_back() -> None:
    waiting = Waiting()
    (question,) = waiting.worker_runtime.questions
    answered = question.answered
    assert answered is not None
    waiting.admission.leave(is_closing=False)
    answered(Started(waiting.run_lease))  # it was on its way
    assert waiting.worker_runtime.released == [waiting.run_lease] and waiting.heard == 0


def test_a_run_that_has_begun_is_left_alone_where_the_connection_ends() -> None:
    waiting = Waiting()
    waiting.answer()
    assert waiting.admission.begins(waiting.pending, waiting.run_lease)
    waiting.admission.leave(is_closing=False)
    assert waiting.worker_runtime.released == []
