"""Claims whose pool is full are held back, and say who holds it; all others are sent."""

import secrets
from typing import Any

import pytest

from celery_sqlbeat.beat.full_pools import FullPools
from celery_sqlbeat.errors import DatabaseUnavailable
from celery_sqlbeat.model import Claim
from celery_sqlbeat.model.locks import LockRecord
from celery_sqlbeat.store.keyvalue.memory import memory_store
from celery_sqlbeat.store.records import Guard, Recorded, Release
from tests.support.claims import claim


class Desk:
    """A store that has locks, and notes what is released."""

    def __init__(self) -> None:
        self.store = memory_store(secrets.token_hex(4))
        self.released: dict[str, tuple[str | None, float | None]] = {}
        self.read = 0
        self.is_away = False
        me: Any = self
        self.full_pools = FullPools(me, lambda: 1.0)

    def locks(self, after_key: str, page_size: int) -> list[LockRecord]:
        self.read += 1
        if self.is_away:
            raise DatabaseUnavailable("away")
        return self.store.locks(after_key, page_size)

    def finish(self, releases: list[Release], guard: Guard) -> Recorded:
        assert guard is Guard.UNSTARTED and {end.ending.state for end in releases} == {"scheduled"}
        self.released |= {end.run_id: (end.ending.reason, end.ending.retry_seconds) for end in releases}
        return Recorded(set(self.released), set())

    def hold(self, key: str, holder: str) -> None:
        assert self.store.take_lock(key, secrets.token_hex(8), holder, 60)


def claims(number: int, pool: str | None) -> list[Claim]:
    return [claim()._replace(pool=pool) for _ in range(number)]


@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_as_many_are_sent_as_there_are_free_places(held: int) -> None:
    desk = Desk()
    for number in range(held):
        desk.hold(f"pool:erp:00{number + 1}", f"job-{number} (run x on w)")
    named, plain = claims(4, "erp:3"), claims(2, None)
    sent = desk.full_pools.sift([*named, *plain])
    assert sent == [*named[: 3 - held], *plain]
    assert desk.released.keys() == {one.run_id for one in named[3 - held :]}
    holders = ", ".join(f"job-{number}" for number in range(held)) or ", ".join(one.job_name for one in named[:3])
    assert set(desk.released.values()) == {(f"pool erp is full: {holders}", 1.0)}


def test_thousands_that_wait_do_not_keep_the_beats_busy() -> None:
    desk = Desk()
    desk.full_pools.sift(claims(501, "erp:1"))
    assert {seconds for _, seconds in desk.released.values()} == {10.0}


def test_claims_without_a_pool_ask_for_nothing() -> None:
    desk = Desk()
    desk.full_pools.sift(claims(3, None))
    assert desk.read == 0


def test_all_are_sent_where_the_locks_cannot_be_read() -> None:
    desk = Desk()
    desk.is_away = True
    named = claims(4, "erp:3")
    assert desk.full_pools.sift(named) == named


def test_pools_of_other_names_and_other_locks_do_not_count() -> None:
    desk = Desk()
    for key in ("pool:erp2:001", "pool:er:001", "pool:erp", "stock:1"):
        desk.hold(key, "somebody")
    named = claims(2, "erp:2")
    assert desk.full_pools.sift(named) == named
