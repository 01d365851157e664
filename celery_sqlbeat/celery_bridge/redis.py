"""A worker's channel to Redis: who it is, acknowledgements in batches, and what is mended of it.

An acknowledgement by itself is a round trip in which the event loop stands still. One that waits
here is lost with its worker: Redis then delivers a message whose run has begun, which is dropped.

Redis hands a message to whoever has waited longest, and kombu waits anew each second. A worker that
gives back what only others may run has often waited longest, gets the same message again, and with
jobs on whole seconds it does so time after time.

A message whose acknowledgement Redis does not take keeps its place in kombu's prefetch for good. A
green worker whose places are all kept so takes no message any more, and since it waits for none it
never notices that its connection was lost.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from kombu.transport.virtual import QoS

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.symbols import ACKNOWLEDGING, CONNECTIONS, RETURNING, is_on

Action = Callable[[], None]
Later = Callable[[float, Action], Any]

KEEPS_LEASES = "sqlbeat-worker"  # the name of a connection through which a worker of ours takes messages

WAIT_SECONDS = 0.01  # for other acknowledgements
MOST = 64  # acknowledgements in one round trip

_EVERY = 1.0  # seconds between two breaks: each of them holds up what this worker could run
_BREAK_SECONDS = 0.1  # long enough for others to take several messages, one after the other
_LATEST = 2.0  # seconds; kombu waits for one at a time, and not at all where the prefetch is used up


def _acknowledges_to_redis(channel: Any) -> bool:
    """Return whether it is kombu's own code for Redis that acknowledges here."""
    return _is_of_kombu(getattr(channel, "qos", None), "ack")


def _waits_on_redis(channel: Any) -> bool:
    """Return whether it is kombu's own code for Redis that waits for messages here."""
    return _is_of_kombu(channel, "_brpop_start")


def _is_of_kombu(owner: Any, name: str) -> bool:
    return getattr(getattr(type(owner), name, None), "__module__", "") == "kombu.transport.redis"


def address_of(consumer: Any) -> str | None:
    """Return the client address of the connection that takes messages; None where it is unknown.

    By it a beat tells this worker from those that keep no leases. From any thread.
    """
    try:
        # kombu has one connection that only waits for messages, and no public name for it.
        # The property has a lock, which a child that is forked meanwhile would find taken for ever.
        client = vars(consumer.task_consumer.channel)["client"]
        host, port = client.connection._sock.getsockname()[:2]
    except Exception:  # no Redis, no connection at this moment, or another kombu
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ConnectionName:
    """Names the connection through which a worker takes messages, so that a beat knows it there.

    A name passes through proxies that change the address, and it is there before the first message
    is taken, whatever the worker's row says. A name that the shop has chosen is left alone.
    """

    def __init__(self) -> None:
        self.is_kept = False
        """Whether each connection is named before messages are taken. From any thread."""
        self._named: Any = None

    def keep(self, consumer: Any) -> None:
        """Name the connection of this consumer, also when it is made anew."""
        channel = consumer.task_consumer.channel
        is_ours = not getattr(channel, "client_name", None)
        self.is_kept = is_on(CONNECTIONS) and _waits_on_redis(channel) and is_ours
        if self.is_kept:
            channel._brpop_start = partial(self._start, channel, channel._brpop_start)

    def _start(self, channel: Any, wait: Callable[..., Any], *args: Any, **options: Any) -> Any:
        connection = channel.client.connection
        if self.is_kept and connection._sock is not self._named:  # it waits for no message now
            self._named = connection._sock
            connection.send_command("CLIENT", "SETNAME", KEEPS_LEASES)
            try:
                connection.read_response()
            except channel.ResponseError as error:  # this user may not, or a proxy cannot
                self.is_kept = False
                events.noted(topic="the connection to Redis was not named", text=error)
        return wait(*args, **options)


class OneClient:
    """Replaces the `conn_or_acquire` of a channel, which makes a client for each message."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._client: Any = None
        channel.conn_or_acquire = self

    def __call__(self, client: Any = None) -> AbstractContextManager[Any]:
        """Return the given client, or the channel's one."""
        return nullcontext(client or self._of_channel())

    def leave(self) -> None:
        """Restore kombu's own."""
        self._channel.__dict__.pop("conn_or_acquire", None)

    def _of_channel(self) -> Any:
        # A channel that closes has another pool of connections from then on.
        if self._client is None or self._client.connection_pool is not self._channel.pool:
            self._client = self._channel._create_client()
        return self._client


class RedisAcks:
    """The acknowledgements of one worker with an event loop. Everything runs in that loop."""

    def __init__(self, later: Later) -> None:
        """`later(seconds, action)` calls an action after so many seconds."""
        self._later = later
        self._is_due = False
        self._tags: list[Any] = []
        self._view: _View | None = None
        """The channel of the present connection, as our messages see it; None without one."""

    def gather(self, message: Any) -> None:
        """Let the acknowledgement of this message wait for others, since its run has begun."""
        if self._view is None and is_on(ACKNOWLEDGING) and _acknowledges_to_redis(message.channel):
            self._view = _View(message.channel, self._add)
        if self._view is not None and message.channel is self._view.channel:
            message.channel = self._view

    def leave(self, is_closing: bool) -> None:
        """Note the end of the connection; if it is lost, what waits goes with the next one."""
        if is_closing:
            self.flush()
        if self._view is not None:
            self._view.leave()
            self._view = None

    def flush(self) -> None:
        """Send what has gathered now."""
        if not self._tags or self._view is None:
            return
        tags, self._tags = self._tags, []
        qos = self._view.channel.qos
        try:
            with qos.pipe_or_acquire() as pipe:
                for tag in tags:
                    qos._remove_from_indices(tag, pipe)
                pipe.execute()
        except Exception as error:  # the client's own errors, which have no common class
            subject = f"{len(tags)} messages, each of which is dropped when it comes again"
            events.step_failed(step="acknowledge", subject=subject, error=error)

    def _add(self, tag: Any) -> None:
        self._tags.append(tag)
        if len(self._tags) >= MOST:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._later(WAIT_SECONDS, self._flush_due)

    def _flush_due(self) -> None:
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
        """Note the end of the connection."""
        self.add = None
        self._client.leave()

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """Acknowledge it in a moment. Its place in the prefetch is free at once."""
        if self.add is None:
            self.channel.basic_ack(delivery_tag, multiple=multiple)
        else:
            QoS.ack(self.channel.qos, delivery_tag)
            self.add(delivery_tag)


def free_places_of_lost_messages(consumer: Any) -> None:
    """Free the place of a message in the prefetch also where Redis does not hear what became of it.

    Redis delivers such a message again after its visibility time-out, as it would anyway.
    """
    channel = consumer.task_consumer.channel
    if not is_on(RETURNING) or not _waits_on_redis(channel):
        return
    qos = channel.qos
    for name in ("ack", "reject"):
        setattr(qos, name, partial(_tell_and_free, qos, getattr(qos, name), consumer.connection_errors))


def _tell_and_free(
    qos: Any, tell: Callable[..., None], errors: tuple[type[BaseException], ...], delivery_tag: str, **how: bool
) -> None:
    try:
        tell(delivery_tag, **how)
    except errors:
        QoS.ack(qos, delivery_tag)
        raise


class RedisRequeue:
    """Gives messages back over one connection to Redis. All of it where the consumer is served."""

    def __init__(self, channel: Any, later: Later, has_loop: bool) -> None:
        """Take over when the channel waits; `later` does something after so many seconds.

        A consumer with an event loop must not sleep.
        """
        self._channel, self._later, self._has_loop = channel, later, has_loop
        self._wait: Callable[..., Any] = channel._brpop_start
        self._due: dict[object, Action] = {}
        self._again_at = self._break_ends_at = 0.0
        channel._brpop_start = self._wait_for_message

    @classmethod
    def of(cls, consumer: Any, later: Later) -> "RedisRequeue | None":
        """Return what gives messages of this consumer back; None on another broker."""
        channel = consumer.task_consumer.channel
        if not is_on(RETURNING) or not _waits_on_redis(channel):
            return None
        return cls(channel, later, getattr(consumer, "hub", None) is not None)

    def give(self, action: Action) -> None:
        """Do this in the next break."""
        key = object()
        self._due[key] = action
        self._later(_LATEST, partial(self._do, key))

    def leave(self) -> None:
        """Forget what is due: the connection ends, and the broker takes back what it gave."""
        self._due.clear()
        self._channel.__dict__.pop("_brpop_start", None)

    def _do(self, key: object) -> None:
        action = self._due.pop(key, None)
        if action is not None:
            action()

    def _wait_for_message(self, *args: Any, **options: Any) -> Any:
        if self._due and environment.monotonic() >= self._again_at:
            self._take_break()
        if self._has_loop and environment.monotonic() < self._break_ends_at:
            return None  # kombu asks again each time that its event loop wakes
        return self._wait(*args, **options)

    def _take_break(self) -> None:
        for key in list(self._due):
            self._do(key)
        now = environment.monotonic()
        self._again_at, self._break_ends_at = now + _EVERY, now + _BREAK_SECONDS
        if self._has_loop:
            self._later(_BREAK_SECONDS, _wake_up)
        else:
            time.sleep(_BREAK_SECONDS)


def _wake_up() -> None:
    """Do nothing: an event loop that wakes lets its transport wait for messages again."""
