"""A channel on the broker that is a folder, in short words."""

from pathlib import Path
from typing import Any

import kombu.connection
import kombu.entity

from celery_sqlbeat.brokers import folder_url

Connection: Any = kombu.connection.Connection  # kombu leaves them without types
Exchange: Any = kombu.entity.Exchange
Queue: Any = kombu.entity.Queue


class Spool:
    """One connection with one channel."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.connection = Connection(folder_url(root))
        self.channel = self.connection.default_channel

    def declare(self, queue: str = "celery", exchange: Any = None, key: str = "", temporary: bool = False) -> Any:
        """Declare a queue."""
        made = Queue(queue, exchange, routing_key=key or queue, auto_delete=temporary)(self.channel)
        made.declare()
        return made

    def put(self, body: Any, queue: str = "celery", priority: int = 0) -> None:
        """Send a message to a queue."""
        self.connection.Producer().publish(body, exchange="", routing_key=queue, priority=priority)

    def send(self, exchange: str, body: Any) -> None:
        """Send a message to an exchange."""
        self.connection.Producer().publish(body, exchange=exchange, routing_key="")

    def take(self, queue: str = "celery") -> Any:
        """Take a message, or None."""
        return self.channel.basic_get(queue)

    def body(self, queue: str = "celery") -> Any:
        """Take a message and return what it says, or None."""
        message = self.take(queue)
        return message and message.payload

    def size(self, queue: str = "celery") -> int:
        """How many messages wait."""
        return int(self.channel.queue_declare(queue, passive=True).message_count)

    def close(self) -> None:
        """Close the connection."""
        self.connection.release()
