"""Where a worker talks to its broker: an event loop, green threads or a plain thread.

Other threads have something done there, hand it their log records, and ask there for a prefetch.
"""

import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from amqp import spec
from amqp.channel import Channel

from celery_sqlbeat import environment
from celery_sqlbeat.environment import call_safely

Action = Callable[[], None]


class Loop(Protocol):
    """The thread or green thread in which a worker talks to its broker."""

    def post(self, action: Action) -> None:
        """Have this done there soon. From any thread; never blocks."""

    def run(self) -> None:
        """Do what was posted. Only there, or when the loop has ended."""


class PlainLoop:
    """A consumer without an event loop, which runs actions after each read from the broker."""

    def __init__(self, call_soon: Callable[[Action], Any]) -> None:
        self._call_soon = call_soon
        self._posted: deque[Action] = deque()

    def post(self, action: Action) -> None:
        """Have this done by the consumer's thread."""
        self._posted.append(action)
        self._call_soon(self.run)

    def run(self) -> None:
        """Do what was posted."""
        _run(self._posted)


class PipedLoop:
    """An event loop that sleeps until it can read: a byte in a pipe wakes it at once."""

    def __init__(self) -> None:
        self._posted: deque[Action] = deque()
        self._is_rung = False
        self._reader, self._writer = socket.socketpair()
        self._writer_fd = self._writer.fileno()

    def post(self, action: Action) -> None:
        """Have this done by the loop's thread."""
        self._posted.append(action)
        if not self._is_rung:
            self._is_rung = True
            self._ring()

    def run(self) -> None:
        """Do what was posted."""
        self._is_rung = False  # first: what is posted from now on rings again
        _run(self._posted)

    def join(self, hub: Any) -> None:
        """Listen in the event loop, which forgets its readers with each connection."""
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        hub.add_reader(self._reader.fileno(), self._on_readable)
        self._ring()

    def listen(self, spawn: Callable[[Action], Any]) -> None:
        """Listen in a green thread."""
        spawn(self._read_on)

    def close(self) -> None:
        """Stop listening."""
        self._reader.close()
        self._writer.close()

    def _ring(self) -> None:
        try:
            os.write(self._writer_fd, b"\0")  # not the socket's own: that one may be green, and this thread native
        except OSError:
            return  # full, so that it wakes already; or closed, with no loop left to wake

    def _on_readable(self) -> None:
        try:
            self._reader.recv(4096)
        except OSError:
            return
        self.run()

    def _read_on(self) -> None:
        while self._reader.fileno() >= 0 and self._reader.recv(4096):
            self.run()


def _run(posted: deque[Action]) -> None:
    while posted:
        call_safely(posted.popleft())


_PACKAGE = "celery_sqlbeat"
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


class Relay(logging.Handler):
    """Passes log records to their handlers in the thread in which it was made.

    Under gevent and eventlet the locks of `logging` are green; one that a native thread waits for
    may never be given to it.
    """

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop
        self._thread = environment.thread_id()

    def createLock(self) -> None:  # noqa: N802 - the name that logging gives it
        """Have no lock, since waiting for one is what must not happen."""
        self.lock: Any = _NoLock()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, in its own thread or by the loop."""
        if environment.thread_id() == self._thread:
            _onward(record)
        else:
            self._loop.post(lambda: _onward(record))


class _NoLock:
    def __enter__(self) -> None:
        """Nobody waits."""

    def __exit__(self, *_: object) -> None:
        """Nobody waited."""

    def acquire(self) -> None:
        """Nobody waits."""

    def release(self) -> None:
        """Nobody waited."""


def relay_logs(loop: Loop) -> None:
    """Pass on what native threads of this package log; leave the handlers of others as they are."""
    logger = logging.getLogger(_PACKAGE)
    for handler in list(logger.handlers):
        if isinstance(handler, Relay):
            logger.removeHandler(handler)
    logger.addHandler(Relay(loop))
    logger.propagate = False
    _remember_levels()


def _remember_levels() -> None:
    """Ask each logger whether it is enabled, here: the first question takes a green lock, too."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and (name == _PACKAGE or name.startswith(f"{_PACKAGE}.")):
            for level in _LEVELS:
                logger.isEnabledFor(level)


def _onward(record: logging.LogRecord) -> None:
    logging.getLogger().handle(record)


def ask_without_waiting(consumer: Any, loop: Loop) -> None:
    """Let this consumer's AMQP channel ask for a prefetch where it is served, without an answer.

    After a lost connection Celery asks where a task is acknowledged, which may be a thread of the
    pool. A thread that waits for the answer there reads from the socket together with the consumer,
    so that both get parts of frames; and it writes into the middle of another's frame. A broker
    works off requests in their order, so the answer need not be awaited.
    """
    channel = consumer.task_consumer.channel
    if not isinstance(channel, Channel):
        return  # other transports ask no broker

    def send(*wish: Any) -> None:
        with contextlib.suppress(*consumer.connection_errors):  # the consumer notices by itself
            channel.send_method(spec.Basic.Qos, "lBb", wish)

    def basic_qos(prefetch_size: int, prefetch_count: int, a_global: bool, **_: Any) -> None:
        loop.post(partial(send, prefetch_size, prefetch_count, a_global))

    channel.basic_qos = basic_qos  # type: ignore[method-assign,assignment]  # for this one channel


def acknowledge_at_the_end(consumer: Any) -> None:
    """Send the acknowledgements that a consumer without an event loop keeps for its next round.

    After its last round Celery before 5.5 forgets them, and the broker delivers each of these
    messages again (celery/celery#5663).
    """
    if consumer is not None and consumer.hub is None:
        consumer.perform_pending_operations()
