"""The thread, or the green threads, that serve the broker: how others have something done there, and what it hears."""

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.native import called

Action = Callable[[], None]


class Loop(Protocol):
    """Where a worker talks to its broker."""

    def post(self, action: Action) -> None:
        """Have this done there soon. From any thread, never blocks."""

    def run(self) -> None:
        """Do what was posted. Only there, or when nobody is there any more."""


class PlainLoop:
    """A consumer without an event loop: it looks for what is to be done each time it has read from the broker."""

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


class Ear:
    """Hears when a file can be read, in kombu's event loop, until it is closed."""

    def __init__(self, hub: Any, file: int, action: Action) -> None:
        # By a number of its own: whoever has the file may close it meanwhile, and its number is given to another.
        self._hub, self._file = hub, os.dup(file)
        try:
            hub.add_reader(self._file, action)
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Hear no more."""
        self._hub.remove(self._file)
        os.close(self._file)


class PipedLoop:
    """An event loop that sleeps until something can be read: a byte in a pipe wakes it at once."""

    def __init__(self) -> None:
        self._posted: deque[Action] = deque()
        self._is_rung = False
        self._reader, self._writer = socket.socketpair()
        self._writer_fd = self._writer.fileno()
        self._hub: Any = None
        self._thread_id = -1

    def post(self, action: Action) -> None:
        """Have this done by the loop's thread."""
        self._posted.append(action)
        if not self._is_rung:
            self._is_rung = True
            self._ring()

    def run(self) -> None:
        """Do what was posted."""
        self._is_rung = False  # before the look: whoever posts from now on rings again
        _run(self._posted)

    def join(self, hub: Any) -> None:
        """Listen in kombu's event loop; a loop that lost its connection has forgotten who listened."""
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._hub, self._thread_id = hub, native.thread_id()
        hub.add_reader(self._reader.fileno(), self._on_readable)
        self._ring()

    def is_here(self) -> bool:
        """Whether this is the thread of kombu's event loop."""
        return native.thread_id() == self._thread_id

    def after(self, seconds: float, action: Action) -> None:
        """Do this in so many seconds. In kombu's event loop."""
        self._hub.call_later(seconds, action)

    def listen_to(self, file: int, action: Action) -> Ear:
        """Do this whenever the file can be read. In kombu's event loop."""
        return Ear(self._hub, file, action)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """What is posted in here is done right after it, without a ring. In kombu's event loop."""
        self._is_rung = True
        try:
            yield
        finally:
            self.run()

    def listen(self, spawn: Callable[[Action], Any]) -> None:
        """Listen in a green thread."""
        spawn(self._read_on)

    def close(self) -> None:
        """Listen no more."""
        self._reader.close()
        self._writer.close()

    def _ring(self) -> None:
        try:
            os.write(self._writer_fd, b"\0")  # not the socket's own: that one may be green, and this thread native
        except OSError:
            return  # full, so that it rings already; or closed, with nobody left to hear it

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
        called(posted.popleft())
