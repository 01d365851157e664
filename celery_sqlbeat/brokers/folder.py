"""A broker without a server, for one machine: queues are folders, messages files, steps renames.

A message is written aside, renamed into its queue, renamed into the folder of its holder, and
removed or given back: a kill at any moment loses and doubles none. No step waits for the disk, so a
power failure may cost the last messages.
"""

import contextlib
import heapq
import itertools
import json
import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any
from urllib.parse import quote

import kombu.transport.virtual

from celery_sqlbeat import environment, events
from celery_sqlbeat.brokers.files import MESSAGE, dead_owners, exclusive, file_name, messages, move, own_folder

virtual: Any = kombu.transport.virtual  # half of it has no types, hence the ignored errors below
_POLL_SECONDS = 0.1  # between two polls of empty queues; a message is delayed by half of it
_RESTORE_SECONDS = 1.0  # between two searches for dead holders
_MOST_AT_ONCE = 50  # messages delivered before the worker's event loop goes on
_READ_AHEAD = 64  # names kept from one reading of a queue, which reads the whole folder
_LOWEST_PRIORITY = 9  # of 0 to 9, the higher the sooner
_AGAIN = ".again.json"  # it was held before, and given back or left by a dead process
_OWNER = ".keeper"  # in a temporary queue: the owner that it is removed with

_numbers = itertools.count()


class QoS(virtual.QoS):  # type: ignore[misc]
    """The messages that were delivered and not acknowledged yet: files that this process holds."""

    def ack(self, delivery_tag: str) -> None:
        """Remove a message; from any thread."""
        super().ack(delivery_tag)
        self.channel.let_go(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or remove it."""
        super().reject(delivery_tag, requeue)
        self.channel.let_go(delivery_tag)  # does nothing where it was given back


class Channel(virtual.Channel):  # type: ignore[misc]
    """One consumer or producer."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._root: Path = connection.root
        self._queues: Path = self._root / "queues"
        self._exchanges: Path = self._root / "exchanges"
        self._held: dict[str, Path] = {}
        self._ahead: dict[str, deque[str]] = {}
        self._pid = os.getpid()

    def _queue(self, queue: str) -> Path:
        return self._queues / file_name(queue)

    def _new_queue(self, queue: str, **options: Any) -> None:
        folder, own = self._queue(queue), own_folder(self._root)
        with exclusive(self._root):  # the removal of a dead owner's queue could remove this one
            folder.mkdir(parents=True, exist_ok=True)
            if options.get("auto_delete") or options.get("exclusive"):
                (folder / _OWNER).write_text(own.name)

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        order = f"{_LOWEST_PRIORITY - self._get_message_priority(message)}-{environment.unix_nanoseconds():020d}"
        name = f"{order}-{next(_numbers):08d}-{environment.random_hex(4)}{MESSAGE}"
        aside = own_folder(self._root) / name
        aside.write_text(json.dumps(message), encoding="utf-8")
        move(aside, self._queue(queue) / name)

    def _put_fanout(self, exchange: str, message: Any, routing_key: str, **options: Any) -> None:
        for _, _, queue in self.get_table(exchange):
            self._put(queue, message, **options)

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        if self.connection.is_time_to_restore():
            self.restore()
        folder, mine = self._queue(queue), own_folder(self._root) / file_name(queue)
        mine.mkdir(exist_ok=True)
        while name := self._next(queue, folder):
            taken = mine / name
            try:
                (folder / name).rename(taken)
            except FileNotFoundError:  # another consumer was first
                continue
            try:
                message = json.loads(taken.read_text(encoding="utf-8"))
            except ValueError:  # a power failure can leave a file without its content
                move(taken, self._root / "broken" / name)
                events.message_refused(
                    message_id=name, task_name=None, effect="it was set aside as broken/*", reason="it cannot be read"
                )
                continue
            # A message of a fanout is in several queues, and needs a tag for each.
            tag = message["properties"]["delivery_tag"] = f"{queue}/{name}"
            if name.endswith(_AGAIN):
                message["properties"].setdefault("delivery_info", {})["redelivered"] = True
            self._held[tag] = taken
            return message
        raise Empty

    def _next(self, queue: str, folder: Path) -> str | None:
        ahead = self._ahead.get(queue)
        if not ahead:
            self._ahead[queue] = ahead = deque(heapq.nsmallest(_READ_AHEAD, messages(folder)))
        return ahead.popleft() if ahead else None

    def let_go(self, delivery_tag: str, do: Callable[[Path], None] = os.unlink) -> None:
        """Remove the file of a message."""
        path = self._held.pop(delivery_tag, None)
        if path is not None and self._pid == os.getpid():  # its parent holds it, not this forked child
            with contextlib.suppress(FileNotFoundError):  # the broker was removed
                do(path)

    def _restore(self, message: Any) -> None:
        self.let_go(message.delivery_tag, self._give_back)

    def _give_back(self, held: Path) -> None:
        """Put a message back to its old place in its queue, marked as redelivered."""
        name = held.name if held.name.endswith(_AGAIN) else held.name.removesuffix(MESSAGE) + _AGAIN
        move(held, self._queues / held.parent.name / name)

    def restore(self) -> None:
        """Give back what dead processes held, and remove their temporary queues."""
        with dead_owners(self._root) as owners:
            for owner in owners:
                for marker in self._queues.glob(f"*/{_OWNER}"):
                    if marker.read_text() == owner.name:
                        self._remove(marker.parent)
                for held in sorted(owner.glob(f"*/*{MESSAGE}")):
                    if (self._queues / held.parent.name).is_dir():
                        self._give_back(held)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **options: Any
    ) -> None:
        """Consume a queue."""

        def done_at_once(message: Any) -> Any:
            self.let_go(message.delivery_tag)
            return callback(message)

        super().basic_consume(queue, no_ack, done_at_once if no_ack else callback, consumer_tag, **options)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Cancel a consumer; a temporary queue of this process is deleted with its last one."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        with contextlib.suppress(FileNotFoundError):  # not a temporary one
            own = own_folder(self._root).name
            if queue not in (None, *self._active_queues) and (self._queue(queue) / _OWNER).read_text() == own:
                self.queue_delete(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Take one message, or None."""
        message = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self.let_go(message.delivery_tag)
        return message

    def _size(self, queue: str) -> int:
        return len(messages(self._queue(queue)))

    def _purge(self, queue: str) -> int:
        removed = 0
        for name in messages(self._queue(queue)):
            with contextlib.suppress(FileNotFoundError):  # taken meanwhile
                (self._queue(queue) / name).unlink()
                removed += 1
        return removed

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        """Delete a queue, what waits in it, and its bindings."""
        if not (if_empty and self._size(queue)):
            with exclusive(self._root):
                self._remove(self._queue(queue))
            self.state.queue_bindings_delete(queue)

    def _remove(self, folder: Path) -> None:
        for binding in self._exchanges.glob(f"*/{folder.name}=*{MESSAGE}"):
            binding.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def queue_bind(
        self, queue: str, exchange: Any = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        """Bind a queue to an exchange, always anew: another process may have deleted the queue."""
        exchange = exchange or "amq.direct"
        self.state.binding_declare(queue, exchange, routing_key, arguments)
        binding = [self.typeof(exchange).type, *self._prepared(queue, exchange, routing_key, arguments)]
        aside = own_folder(self._root) / f"{environment.random_hex(8)}{MESSAGE}"
        aside.write_text(json.dumps(binding), encoding="utf-8")
        move(aside, self._binding(exchange, *binding[1:]))

    def queue_unbind(
        self, queue: str, exchange: Any = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        """Remove a binding."""
        exchange = exchange or "amq.direct"
        self.state.binding_delete(queue, exchange, routing_key)
        self._binding(exchange, *self._prepared(queue, exchange, routing_key, arguments)).unlink(missing_ok=True)

    def _prepared(self, queue: str, exchange: str, routing_key: str, arguments: Any) -> list[str]:
        """Return the routing key, the pattern and the queue of a binding."""
        return [each or "" for each in self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)]

    def _binding(self, exchange: str, key: str, pattern: str, queue: str) -> Path:
        name = f"{file_name(queue)}={quote(f'{key} {pattern}', safe='')}{MESSAGE}"
        return self._exchanges / file_name(exchange) / name

    def _bindings(self, exchange: str) -> list[tuple[str, str, str, str]]:
        folder, bindings = self._exchanges / file_name(exchange), []
        for name in sorted(messages(folder)):
            with contextlib.suppress(FileNotFoundError):  # unbound meanwhile
                kind, key, pattern, queue = json.loads((folder / name).read_text(encoding="utf-8"))
                bindings.append((kind, key, pattern, queue))
        return bindings

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        """Return what is bound to an exchange."""
        return [(key, pattern, queue) for _, key, pattern, queue in self._bindings(exchange)]

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """Return the type of an exchange; its bindings tell that of one that others declared."""
        if exchange not in self.state.exchanges and (bindings := self._bindings(exchange)):
            default = bindings[0][0]
        return super().typeof(exchange, default)


class Transport(virtual.Transport):  # type: ignore[misc]
    """A connection, which is the name of a folder."""

    Channel = Channel
    default_port = 0
    driver_type = driver_name = "folder"
    polling_interval = _POLL_SECONDS
    connection_errors = (*virtual.Transport.connection_errors, OSError)  # a full disk, a folder that was removed
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    _next_restore = 0.0

    @property
    def root(self) -> Path:
        """The folder that the URL names."""
        folder = self.client.virtual_host
        if not folder or folder == "/":
            raise ValueError("folder:// names no folder: write folder:///name or, from the root, folder:////path")
        return Path(folder)

    def establish_connection(self) -> Any:
        """Make sure that the folder is there and can be written."""
        (self.root / "queues").mkdir(parents=True, exist_ok=True)
        return super().establish_connection()

    def is_time_to_restore(self) -> bool:
        """Return whether the next search for dead holders is due; the answer counts as one."""
        was_due, now = self._next_restore, environment.monotonic()
        if now >= was_due:
            self._next_restore = now + _RESTORE_SECONDS
        return now >= was_due

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages from a worker's event loop, at each cycle while there are some."""
        next_poll = 0.0

        def poll() -> None:
            nonlocal next_poll
            if not self.channels:  # the connection was closed
                loop.on_tick.discard(poll)
            elif environment.monotonic() >= next_poll:
                # A consumer at its prefetch limit takes the next message after an acknowledgement.
                is_full = any(channel._consumers and not channel.qos.can_consume() for channel in self.channels)
                next_poll = 0.0 if self._deliver_some() or is_full else environment.monotonic() + _POLL_SECONDS

        loop.on_tick.add(poll)
        loop.call_repeatedly(_POLL_SECONDS, int)  # a cycle at least so often

    def _deliver_some(self) -> bool:
        """Deliver what may be taken; returns whether there was something."""
        for delivered in range(_MOST_AT_ONCE):
            try:
                self.cycle.get(self._deliver)
            except Empty:
                return delivered > 0
        return True
