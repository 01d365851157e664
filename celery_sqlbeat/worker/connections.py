"""Through which connection to Redis this worker takes messages: a beat tells it so from those that keep no leases."""

from typing import Any


def address_of(consumer: Any) -> str | None:
    """Its end here, as Redis names it to others; None on another broker, and where nobody knows. From any thread."""
    try:
        # kombu lets one connection wait for messages and nothing else, and has no public name for it.
        client = consumer.task_consumer.channel.client
        host, port = client.connection._sock.getsockname()[:2]
    except Exception:  # no Redis, no connection at this moment, or another kombu
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
