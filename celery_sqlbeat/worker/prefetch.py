"""Workers change what an AMQP broker may send ahead where the consumer is served, and do not wait for its answer.

Celery does so where a task is acknowledged, after a lost connection: in a thread of the pool, even beside its own event
loop. Whoever waits there reads what the consumer should read: together with it, in one socket, so that both get parts
of frames; or the next message, which waits for a slot that waits for this very change. And who writes there may put its
frame into the middle of another.
"""

import contextlib
from functools import partial
from typing import Any

from amqp import spec
from amqp.channel import Channel

from celery_sqlbeat.worker.loops import Loop


def ask_without_waiting(consumer: Any, loop: Loop) -> None:
    """Let this consumer's channel only send its wish, where it is served. Brokers work off what comes in its order."""
    channel = consumer.task_consumer.channel
    if not isinstance(channel, Channel):
        return  # other transports ask nobody

    def send(*wish: Any) -> None:
        with contextlib.suppress(*consumer.connection_errors):  # its next look at the broker tells the consumer
            channel.send_method(spec.Basic.Qos, "lBb", wish)

    def basic_qos(prefetch_size: int, prefetch_count: int, a_global: bool, **_: Any) -> None:
        loop.post(partial(send, prefetch_size, prefetch_count, a_global))

    channel.basic_qos = basic_qos
