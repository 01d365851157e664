"""Who consumes a queue, as far as the broker and the workers themselves can say. Blocks for seconds: for a thread."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import amqp

from celery_sqlbeat.roster import Answer, call_the_roll

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0
_OUR_NAME = "sqlbeat-look"  # of connections to Redis that only ask, where kombu can give them one


class Client(NamedTuple):
    """A connection to Redis that takes messages from some queue, or did as the last thing."""

    address: str
    is_waiting: bool
    """Whether it waits for a message now; who does not may be busy with one."""
    idle_seconds: float
    """Since its last command or answer."""


class Look(NamedTuple):
    """What was found out about one queue."""

    counted_at: float
    """By the monotonic clock."""
    roll: tuple[Answer, ...] | None
    """The workers that answered; None where nobody could be asked."""
    waiting: int | None = None
    """How many messages wait in the queue; None where the broker does not say."""
    consumers: int | None = None
    """How many consumers it has, by the broker's own count; None where the broker has none."""
    clients: tuple[Client, ...] | None = None
    """Where the broker counts no consumers of a queue, but shows who takes messages from any."""

    @property
    def is_backed_up(self) -> bool:
        """Whether messages wait for those that are there to take them."""
        return bool(self.waiting) and bool(self.consumers or self.clients)

    @property
    def is_counted(self) -> bool:
        """Whether the broker leaves nobody out."""
        return self.consumers is not None or self.clients is not None


def look_at(
    app: Any, queues: Iterable[str], seconds: float, clock: Callable[[], float] = time.monotonic
) -> Mapping[str, Look]:
    """Ask all workers, so many seconds for each question, and then the broker. Raises what the transport raises."""
    with _connection(app) as connection:
        roll = _roll(app, seconds, connection)
    with _connection(app) as connection:  # another one: on Redis who has asked looks like a worker
        return {queue: _count(connection, queue, Look(clock(), roll)) for queue in queues}


@contextmanager
def _connection(app: Any) -> Iterator[Any]:
    connection = app.connection_for_read(heartbeat=0)
    if connection.get_transport_cls().driver_type == "redis":
        connection.transport_options = {**connection.transport_options, "client_name": _OUR_NAME}
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=_CONNECT_SECONDS)
        yield connection
    finally:
        connection.release()


def _roll(app: Any, seconds: float, connection: Any) -> tuple[Answer, ...] | None:
    try:
        return tuple(call_the_roll(app, seconds, connection))
    except Exception as error:  # not every broker can ask
        logger.info("the workers cannot be asked what they consume: %s", error)
        return None


def _count(connection: Any, queue: str, look: Look) -> Look:
    try:
        if isinstance(connection.connection, amqp.Connection):
            channel = connection.channel()  # the broker closes it where there is no such queue
            _, waiting, consumers = channel.queue_declare(queue=queue, passive=True)
            channel.close()
            return look._replace(waiting=waiting, consumers=consumers)
        if connection.transport.driver_type == "redis":
            channel = connection.default_channel
            waiting = channel.queue_declare(queue=queue).message_count
            return look._replace(waiting=waiting, clients=_clients(channel))
    except Exception as error:  # a queue that is not there, a command that is not allowed
        logger.info("the broker does not say who consumes queue %s: %s", queue, error)
    return look


def _clients(channel: Any) -> tuple[Client, ...]:
    client = channel.client
    database = str(client.connection_pool.connection_kwargs.get("db") or 0)
    return tuple(
        Client(str(row["addr"]), "b" in str(row.get("flags", "")), float(row.get("idle", 0)))
        for row in client.client_list()
        if str(row.get("cmd", "")).lower() == "brpop"
        and str(row.get("db")) == database
        and row.get("name") != _OUR_NAME
    )
