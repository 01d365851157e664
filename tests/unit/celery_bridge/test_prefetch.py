"""A wish for another prefetch is sent, and its answer not waited for."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from amqp import spec
from amqp.channel import Channel
from kombu.messaging import Consumer

from celery_sqlbeat.celery_bridge.event_loop import ask_without_waiting


class Wire(Channel):
    """A channel that only notes what it sends, and whether it would wait."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send_method(self, sig: Any, format: Any = None, args: Any = None, *_: Any, wait: Any = None, **__: Any) -> None:
        self.sent.append((sig, format, args, wait))


class Loop:
    """Where the consumer is served, when the test lets it."""

    def __init__(self) -> None:
        self._posted: list[Callable[[], None]] = []

    def post(self, action: Callable[[], None]) -> None:
        self._posted.append(action)

    def run(self) -> None:
        while self._posted:
            self._posted.pop(0)()


def test_a_lost_connection_is_left_to_the_consumer() -> None:
    channel, loop = Wire(), Loop()
    channel.sent = None  # type: ignore[assignment]  # to send raises
    lost = SimpleNamespace(task_consumer=SimpleNamespace(channel=channel), connection_errors=(AttributeError,))
    ask_without_waiting(lost, loop)
    channel.basic_qos(0, 8, False)
    loop.run()


def test_the_answer_is_not_waited_for() -> None:
    channel = Wire()
    channel.basic_qos(0, 8, False)
    tasks, loop = SimpleNamespace(channel=channel), Loop()
    ask_without_waiting(SimpleNamespace(task_consumer=tasks, connection_errors=()), loop)
    cast(Any, Consumer.qos)(tasks, prefetch_count=9, apply_global=True)
    assert len(channel.sent) == 1  # a thread of the pool must not write beside the consumer's
    loop.run()
    (*before, waited), (*_, unwaited) = channel.sent
    assert before == [spec.Basic.Qos, "lBb", (0, 8, False)]
    assert channel.sent[1] == (spec.Basic.Qos, "lBb", (0, 9, True), None)
    assert waited == spec.Basic.QosOk and unwaited is None


def test_other_transports_are_left_alone() -> None:
    channel = SimpleNamespace()
    ask_without_waiting(SimpleNamespace(task_consumer=SimpleNamespace(channel=channel)), Loop())
    assert not vars(channel)
