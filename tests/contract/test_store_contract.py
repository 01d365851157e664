"""Every adapter here keeps the rules of the contract that judges the stores of others."""

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
import redis
from cryptography.fernet import Fernet

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.config.payload_key import Keyring
from celery_sqlbeat.store.keyvalue.entries import entries
from celery_sqlbeat.store.keyvalue.memory import memory_store
from celery_sqlbeat.store.keyvalue.store import KeyValueStore
from celery_sqlbeat.store.keyvalue.tables import micros
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.redis.place import RedisPlace
from celery_sqlbeat.store.sealed import sealed_store
from celery_sqlbeat.testing import StoreContract
from celery_sqlbeat.testing.clock import SetClock
from celery_sqlbeat.testing.contract.jobs import JobContract
from celery_sqlbeat.testing.contract.nodes import NodeContract
from celery_sqlbeat.testing.namespace import MakeStore
from tests.contract.conftest import Place
from tests.servers import server


class Memory:
    """One store in the memory of this process, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now: datetime | None = None

    def _clock(self) -> datetime:
        return self.now or datetime.now(timezone.utc)

    def set_clock(self, instant: datetime) -> None:
        self.now = instant

    def store(self, namespace: str) -> Store:
        return memory_store(f"contract-{id(self)}", namespace, self._clock)


class TestMemory(StoreContract):
    @pytest.fixture
    def memory(self) -> Memory:
        return Memory()

    @pytest.fixture
    def make_store(self, memory: Memory) -> MakeStore:
        return memory.store

    @pytest.fixture
    def set_clock(self, memory: Memory) -> SetClock:
        return memory.set_clock


class TestSealed(StoreContract):
    """Whoever uses a store that seals arguments notices nothing of it."""

    @pytest.fixture
    def memory(self) -> Memory:
        return Memory()

    @pytest.fixture
    def make_store(self, memory: Memory) -> MakeStore:
        keys = Keyring([Fernet.generate_key().decode()])
        return lambda namespace: sealed_store(memory.store(namespace), keys)

    @pytest.fixture
    def set_clock(self, memory: Memory) -> SetClock:
        return memory.set_clock


class TestSql(StoreContract):
    @pytest.fixture
    def make_store(self, place: Place) -> MakeStore:
        place.sql("UPDATE StoreInfo SET Epoch = 0 WHERE Epoch > 0", [])  # it holds for every namespace
        return place.store

    @pytest.fixture
    def set_clock(self, place: Place) -> SetClock:
        return place.set_clock


class TestWithoutSettableClock(JobContract, NodeContract):
    """Only rules that no slow machine disturbs: the others really wait there."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        return Memory().store


class TestRedis(StoreContract):
    @pytest.fixture
    def time(self) -> list[datetime]:
        """Return the one clock of a test's stores."""
        return [datetime.now(timezone.utc)]

    @pytest.fixture
    def make_store(self, time: list[datetime]) -> Iterator[MakeStore]:
        url, made = server("redis"), set[str]()

        def make(namespace: str) -> Store:
            place = RedisPlace(database_url(url), namespace, entries, clock=lambda _: micros(time[0]))
            store = KeyValueStore(place, namespace)
            made.add(place.prefix)
            store.migrate()
            return store

        yield make
        with redis.Redis.from_url(url) as client:
            for prefix in made:
                if keys := list(client.scan_iter(f"{prefix}*", count=10_000)):
                    client.delete(*keys)

    @pytest.fixture
    def set_clock(self, time: list[datetime]) -> SetClock:
        return lambda instant: time.__setitem__(0, instant)
