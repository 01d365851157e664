"""AMQP with publisher confirms: write everything, then wait for the broker's confirmations all together.

py-amqp alone waits after each message, and writes each one to the socket by itself.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from amqp.exceptions import AMQPError, ConnectionForced
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from amqp.spec import Basic
from kombu import common

from celery_sqlbeat.beat.amqp_wire import PUBLISH, Wire, Written
from celery_sqlbeat.beat.outlets import UNCERTAIN, Outlet, Shape, one_line
from celery_sqlbeat.beat.signals import stop_is_waiting

_declare: Any = common.maybe_declare  # kombu leaves it without types
_LONGEST_TTL = 2**32 - 1  # milliseconds; RabbitMQ closes the channel for more
_ENOUGH = 32768  # bytes; the broker reads what there is while the next messages are made
_STOP_SECONDS = 2.0  # for the confirmations that are outstanding when this beat is told to stop
_STOP_LOOK_SECONDS = 0.5  # how soon that is noticed
_CLOSE_SECONDS = 1.0  # a broker that does not answer a goodbye in this time is left without one


class AmqpOutlet(Outlet):
    """Declares on one channel and publishes on another, so that a refused declaration costs only its own message."""

    reserve = 0.1  # for the confirmations; they usually take a millisecond

    def __init__(self, app: Any, connection: Any, seconds: float) -> None:
        self._amqp = connection.connection
        self._written = Written()
        self._frame = frame_writer(self._amqp, self._written)
        self._declaring: Any = None
        self._exchanges = {""}
        self._first_wire: Any = None
        self._tag = 0
        self._lowest = 1
        self._owners: dict[int, str] = {}
        self._failures: dict[str, str] = {}
        with self._amqp.transport.having_timeout(seconds):
            self._channel = connection.channel()
            self._channel.confirm_select()
        self._channel.basic_publish = self._basic_publish
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        super().__init__(connection, app.amqp.Producer(self._channel, auto_declare=False))
        self.producer.maybe_declare = self._maybe_declare
        self._away = ()  # to publish is to write into memory here

    def begin(self, run_id: str, label: str) -> None:
        """What is published from here on belongs to this run."""
        super().begin(run_id, label)
        self._first_wire = None

    def shape(self, headers: Mapping[str, Any], content_type: str, content_encoding: str) -> Shape:
        """Write down once what the messages of a kind have in common."""
        return Shape(headers, {}, self._first_wire.with_headers(headers))

    def post(self, shape: Shape, headers: Mapping[str, Any], body: Any) -> None:
        """Publish one more message of a known shape."""
        self._written.write(shape.wire.frames(headers, self.run_id, body))
        self._sent()

    def _basic_publish(
        self, message: Any, exchange: str = "", routing_key: str = "", mandatory: bool = False, *_: Any, **__: Any
    ) -> None:
        if int(message.properties.get("expiration") or 0) > _LONGEST_TTL:
            del message.properties["expiration"]  # the worker looks at the header all the same
        if exchange not in self._exchanges:
            self._find_exchange(exchange)
        # A queue may have been deleted since it was declared. Other exchanges may have nobody to route to on purpose.
        mandatory = bool(mandatory) or not exchange
        arguments = dumps(PUBLISH, (0, exchange, routing_key, mandatory, False))
        body = message.body.encode() if isinstance(message.body, str) else message.body
        with self._written.whole(self._amqp.frame_max + len(body)):
            self._frame(1, self._channel.channel_id, Basic.Publish, arguments, message)
        if self._first_wire is None:
            self._first_wire = Wire(self._channel.channel_id, self._amqp.frame_max, arguments, message.properties)
        self._sent()

    def _sent(self) -> None:
        self._tag += 1
        self._owners[self._tag] = self.run_id
        if len(self._written) > _ENOUGH:
            self.flush()

    def _maybe_declare(self, entity: Any, retry: bool = False, **_: Any) -> Any:
        with self._declarations() as channel:
            return _declare(entity, channel)

    def _find_exchange(self, name: str) -> None:
        # To publish to one that is not there would close the channel, with everybody's confirmations.
        with self._declarations() as channel:
            channel.exchange_declare(name, "direct", passive=True)
        self._exchanges.add(name)

    @contextmanager
    def _declarations(self) -> Iterator[Any]:
        with self._in_time():
            if self._declaring is None:
                self._declaring = self.connection.channel()
            try:
                yield self._declaring
            except self.connection.channel_errors:
                self._declaring = None  # the broker has closed it
                raise

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        try:
            with self._amqp.transport.having_timeout(self.remaining()):
                yield
        except self.connection.channel_errors:
            raise
        except Exception as error:
            self.broken = one_line(error)
            raise

    def flush(self) -> None:
        """Write what has gathered, without waiting for the broker's answer."""
        frames = self._written.take()
        if frames and self.broken is None:
            try:
                with self._in_time():
                    self._amqp.transport.write(frames)
            except Exception as error:
                self.broken = one_line(error)

    def settle(self) -> dict[str, str]:
        """Wait until each message is confirmed; a connection that leaves one out is not used again."""
        self.flush()
        is_stopping = False
        while self._owners and self.broken is None:
            if not is_stopping and stop_is_waiting():
                is_stopping, self.until = True, min(self.until, time.monotonic() + _STOP_SECONDS)
            try:
                self._amqp.drain_events(timeout=min(self.remaining(), _STOP_LOOK_SECONDS))
            except Exception as error:
                if isinstance(error, TimeoutError) and time.monotonic() < self.until:
                    continue
                self.broken = one_line(error)
                self.refused = _refuses(error)
        failures, self._failures = self._failures, {}
        failures.update(dict.fromkeys(self._owners.values(), f"{UNCERTAIN} ({self.broken})"))
        self._owners.clear()
        return failures

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._settled(tag, multiple)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for run_id in self._settled(tag, multiple):
            self._failures[run_id] = "the broker refused the message"

    def _settled(self, tag: int, multiple: bool) -> list[str]:
        tags = range(self._lowest, tag + 1) if multiple else (tag,)
        if multiple:
            self._lowest = tag + 1
        return [self._owners.pop(each) for each in tags if each in self._owners]

    def _on_return(self, error: Any, exchange: str, routing_key: str, message: Any) -> None:
        run_id = message.properties.get("correlation_id", "")
        self._failures[run_id] = f"no queue took the message: {routing_key!r} is not there"
        self.connection.declared_entities.clear()
        self.returned = True

    def probe(self, seconds: float) -> None:
        """Ask for what is there already; only the answer matters."""
        self.until = time.monotonic() + seconds
        with self._in_time():
            self._channel.confirm_select()

    def forget(self) -> None:
        """Close this process's copy of the socket and say nothing over it: py-amqp would shut it down for both."""
        transport = self._amqp.transport
        shared, transport.sock = transport.sock, None
        if shared is not None:
            shared.close()

    def close(self) -> None:
        """Close the connection, or drop it where it is broken or does not answer."""
        try:
            if self.broken is None:
                self._amqp.transport.sock.settimeout(_CLOSE_SECONDS)
                self.connection.release()
        finally:
            self._amqp.collect()


def _refuses(error: Exception) -> bool:
    """Whether the broker objects to what it was sent, rather than to be asked at all."""
    code = getattr(error, "reply_code", None)
    return isinstance(error, AMQPError) and bool(code) and code != ConnectionForced.code
