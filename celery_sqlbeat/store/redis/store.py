"""Open a store on Redis."""

from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.store.faults import Breaker
from celery_sqlbeat.store.keyvalue.entries import entries
from celery_sqlbeat.store.keyvalue.store import KeyValueStore
from celery_sqlbeat.store.redis.place import RedisPlace
from celery_sqlbeat.store.redis.remarks import remarks


def open_redis(settings: Settings) -> KeyValueStore:
    """Open the store of these settings; it connects at the first verb."""
    place = RedisPlace(
        settings.database_url,
        settings.namespace,
        entries,
        statement_timeout=settings.statement_timeout,
        breaker=Breaker(longest=settings.heartbeat_interval / 2),
        replicas=settings.redis_replicas,
    )
    return KeyValueStore(place, settings.namespace, lambda: remarks(place.ask, settings.redis_replicas))
