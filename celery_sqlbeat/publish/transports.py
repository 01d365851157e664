"""Hand messages to a broker and learn which it confirmed: one transport for each connection."""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

from kombu.utils import json as kombu_json

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.call_check import is_unpatched

TIME_UP = "no time was left to publish it"
UNCERTAIN = "the broker did not confirm the message"


class First(NamedTuple):
    """What Celery gave to `Producer.publish` for the message of a claim."""

    body: Any
    headers: Mapping[str, Any]
    options: Mapping[str, Any]


class Shape(NamedTuple):
    """What the messages of one kind have in common, once the first of them is published."""

    headers: Mapping[str, Any]
    """Those that are the same in every message."""
    options: Mapping[str, Any]
    wire: Any
    """The same in the transport's own form, if it has one."""


Stamp = Callable[[dict[str, Any]], None]


class MessageTransport:
    """Hands each message to kombu at once; what kombu takes without an error counts as confirmed.

    Celery's own code publishes through `producer`; messages made from a template are posted.
    """

    reserve = 0.0  # seconds before the deadline in which nothing new is begun

    def __init__(self, connection: Any, producer: Any) -> None:
        self.connection, self.producer = connection, producer
        self.until = 0.0
        self.answered_at = environment.monotonic()
        self.broken: str | None = None
        self.refused = False  # whether the broker broke off because of one of the messages
        self.returned = False  # whether a declared queue turned out to be gone
        self.first: Any = None  # what Celery gave for the run's message, a First
        self.run_id = self._label = ""
        self.stamp: Stamp | None = None  # may change the headers of the run's message
        self.has_reached_broker = False  # whether kombu turned to the broker with the run's message
        self.connection_errors = self._away = tuple(connection.connection_errors)
        self._publish = producer.publish
        producer.publish = self.publish
        # kombu serializes in `publish` and sends in `_publish`; no public hook lies between.
        self._publish_encoded = producer._publish
        producer._publish = self._reach_broker

    def begin(self, run_id: str, label: str) -> None:
        """Begin the message of this run: what is published from here on belongs to it."""
        self.run_id, self._label, self.first, self.has_reached_broker = run_id, label, None, False
        self.stamp = None

    def publish(self, body: Any, **options: Any) -> Any:
        """Stand in for `Producer.publish`, without retries: the slot is given back instead."""
        headers = options.get("headers") or {}
        if self.first is None:
            self.first = First(body, dict(headers), options)
            if self.stamp is not None:
                self.stamp(headers)
            if headers.get("id") == self.run_id:
                headers["argsrepr"] = f"{headers.get('argsrepr')}{self._label}"
        return self._put(body, **{**options, "retry": False})

    def _reach_broker(self, *args: Any, **kwargs: Any) -> Any:
        self.has_reached_broker = True
        return self._publish_encoded(*args, **kwargs)

    def shape(self, headers: Mapping[str, Any], content_type: str, content_encoding: str) -> Shape:
        """Keep what the first message has in common with others, `headers` among it."""
        left_out = {"headers", "declare", "retry", "retry_policy", "serializer", "correlation_id"}
        options = {key: value for key, value in self.first.options.items() if key not in left_out}
        options.update(content_type=content_type, content_encoding=content_encoding)
        return Shape(headers, options, None)

    def post(self, shape: Shape, headers: Mapping[str, Any], body: Any) -> None:
        """Publish one more message of a known shape, with its own headers and its encoded body."""
        self._put(body, headers={**shape.headers, **headers}, correlation_id=self.run_id, **shape.options)

    def _put(self, body: Any, **options: Any) -> Any:
        try:
            return self._publish(body, **options)
        except self._away as error:
            if self.has_reached_broker:  # some transports count KeyError among these
                self.broken = one_line(error)
            raise

    def flush(self) -> None:
        """Send what has gathered."""

    def await_confirms(self) -> dict[str, str]:
        """Wait for the outstanding confirmations; returns the runs without one, with the reason."""
        return {}

    def probe(self, seconds: float) -> None:
        """Raise unless the broker answers."""

    def forget(self) -> None:
        """Drop a connection that the parent process opened and still uses."""

    def close(self) -> None:
        """Close the connection, or drop it where it is broken."""
        if self.broken:
            self.connection.collect()
        else:
            self.connection.release()

    def remaining(self) -> float:
        """Return the seconds until the deadline; never zero, by which a socket does not block."""
        return max(self.until - environment.monotonic(), 0.001)


def one_line(error: BaseException) -> str:
    """Show an error as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class RedisTransport(MessageTransport):
    """Gathers the commands that put messages into queues, and sends them in one pipeline.

    What goes to one queue is one command, with an answer of its own; the connection's socket
    timeout bounds the wait.
    """

    def __init__(self, connection: Any, producer: Any) -> None:
        super().__init__(connection, producer)
        self.reserve = connection.transport_options["socket_timeout"]
        self._client = producer.channel.client
        self._pipelined = _PipelinedClient(self, self._client)
        self._failures: dict[str, str] = {}
        self._is_stock = is_unpatched(producer.channel, "prepare_message", "basic_publish", "_put")
        producer.channel.conn_or_acquire = self._conn_or_acquire

    def _conn_or_acquire(self, client: Any = None) -> Any:
        return self._pipelined if client is None else nullcontext(client)

    def begin(self, run_id: str, label: str) -> None:
        """Begin the message of this run: what is published from here on belongs to it."""
        super().begin(run_id, label)
        self._pipelined.pushed.clear()

    def shape(self, headers: Mapping[str, Any], content_type: str, content_encoding: str) -> Shape:
        """Keep the text of the first message, but for what differs, if one push was all of it."""
        shape = super().shape(headers, content_type, content_encoding)
        if not self._is_stock or len(self._pipelined.pushed) != 1:
            return shape
        content = {"content-encoding": content_encoding, "content-type": content_type}
        return shape._replace(wire=_text_template(*self._pipelined.pushed[0], self.run_id, content, headers))

    def post(self, shape: Shape, headers: Mapping[str, Any], body: Any) -> None:
        """Push one more message of a known shape."""
        if shape.wire is None:
            super().post(shape, headers, body)
        else:
            self._pipelined.lpush(shape.wire.key, shape.wire.text(headers, self.run_id, body))

    def flush(self) -> None:
        """Execute the pipeline. Where its answer is lost, each message may or may not be queued."""
        commands, owners = self._pipelined.take()
        if not owners:
            return
        if environment.monotonic() >= self.until:
            commands.reset()
            self._fail(owners, TIME_UP)
            return
        try:
            answers = commands.execute(raise_on_error=False)
        except Exception as error:
            self.broken = one_line(error)
            self._fail(owners, f"{UNCERTAIN} ({self.broken})")
            return
        for run_ids, answer in zip(owners, answers, strict=True):
            if isinstance(answer, Exception):
                self._fail([run_ids], one_line(answer))

    def _fail(self, owners: list[list[str]], reason: str) -> None:
        self._failures.update((run_id, reason) for run_ids in owners for run_id in run_ids)

    def await_confirms(self) -> dict[str, str]:
        """Execute the pipeline; returns the runs whose commands failed, with the reason."""
        self.flush()
        failures, self._failures = self._failures, {}
        return failures

    def probe(self, seconds: float) -> None:
        """Ask for an answer; the socket timeout bounds the wait."""
        self._client.ping()


class _PipelinedClient:
    """A Redis client that pipelines writes to queues; any other command goes out at once."""

    def __init__(self, transport: RedisTransport, client: Any) -> None:
        self.pushed: list[tuple[Any, Any]] = []
        """The keys and values of the present message."""
        self._pushes: dict[Any, tuple[list[Any], list[str]]] = {}
        """By key, the values and the runs whose messages they are."""
        self._owners: list[list[str]] = []
        self._commands = client.pipeline(transaction=False)
        self._transport, self._client = transport, client

    def __enter__(self) -> "_PipelinedClient":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def lpush(self, key: Any, value: Any) -> None:
        values, run_ids = self._pushes.setdefault(key, ([], []))
        values.append(value)
        run_ids.append(self._transport.run_id)
        self.pushed.append((key, value))

    def publish(self, topic: Any, payload: Any) -> None:
        self._commands.publish(topic, payload)
        self._owners.append([self._transport.run_id])

    def take(self) -> tuple[Any, list[list[str]]]:
        """Return the pipeline, and the runs that each of its commands serves."""
        pushes, self._pushes = self._pushes, {}
        owners, self._owners = self._owners, []
        for key, (values, run_ids) in pushes.items():
            self._commands.lpush(key, *values)
            owners.append(run_ids)
        return self._commands, owners

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class _TextTemplate(NamedTuple):
    """A message as kombu writes it into a list of Redis, without its own headers, id and body."""

    key: Any
    between: str
    """From the end of the body to the message's own headers."""
    after: str
    """From there to its id."""

    def text(self, headers: Mapping[str, Any], run_id: str, body: bytes) -> str:
        """Write one message."""
        own = {"correlation_id": run_id, "delivery_tag": environment.THIS_MACHINE.ids.random_id()}
        encoded = b64encode(body).decode()
        return f'{{"body": "{encoded}{self.between}{json.dumps(headers)[1:]}{self.after}{json.dumps(own)[1:]}}}'


def _text_template(
    key: Any, value: Any, run_id: str, content: Mapping[str, str], headers: Mapping[str, Any]
) -> _TextTemplate | None:
    """Make a template of what was pushed for a first message; None where it is not as expected."""
    first = json.loads(value)
    if not isinstance(first, dict) or first.keys() != {"body", "headers", "properties", *content}:
        return None
    properties = dict(first["properties"])
    if properties.pop("correlation_id", None) != run_id or not properties.pop("delivery_tag", None):
        return None
    if properties.get("body_encoding") != "base64":
        return None
    static = kombu_json.dumps(headers)[:-1]
    return _TextTemplate(
        key,
        f'", {json.dumps(content)[1:-1]}, "headers": {static}, ',
        f', "properties": {json.dumps(properties)[:-1]}, ',
    )
