"""Real brokers for tests.

Apps with queues of their own, what arrived there, and a wire that can be cut.
"""

import secrets
import select
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import kombu.entity
import redis
from celery import Celery

from tests.servers import server

Exchange: Any = kombu.entity.Exchange  # kombu leaves them without types
Queue: Any = kombu.entity.Queue


class Arrived(NamedTuple):
    """A message as it lies in its queue."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    body: Any
    content: tuple[str, str]
    destination: dict[str, Any]


class Place:
    """An app on a broker, and the queues that are deleted when the test is over."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.prefix = f"sqlbeat_test_{secrets.token_hex(6)}"
        self.url = _own_database(url, self.prefix) if kind == "redis" else url
        self.queues = {
            name: Queue(f"{self.prefix}.{name}", Exchange(f"{self.prefix}.{kind}", kind), routing_key=key)
            for name, kind, key in [
                ("default", "direct", "default"),
                ("direct", "direct", "d"),
                ("topic", "topic", "t.#"),
            ]
        }

    def app(self, url: str | None = None, **conf: Any) -> Celery:
        """Return a new app; nothing of it is shared with others."""
        app = Celery("shop", set_as_current=False, broker=url or self.url)
        app.conf.update(
            task_queues=list(self.queues.values()),
            task_default_queue=self.queues["default"].name,
            broker_transport_options={"global_keyprefix": f"{self.prefix}:"} if self.kind == "redis" else {},
            **conf,
        )
        return app

    def queue(self, name: str) -> str:
        """Return the whole name of a queue."""
        return str(self.queues[name].name)

    def take(self, name: str = "default") -> list[Arrived]:
        """Take everything that lies in a queue."""
        with self.app().connection_for_read() as connection:
            bound = self.queues[name](connection.default_channel)
            bound.declare()
            return [_arrived(message) for message in iter(lambda: bound.get(no_ack=True, accept=None), None)]

    def remove(self) -> None:
        """Delete what the test left behind."""
        with self.app().connection_for_write() as connection:
            if self.kind == "redis":
                client = redis.Redis.from_url(self.url)
                if keys := list(client.scan_iter(f"*{self.prefix}*")):
                    client.delete(*keys)
                if client.get(_OWNER) == self.prefix.encode():
                    client.delete(_OWNER)
                client.close()
                return
            channel: Any = connection.default_channel  # of amqp, whose methods StdChannel lacks
            for exchange in (
                f"{self.prefix}.events",
                f"{self.prefix}.control.pidbox",
                f"reply.{self.prefix}.control.pidbox",
            ):
                channel.exchange_delete(exchange)
            for queue in self.queues.values():
                queue(channel).delete()
                queue.exchange(channel).delete()


_OWNER = "sqlbeat_test_owner"
_DATABASES, _LONGEST_USE = 15, 900  # beside the first one, which is everybody's; seconds


def _own_database(url: str, owner: str) -> str:
    """Return the same server with a database that no other test uses.

    Beats look at who else takes messages there.
    """
    for number in range(1, _DATABASES + 1):
        there = urllib.parse.urlsplit(url)._replace(path=f"/{number}").geturl()
        client = redis.Redis.from_url(there)
        is_free = client.set(_OWNER, owner, nx=True, ex=_LONGEST_USE)
        client.close()
        if is_free:
            return there
    return url


def _arrived(message: Any) -> Arrived:
    properties = {name: value for name, value in message.properties.items() if name != "delivery_tag"}
    properties.pop("application_headers", None)
    headers = message.headers
    destination = {name: message.delivery_info.get(name) for name in ("exchange", "routing_key")}
    return Arrived(headers, properties, message.body, (message.content_type, message.content_encoding), destination)


@contextmanager
def place(kind: str) -> Iterator[Place]:
    """Yield a place of its own on a broker that answers."""
    made = Place(kind, server(kind))
    try:
        yield made
    finally:
        made.remove()


class Wire:
    """A port that leads to a server, and that can be cut, blocked and mended."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._there = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        user, at, _ = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()
        self.passed = 0  # bytes to the server
        self.stop_after: int | None = None  # and then no byte passes in either direction
        self._sockets: list[socket.socket] = []
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._open:
                client.close()
                continue
            try:
                there = socket.create_connection(self._there)
            except OSError:  # the server is away: so is this port
                client.close()
                continue
            self._sockets += (client, there)
            threading.Thread(target=self._carry, args=(client, there), daemon=True).start()

    def _carry(self, client: socket.socket, there: socket.socket) -> None:
        try:
            while True:
                for source in select.select([client, there], [], [], 0.05)[0]:
                    if self.is_blocked:
                        time.sleep(0.05)
                        continue
                    data = source.recv(4096)
                    if not data:
                        raise ConnectionResetError
                    if source is client:
                        self.passed += len(data)
                    (there if source is client else client).sendall(data)
        except (OSError, ValueError):
            for each in (client, there):
                each.close()

    @property
    def is_blocked(self) -> bool:
        """Whether bytes are held back."""
        return self.stop_after is not None and self.passed >= self.stop_after

    def cut(self) -> None:
        """Close every connection, and each new one at once."""
        self._open = False
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def mend(self) -> None:
        """Let connections through again."""
        self._open, self.stop_after = True, None

    def close(self) -> None:
        """Take the port away."""
        self.cut()
        self._listener.close()
