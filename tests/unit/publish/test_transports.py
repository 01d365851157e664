"""What kombu asks of the Redis client of a transport: only writes to queues wait in a pipeline."""

from typing import Any

import redis

from celery_sqlbeat.publish.transports import _PipelinedClient


class Client:
    """Stands in for a client of Redis."""

    def pipeline(self, **_: Any) -> "Client":
        return Client()


def test_only_writes_to_queues_are_held_back_from_redis() -> None:
    transport: Any = None
    client = _PipelinedClient(transport, Client())
    own = {name for name in (*vars(client), *vars(_PipelinedClient)) if not name.startswith("_")}
    assert own & set(dir(redis.Redis)) == {"lpush", "publish"}
