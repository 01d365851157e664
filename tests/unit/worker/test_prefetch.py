"""A wish for another prefetch is sent, and its answer not waited for."""

from types import SimpleNamespace
from typing import Any, cast

from amqp import spec
from amqp.channel import Channel
from kombu.messaging import Consumer

from celery_sqlbeat.worker.prefetch import ask_without_waiting


class Wire(Channel):  # type: ignore[misc]  # amqp has no types
    """A channel that only notes what it sends, and whether it would wait."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send_method(self, sig: Any, format: Any = None, args: Any = None, wait: Any = None, **_: Any) -> None:
        self.sent.append((sig, format, args, wait))


def test_the_answer_is_not_waited_for() -> None:
    channel = Wire()
    channel.basic_qos(0, 8, False)
    tasks = SimpleNamespace(channel=channel)
    ask_without_waiting(SimpleNamespace(task_consumer=tasks))
    cast(Any, Consumer.qos)(tasks, prefetch_count=9, apply_global=True)
    (*before, waited), (*_, unwaited) = channel.sent
    assert before == [spec.Basic.Qos, "lBb", (0, 8, False)]
    assert channel.sent[1] == (spec.Basic.Qos, "lBb", (0, 9, True), None)
    assert waited == spec.Basic.QosOk and unwaited is None


def test_other_transports_are_left_alone() -> None:
    channel = SimpleNamespace()
    ask_without_waiting(SimpleNamespace(task_consumer=SimpleNamespace(channel=channel)))
    assert not vars(channel)
