"""How messages reach the broker, and which of them it confirmed. One outlet lives as long as its connection.

Celery's own code publishes through `producer`; what was prepared once and goes out many times is posted.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

TIME_UP = "no time was left to publish it"
UNCERTAIN = "the broker did not confirm the message"


class First(NamedTuple):
    """What Celery gave to `Producer.publish` for the message of a claim."""

    body: Any
    headers: Mapping[str, Any]
    options: Mapping[str, Any]


class Shape(NamedTuple):
    """What all messages of one kind have in common, once the first of them is published."""

    headers: Mapping[str, Any]
    """Without those that differ from message to message."""
    options: Mapping[str, Any]
    wire: Any
    """The same as the transport wants it, where that can be prepared, too."""


Stamp = Callable[[dict[str, Any]], None]


class Outlet:
    """Hands each message to the transport at once; what the transport took without an error counts as confirmed."""

    reserve = 0.0  # seconds before the deadline, from which on nothing new is begun

    def __init__(self, connection: Any, producer: Any) -> None:
        self.connection, self.producer = connection, producer
        self.until = 0.0
        self.broken: str | None = None
        self.refused = False  # whether the broker broke it off because of one of the messages
        self.returned = False  # whether a queue that was declared turned out to be gone
        self.first: Any = None  # what Celery gave for the run's message, a First
        self.run_id = self._label = ""
        self.stamp: Stamp | None = None  # is given the headers of the run's message, and may change them
        self.has_turned = False  # whether the run's message got as far as the broker, whatever became of it there
        self.connection_errors = self._away = tuple(connection.connection_errors)
        self._publish = producer.publish
        producer.publish = self.publish
        # kombu serializes in `publish` and turns to the broker in `_publish`; nothing public lies between the two.
        self._turn = producer._publish
        producer._publish = self._turning

    def begin(self, run_id: str, label: str) -> None:
        """What is published from here on belongs to this run."""
        self.run_id, self._label, self.first, self.has_turned = run_id, label, None, False
        self.stamp = None

    def publish(self, body: Any, **options: Any) -> Any:
        """Stand in for `Producer.publish`. It does not try again by itself: the slot is given back instead."""
        headers = options.get("headers") or {}
        if self.first is None:
            self.first = First(body, dict(headers), options)
            if self.stamp is not None:
                self.stamp(headers)
            if headers.get("id") == self.run_id:
                headers["argsrepr"] = f"{headers.get('argsrepr')}{self._label}"
        return self._put(body, **{**options, "retry": False})

    def _turning(self, *args: Any, **kwargs: Any) -> Any:
        self.has_turned = True
        return self._turn(*args, **kwargs)

    def shape(self, headers: Mapping[str, Any], content_type: str, content_encoding: str) -> Shape:
        """Keep what the first message has in common with others; `headers` are those that do not differ."""
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
            if self.has_turned:  # for some transports these are as common as a KeyError
                self.broken = one_line(error)
            raise

    def flush(self) -> None:
        """Let go of what has gathered."""

    def settle(self) -> dict[str, str]:
        """Wait for the confirmations that are outstanding; returns the runs that have none, with the reason."""
        return {}

    def probe(self, seconds: float) -> None:
        """Raise unless the broker answers."""

    def forget(self) -> None:
        """Let go of a connection that the parent process opened and still uses."""

    def close(self) -> None:
        """Close the connection, or drop it where it is broken."""
        if self.broken:
            self.connection.collect()
        else:
            self.connection.release()

    def remaining(self) -> float:
        """So many seconds are left; never zero, which would mean not to wait at all."""
        return max(self.until - time.monotonic(), 0.001)


def one_line(error: BaseException) -> str:
    """What went wrong, as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
