"""Acknowledgements on Redis go together: each by itself is a round trip in which the worker's event loop stands still.

What waits here for a moment may get lost with its worker. Redis then delivers a message again whose run has begun; a
run begins once, so the message is dropped. That holds for messages whose run has begun, and only those come here.
"""

import logging
from collections.abc import Callable
from typing import Any

from kombu.transport.virtual import QoS

from celery_sqlbeat.worker.one_client import OneClient

logger = logging.getLogger(__name__)

WAIT_SECONDS = 0.01
MOST = 64  # in one round trip

Later = Callable[[float, Callable[[], None]], Any]


class Acks:
    """Of one worker with an event loop. All of it where the consumer is served."""

    def __init__(self, later: Later) -> None:
        """`later(seconds, action)` does something after so many seconds."""
        self._later = later
        self._is_due = False
        self._tags: list[Any] = []
        self._view: _View | None = None
        """The channel of the connection that there is, as our messages see it; None between two connections."""

    def gather(self, message: Any) -> None:
        """The run of this message has begun: its acknowledgement may wait for others."""
        if self._view is None and _is_redis(message.channel):
            self._view = _View(message.channel, self._add)
        if self._view is not None and message.channel is self._view.channel:
            message.channel = self._view

    def leave(self, is_closing: bool) -> None:
        """The connection ends. If it is lost, what it did not take any more goes with the next one."""
        if is_closing:
            self.flush()
        if self._view is not None:
            self._view.leave()
            self._view = None

    def flush(self) -> None:
        """Let what has gathered go now."""
        if not self._tags or self._view is None:
            return
        tags, self._tags = self._tags, []
        qos = self._view.channel.qos
        try:
            with qos.pipe_or_acquire() as pipe:
                for tag in tags:
                    qos._remove_from_indices(tag, pipe)
                pipe.execute()
        except Exception as error:  # the client's own, which it has not in common with others
            logger.warning("%d messages were not acknowledged; each that comes again is dropped: %s", len(tags), error)

    def _add(self, tag: Any) -> None:
        self._tags.append(tag)
        if len(self._tags) >= MOST:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._later(WAIT_SECONDS, self._due)

    def _due(self) -> None:
        self._is_due = False
        self.flush()


class _View:
    """A channel as our messages see it."""

    def __init__(self, channel: Any, add: Callable[[Any], None]) -> None:
        self.channel = channel
        self.add: Callable[[Any], None] | None = add
        """None once its connection has ended."""
        self._client = OneClient(channel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)

    def leave(self) -> None:
        """The connection ends."""
        self.add = None
        self._client.leave()

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """Acknowledge it in a moment. Its place in the prefetch is free at once."""
        if self.add is None:
            self.channel.basic_ack(delivery_tag, multiple=multiple)
        else:
            QoS.ack(self.channel.qos, delivery_tag)  # type: ignore[no-untyped-call]
            self.add(delivery_tag)


def _is_redis(channel: Any) -> bool:
    """Whether it is kombu's own code for Redis that acknowledges here."""
    ack = getattr(type(getattr(channel, "qos", None)), "ack", None)
    return getattr(ack, "__module__", "") == "kombu.transport.redis"
