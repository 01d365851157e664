"""Apps to measure with, each on a queue of its own that is deleted afterwards."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

REDIS = os.environ.get("SQLBEAT_TEST_REDIS", "redis://127.0.0.1:6379/0")
RABBITMQ = os.environ.get("SQLBEAT_TEST_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672//")
BROKERS = {"Redis": REDIS, "RabbitMQ": RABBITMQ}


@contextmanager
def bench_app(url: str, conf: dict[str, Any] | None = None, **transport_options: Any) -> Iterator[Celery]:
    """Yield an app whose default queue nobody else uses."""
    queue = f"sqlbeat_bench_{secrets.token_hex(4)}"
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(task_default_queue=queue, broker_transport_options=transport_options, **(conf or {}))
    try:
        yield app
    finally:
        with _channel(app) as channel:
            channel.queue_delete(queue)
            if url.startswith("amqp"):
                channel.exchange_delete(queue)
            else:
                # This connection has declared nothing, so kombu left the queue itself.
                keys = (queue, f"_kombu.binding.{queue}", f"_kombu.binding_permanent.{queue}")
                channel.client.delete(*keys)
        app.close()


@contextmanager
def _channel(app: Celery) -> Iterator[Any]:
    """Open a channel on a connection of its own; its type depends on the broker."""
    with app.connection_for_write() as connection:
        yield connection.default_channel


def empty(app: Celery) -> None:
    """Throw away what lies in the app's queue."""
    with _channel(app) as channel:
        channel.queue_purge(app.conf.task_default_queue)


@contextmanager
def settled(app: Celery) -> Iterator[Callable[[], None]]:
    """Yield a function that waits until the broker has handled all unconfirmed messages.

    Otherwise it would do so during the next turn, at the cost of the other side.
    """
    with _channel(app) as channel:
        yield lambda: channel.queue_declare(app.conf.task_default_queue, passive=True)


def in_words(error: Exception) -> str:
    """Return an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
