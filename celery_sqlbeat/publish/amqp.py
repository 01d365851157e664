"""Publish over AMQP with confirms: write all messages, then wait for all confirmations together.

py-amqp alone waits after each message, writes each one to the socket by itself, and encodes it
from scratch; here, messages of one kind share the encoding of what they have in common.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from struct import pack
from typing import Any, NamedTuple

from amqp import serialization
from amqp.basic_message import Message
from amqp.exceptions import AMQPError, ConnectionForced
from amqp.spec import Basic
from kombu import common

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.call_check import NoSuchMessage
from celery_sqlbeat.publish.transports import UNCERTAIN, MessageTransport, Shape, one_line

PUBLISH = "Bssbb"  # the types of the arguments of basic.publish, in py-amqp's notation

_declare: Any = common.maybe_declare  # kombu leaves it without types
_dumps: Callable[[str, Any], bytes] = serialization.dumps
_METHOD, _HEADER, _BODY = 1, 2, 3  # the types of frames
_FRAME_OVERHEAD = 8  # bytes: type, channel, size and end
_LARGEST_INT = 2147483647
_HEADERS, _ID = "application_headers", "correlation_id"
_PROPERTIES: list[tuple[str, str]] = Message.PROPERTIES
_NAMES = [name for name, _ in _PROPERTIES]
_LONGEST_TTL = 2**32 - 1  # milliseconds; RabbitMQ closes the channel for more
_ENOUGH = 32768  # bytes; the broker reads what there is while the next messages are made
_STOP_SECONDS = 2.0  # for the outstanding confirmations when this beat is told to stop
_STOP_POLL_SECONDS = 0.5  # how soon that is noticed
_CLOSE_SECONDS = 1.0  # the longest wait for the broker's answer to a close


class AmqpTransport(MessageTransport):
    """Declares on one channel and publishes on another: a refused declaration costs one message."""

    reserve = 0.1  # for the confirmations; they usually take a millisecond

    def __init__(self, app: Any, connection: Any, seconds: float) -> None:
        self._amqp = connection.connection
        self._buffer = bytearray()
        self._declaring: Any = None
        self._exchanges = {""}
        self._first_frames: Any = None
        self._tag = 0
        self._lowest = 1
        self._owners: dict[int, str] = {}
        self._failures: dict[str, str] = {}
        with self._amqp.transport.having_timeout(seconds):
            self._channel = connection.channel()
            self._channel.confirm_select()
        self._channel.basic_publish = self._basic_publish
        self._channel.events["basic_ack"].add(self._confirmed)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        super().__init__(connection, app.amqp.Producer(self._channel, auto_declare=False))
        self.producer.maybe_declare = self._maybe_declare
        self._away = ()  # to publish is to write into memory here

    def begin(self, run_id: str, label: str) -> None:
        """Begin the message of this run: what is published from here on belongs to it."""
        super().begin(run_id, label)
        self._first_frames = None

    def shape(self, headers: Mapping[str, Any], content_type: str, content_encoding: str) -> Shape:
        """Encode once what the messages of a kind have in common."""
        return Shape(headers, {}, self._first_frames._replace(static=table(headers)))

    def post(self, shape: Shape, headers: Mapping[str, Any], body: Any) -> None:
        """Publish one more message of a known shape."""
        self._write(shape.wire.frames(headers, self.run_id, body))

    def _basic_publish(
        self, message: Any, exchange: str = "", routing_key: str = "", mandatory: bool = False, *_: Any, **__: Any
    ) -> None:
        properties = message.properties
        if int(properties.get("expiration") or 0) > _LONGEST_TTL:
            del properties["expiration"]  # the worker reads the header all the same
        if exchange not in self._exchanges:
            self._find_exchange(exchange)
        # A declared queue may be deleted since; other exchanges may route to nobody on purpose.
        mandatory = bool(mandatory) or not exchange
        arguments = _dumps(PUBLISH, (0, exchange, routing_key, mandatory, False))
        body = message.body
        if isinstance(body, str):
            body = body.encode(properties.setdefault("content_encoding", "utf-8"))
        template = frame_template(self._channel.channel_id, self._amqp.frame_max, arguments, properties)
        headers = properties.get(_HEADERS) or {}
        self._write(template.frames(headers, properties.get(_ID), body))
        if self._first_frames is None:
            self._first_frames = template

    def _write(self, frames: bytes) -> None:
        self._buffer += frames
        self._tag += 1
        self._owners[self._tag] = self.run_id
        if len(self._buffer) > _ENOUGH:
            self.flush()

    def _maybe_declare(self, entity: Any, retry: bool = False, **_: Any) -> Any:
        with self._declarations() as channel:
            return _declare(entity, channel)

    def _find_exchange(self, name: str) -> None:
        # Publishing to a missing exchange closes the channel, with the confirmations of all others.
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
        frames, self._buffer = self._buffer, bytearray()
        if frames and self.broken is None:
            try:
                with self._in_time():
                    self._amqp.transport.write(bytes(frames))
            except Exception as error:
                self.broken = one_line(error)

    def await_confirms(self) -> dict[str, str]:
        """Wait until each message is confirmed; after a missing one the connection is dropped."""
        self.flush()
        is_stopping = False
        while self._owners and self.broken is None:
            if not is_stopping and environment.stop_is_waiting():
                is_stopping, self.until = True, min(self.until, environment.monotonic() + _STOP_SECONDS)
            try:
                self._amqp.drain_events(timeout=min(self.remaining(), _STOP_POLL_SECONDS))
            except Exception as error:
                if isinstance(error, TimeoutError) and environment.monotonic() < self.until:
                    continue
                self.broken = one_line(error)
                self.refused = _refuses(error)
        failures, self._failures = self._failures, {}
        failures.update(dict.fromkeys(self._owners.values(), f"{UNCERTAIN} ({self.broken})"))
        self._owners.clear()
        return failures

    def _confirmed(self, tag: int, multiple: bool) -> list[str]:
        tags = range(self._lowest, tag + 1) if multiple else (tag,)
        if multiple:
            self._lowest = tag + 1
        return [self._owners.pop(tag) for tag in tags if tag in self._owners]

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for run_id in self._confirmed(tag, multiple):
            self._failures[run_id] = "the broker refused the message"

    def _on_return(self, error: Any, exchange: str, routing_key: str, message: Any) -> None:
        run_id = message.properties.get(_ID, "")
        self._failures[run_id] = f"no queue took the message: {routing_key!r} is not there"
        self.connection.declared_entities.clear()
        self.returned = True

    def probe(self, seconds: float) -> None:
        """Select confirms once more; only the answer matters."""
        self.until = environment.monotonic() + seconds
        with self._in_time():
            self._channel.confirm_select()

    def forget(self) -> None:
        """Close this process's copy of the socket; py-amqp would shut it down for both."""
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
    """Return whether the broker refuses what it was sent, rather than the connection."""
    code = getattr(error, "reply_code", None)
    return isinstance(error, AMQPError) and bool(code) and code != ConnectionForced.code


class FrameTemplate(NamedTuple):
    """The destination and properties of a message, without its headers, id and body."""

    channel_id: int
    longest: int
    """How many bytes one frame carries; a message's headers must fit into one."""
    method: bytes
    before: bytes
    between: bytes
    after: bytes
    """The properties before the headers, between these and the id, and after that."""
    static: bytes = b""
    """The headers that all messages of a kind share."""

    def frames(self, headers: Mapping[str, Any], run_id: str | None, body: bytes) -> bytes:
        """Encode one message. `run_id` is None where the properties have none."""
        own = table(headers)
        encoded = b"" if run_id is None else _dumps("s", [run_id])
        properties = b"".join(
            (
                pack(">HHQ", Basic.CLASS_ID, 0, len(body)),
                self.before,
                pack(">I", len(self.static) + len(own)),
                self.static,
                own,
                self.between,
                encoded,
                self.after,
            )
        )
        if len(properties) > self.longest:  # the broker would close the connection
            raise NoSuchMessage("the headers of the message are too large for the broker")
        parts = [self.method, _frame(_HEADER, self.channel_id, properties)]
        for start in range(0, len(body), self.longest):
            parts.append(_frame(_BODY, self.channel_id, body[start : start + self.longest]))
        return b"".join(parts)


def frame_template(channel_id: int, frame_max: int, arguments: bytes, properties: Mapping[str, Any]) -> FrameTemplate:
    """Encode the arguments of basic.publish, and the properties that do not differ."""
    present = {name for name in _NAMES if properties.get(name) is not None} | {_HEADERS}
    flags = sum(0x8000 >> place for place, name in enumerate(_NAMES) if name in present)
    headers, run_id = _NAMES.index(_HEADERS), _NAMES.index(_ID)
    return FrameTemplate(
        channel_id,
        frame_max - _FRAME_OVERHEAD,
        _frame(_METHOD, channel_id, pack(">HH", *Basic.Publish) + arguments),
        pack(">H", flags) + _values(_PROPERTIES[:headers], properties),
        _values(_PROPERTIES[headers + 1 : run_id], properties),
        _values(_PROPERTIES[run_id + 1 :], properties),
    )


def _frame(kind: int, channel_id: int, payload: bytes) -> bytes:
    return pack(">BHI", kind, channel_id, len(payload)) + payload + b"\xce"


def _values(kinds: list[tuple[str, str]], properties: Mapping[str, Any]) -> bytes:
    present = [(kind, properties[name]) for name, kind in kinds if properties.get(name) is not None]
    return _dumps("".join(kind for kind, _ in present), [value for _, value in present])


def table(values: Mapping[str, Any]) -> bytes:
    """Encode headers as py-amqp does, in half of its time; without their length."""
    encoded: list[bytes] = []
    for name, value in values.items():
        kind = type(value)
        if kind is str:
            text = value.encode("utf-8", "surrogatepass")
            encoded += (_name(name), pack(">cI", b"S", len(text)), text)
        elif kind is dict:
            inner = table(value)
            encoded += (_name(name), pack(">cI", b"F", len(inner)), inner)
        elif kind is int and abs(value) <= _LARGEST_INT:
            encoded += (_name(name), pack(">ci", b"I", value))
        elif kind is float:
            encoded += (_name(name), pack(">cd", b"d", value))
        else:
            encoded.append(_dumps("F", [{name: value}])[4:])
    return b"".join(encoded)


@functools.lru_cache(maxsize=256)  # our own names are few; names inside of headers may be anybody's
def _name(name: str) -> bytes:
    encoded = name.encode("utf-8", "surrogatepass")
    return pack("B", len(encoded)) + encoded
