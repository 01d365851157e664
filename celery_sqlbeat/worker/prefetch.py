"""Workers without an event loop change what an AMQP broker may send ahead, and do not wait for its answer.

Celery does so where a task is acknowledged, after a lost connection. Whoever waits there reads what the consumer should
read: together with it, in one socket; or the next message, which waits for a slot that waits for this very change.
"""

from typing import Any

from amqp import spec
from amqp.channel import Channel


def ask_without_waiting(consumer: Any) -> None:
    """Let this consumer's channel only send its wish. Brokers work off what a channel sends in its order."""
    channel = consumer.task_consumer.channel
    if not isinstance(channel, Channel):
        return  # other transports ask nobody

    def basic_qos(prefetch_size: int, prefetch_count: int, a_global: bool, **_: Any) -> None:
        channel.send_method(spec.Basic.Qos, "lBb", (prefetch_size, prefetch_count, a_global))

    channel.basic_qos = basic_qos
