"""The folder as kombu sees a broker: channels over a spool, with direct, topic and fanout exchanges and priorities."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

import kombu.transport.virtual

from celery_sqlbeat.embedded.spool import Spool

virtual: Any = kombu.transport.virtual  # half of it has no types, hence the three ignored complaints below
_POLL_SECONDS = 0.1  # between two looks at empty queues; half of it is the usual delay of a message
_RESTORE_SECONDS = 1.0  # between two looks for holders that have died
_MOST_AT_ONCE = 50  # messages delivered before the worker's event loop gets its turn again


class QoS(virtual.QoS):  # type: ignore[misc]
    """What was delivered and not yet acknowledged: files that this process holds."""

    def ack(self, delivery_tag: str) -> None:
        """Be done with a message; from any thread."""
        super().ack(delivery_tag)
        self.channel.let_go(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or drop it."""
        super().reject(delivery_tag, requeue)
        self.channel.let_go(delivery_tag)  # finds nothing where it was given back


class Channel(virtual.Channel):  # type: ignore[misc]
    """One consumer or producer."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._spool: Spool = connection.spool()
        self._held: dict[str, Path] = {}
        self._temporary: set[str] = set()
        self._pid = os.getpid()

    def _new_queue(self, queue: str, **options: Any) -> None:
        temporary = bool(options.get("auto_delete") or options.get("exclusive"))
        self._spool.declare(queue, temporary)
        if temporary:
            self._temporary.add(queue)

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        self._spool.put(queue, message, self._get_message_priority(message))

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        self.connection.restore_now_and_then(self._spool)
        taken = self._spool.take(queue)
        if taken is None:
            raise Empty
        properties = taken.message["properties"]
        # A message that a fanout put into several queues needs a tag for each of them.
        tag = properties["delivery_tag"] = f"{queue}/{taken.path.name}"
        if taken.again:
            properties.setdefault("delivery_info", {})["redelivered"] = True
        self._held[tag] = taken.path
        return taken.message

    def let_go(self, delivery_tag: str) -> None:
        """Be done with the file of a message."""
        path = self._held.pop(delivery_tag, None)
        if path is not None and self._pid == os.getpid():
            self._spool.acknowledge(path)

    def _restore(self, message: Any) -> None:
        path = self._held.pop(message.delivery_tag, None)
        if path is not None and self._pid == os.getpid():  # a forked child must not give away what its parent holds
            self._spool.give_back(path)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **options: Any
    ) -> None:
        """Consume a queue."""

        def done_at_once(message: Any) -> Any:
            self.let_go(message.delivery_tag)
            return callback(message)

        super().basic_consume(queue, no_ack, done_at_once if no_ack else callback, consumer_tag, **options)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Cancel a consumer; its queue goes with it where it is a temporary one."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue in self._temporary and queue not in self._active_queues and self._pid == os.getpid():
            self.queue_delete(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Take one message, or None."""
        message = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self.let_go(message.delivery_tag)
        return message

    def _size(self, queue: str) -> int:
        return self._spool.size(queue)

    def _purge(self, queue: str) -> int:
        return self._spool.purge(queue)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        """Delete a queue."""
        if not (if_empty and self._size(queue)):
            self._spool.delete(queue)
            self.state.queue_bindings_delete(queue)

    def exchange_declare(
        self, exchange: Any = None, type: Any = "direct", passive: bool = False, **options: Any
    ) -> None:
        """Declare an exchange; other processes get to know it, too."""
        super().exchange_declare(exchange, type, passive=passive, **options)
        if exchange and not passive:
            self._spool.declare_exchange(exchange, type or "direct")

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """Return the kind of an exchange, whoever declared it."""
        if exchange not in self.state.exchanges:
            default = self._spool.kind_of(exchange, self.exchange_types) or default
        return super().typeof(exchange, default)

    def queue_bind(
        self, queue: str, exchange: Any = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        """Bind a queue to an exchange; always anew, since another process may have deleted the queue."""
        exchange = exchange or "amq.direct"
        self.state.binding_declare(queue, exchange, routing_key, arguments)
        self._spool.bind(exchange, self._prepared(queue, exchange, routing_key, arguments))

    def queue_unbind(
        self, queue: str, exchange: Any = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        """Undo a binding."""
        self.state.binding_delete(queue, exchange, routing_key)
        self._spool.unbind(exchange, self._prepared(queue, exchange, routing_key, arguments))

    def _prepared(self, queue: str, exchange: str, routing_key: str, arguments: Any) -> tuple[str, str, str]:
        key, pattern, name = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
        return key or "", pattern or "", name or ""

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        """Return what is bound to an exchange."""
        return self._spool.bindings(exchange)

    def _put_fanout(self, exchange: str, message: Any, routing_key: str, **options: Any) -> None:
        for _, _, queue in self._spool.bindings(exchange):
            self._put(queue, message, **options)


class Transport(virtual.Transport):  # type: ignore[misc]
    """A connection: nothing but the name of a folder."""

    Channel = Channel
    default_port = 0
    driver_type = driver_name = "folder"
    polling_interval = _POLL_SECONDS
    connection_errors = (*virtual.Transport.connection_errors, OSError)  # a full disk, a folder that was removed
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self._next_restore = 0.0

    def spool(self) -> Spool:
        """Return the folder that the URL names."""
        folder = self.client.virtual_host
        if not folder or folder == "/":
            raise ValueError(
                "folder:// names no folder; a relative one is folder:///name, an absolute one folder:////path"
            )
        return Spool(Path(folder))

    def driver_version(self) -> str:
        """There is no driver."""
        return "N/A"

    def establish_connection(self) -> Any:
        """Be sure that the folder is there and can be written."""
        self.spool().prepare()
        return super().establish_connection()

    def restore_now_and_then(self, spool: Spool) -> None:
        """Give back what dead consumers held, if nobody looked for a while."""
        now = time.monotonic()
        if now >= self._next_restore:
            self._next_restore = now + _RESTORE_SECONDS
            spool.restore()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages from within a worker's event loop: at every turn while there are some, else now and then."""
        next_look = 0.0

        def look() -> None:
            nonlocal next_look
            if not self.channels:  # the connection was closed
                loop.on_tick.discard(look)
            elif time.monotonic() >= next_look:
                may_be_more = self._deliver_some() or self._is_full()
                next_look = 0.0 if may_be_more else time.monotonic() + _POLL_SECONDS

        loop.on_tick.add(look)
        loop.call_repeatedly(_POLL_SECONDS, int)  # a turn at least so often

    def _is_full(self) -> bool:
        """Whether a consumer has all that it may hold: then it takes the next one as soon as one is acknowledged."""
        return any(channel._consumers and not channel.qos.can_consume() for channel in self.channels)

    def _deliver_some(self) -> bool:
        """Deliver what is there and may be taken; returns whether there was something."""
        for delivered in range(_MOST_AT_ONCE):
            try:
                self.cycle.get(self._deliver)
            except Empty:
                return delivered > 0
        return True
