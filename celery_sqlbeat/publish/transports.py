"""Hand messages to a broker and learn which it confirmed: one transport for each connection."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

from celery_sqlbeat import environment

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

    Each command has an answer of its own; the connection's socket timeout bounds the wait.
    """

    def __init__(self, connection: Any, producer: Any) -> None:
        super().__init__(connection, producer)
        self.reserve = connection.transport_options["socket_timeout"]
        self._client = producer.channel.client
        self._pipelined = _PipelinedClient(self, self._client)
        self._failures: dict[str, str] = {}
        producer.channel.conn_or_acquire = self._conn_or_acquire

    def _conn_or_acquire(self, client: Any = None) -> Any:
        return self._pipelined if client is None else nullcontext(client)

    def flush(self) -> None:
        """Execute the pipeline. Where its answer is lost, each message may or may not be queued."""
        owners, self._pipelined.owners = self._pipelined.owners, []
        if not owners:
            return
        if environment.monotonic() >= self.until:
            self._pipelined.gathered.reset()
            self._failures.update(dict.fromkeys(owners, TIME_UP))
            return
        try:
            answers = self._pipelined.gathered.execute(raise_on_error=False)
        except Exception as error:
            self.broken = one_line(error)
            self._failures.update(dict.fromkeys(owners, f"{UNCERTAIN} ({self.broken})"))
            return
        for run_id, answer in zip(owners, answers, strict=True):
            if isinstance(answer, Exception):
                self._failures[run_id] = one_line(answer)

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
        self.owners: list[str] = []
        self.gathered = client.pipeline(transaction=False)
        self._transport, self._client = transport, client

    def __enter__(self) -> "_PipelinedClient":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def lpush(self, key: Any, value: Any) -> None:
        self.gathered.lpush(key, value)
        self.owners.append(self._transport.run_id)

    def publish(self, topic: Any, payload: Any) -> None:
        self.gathered.publish(topic, payload)
        self.owners.append(self._transport.run_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)
