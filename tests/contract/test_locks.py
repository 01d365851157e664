"""Locks and leaders in programs: one holder at a time, who is told from the others."""

import threading
from datetime import timedelta

import pytest

from celery_sqlbeat.api.leader import Leader
from celery_sqlbeat.api.locks import Locks
from celery_sqlbeat.errors import FieldError, LeaseLost, LockNotAcquired, SqlbeatError, VersionConflict
from tests.support.world import World


@pytest.fixture
def locks(world: World) -> Locks:
    return Locks(lambda: world.store)


def test_of_many_threads_one_holds_the_lock_and_fences_grow(world: World) -> None:
    inside, seen, errors = [0], list[int](), list[BaseException]()

    def work() -> None:
        own = Locks(lambda: world.store)
        try:
            for _ in range(5):
                with own.lock("stock", wait=60) as lock:
                    inside[0] += 1
                    assert inside[0] == 1
                    seen.append(lock.fence)
                    inside[0] -= 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert seen == sorted(set(seen)) and len(seen) == 20


def test_a_lock_is_refused_inside_of_itself(locks: Locks) -> None:
    with locks.lock("stock"), pytest.raises(SqlbeatError, match=r"inside of itself.*test_locks.py, line \d+"):
        locks.lock("stock").acquire()
    with locks.lock("stock") as again:
        assert again.is_held


def test_a_lock_that_is_taken_away_is_lost(world: World, locks: Locks) -> None:
    with locks.lock("stock") as lock:
        with pytest.raises(LockNotAcquired, match=r"'stock' is held by .* pid \d+"):
            Locks(lambda: world.store).lock("stock").acquire()
        with pytest.raises(LockNotAcquired):
            locks.free("stock")
        with pytest.raises(VersionConflict, match=f"'stock' is no longer at version {lock.fence + 1}"):
            locks.free("stock", force=True, version=lock.fence + 1)
        assert lock.is_held
        assert locks.free("stock", force=True, version=lock.fence) is not None
        with pytest.raises(LeaseLost):
            lock.extend()
        assert lock.lost
    assert lock.release() is False
    assert locks.free("stock") is None


def test_a_held_lock_outlives_its_first_lease(world: World, locks: Locks) -> None:
    with locks.lock("stock", expiry=0.5) as lock:
        extended = threading.Event()
        begun = lock.valid_until
        while lock.valid_until == begun:
            assert not extended.wait(0.02)
            assert not lock.lost
        assert [record.key for record in world.store.locks()] == ["stock"]


@pytest.mark.parametrize("key", ["", "x" * 256, "a\0b", 7, None])
def test_a_bad_key_is_refused(locks: Locks, key: object) -> None:
    with pytest.raises(FieldError, match="key"):
        locks.lock(key)  # type: ignore[arg-type]


@pytest.mark.parametrize("expiry", [0, -1, float("nan"), "30", True, timedelta(days=1000)])
def test_a_bad_expiry_is_refused(locks: Locks, expiry: object) -> None:
    with pytest.raises(FieldError, match="expiry"):
        locks.lock("stock", expiry)  # type: ignore[arg-type]


def test_one_candidate_leads_and_another_follows_it(world: World) -> None:
    told, won = list[str](), threading.Event()
    own = Locks(lambda: world.store)
    with Leader(own, "export", 30, lambda: told.append("won"), lambda: told.append("lost")) as first:
        while not first.is_leader:
            assert not won.wait(0.02)
        second = Leader(Locks(lambda: world.store), "export", 0.5, won.set)
        second.start()
        first.stop()
        assert won.wait(30)
        assert second.is_leader
        assert second.fence > 1
        second.stop()
    assert told == ["won", "lost"]
    assert [leader.is_leader for leader in (first, second)] == [False, False]
