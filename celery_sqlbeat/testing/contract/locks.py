"""Named locks: one holder at a time, fences that never fall, leases that end."""

from celery_sqlbeat.model import PauseJob
from celery_sqlbeat.model.locks import HeldLock, LockRecord
from celery_sqlbeat.store.purges import OldNodes
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import World

ONE, TWO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
DAY = 86400.0  # seconds


def take(world: World, token: str = ONE, key: str = "stock", seconds: float = 30.0) -> LockRecord:
    """Ask for a lock; return who has it."""
    record = world.store.take_lock(key, token, f"holder {token[0]}", seconds)
    assert record is not None
    return record


def held(record: LockRecord, seconds: float = 30.0) -> HeldLock:
    """Return what its holder says of a lock."""
    return HeldLock(record.key, record.token, record.fence, seconds)


class LockContract(Contract):
    """Rules of `take_lock`, `extend_locks`, `release_locks` and `locks`."""

    def test_a_free_lock_is_taken_and_its_holder_is_named_to_others(self, world: World) -> None:
        mine = take(world)
        assert (mine.token, mine.fence) == (ONE, 1)
        theirs = take(world, TWO)
        assert (theirs.token, theirs.holder, theirs.fence) == (ONE, "holder 1", 1)
        assert [record.key for record in world.store.locks()] == ["stock"]

    def test_the_same_token_gets_the_same_answer(self, world: World) -> None:
        assert take(world).fence == take(world).fence == 1

    def test_keys_are_told_apart_by_case_and_namespace(self, world: World) -> None:
        assert take(world, ONE, "a").token == ONE
        assert take(world, TWO, "A").token == TWO
        assert [record.key for record in world.store.locks()] == ["A", "a"]
        assert [record.key for record in world.store.locks(page_size=1)] == ["A"]
        assert [record.key for record in world.store.locks("A")] == ["a"]

    def test_a_released_lock_goes_on_with_the_next_fence(self, world: World) -> None:
        first = take(world)
        assert world.store.release_locks([held(first)]) == {ONE}
        assert world.store.release_locks([held(first)]) == set()
        assert world.store.locks() == []
        assert take(world, TWO).fence == 2

    def test_a_lease_that_has_ended_is_taken_over_and_cannot_be_extended(self, world: World) -> None:
        first = take(world)
        world.later(29.0)
        assert world.store.extend_locks([held(first)]) == {ONE}
        world.later(29.0)
        assert take(world, TWO).token == ONE
        world.later(2.0)
        assert world.store.extend_locks([held(first)]) == set()
        second = take(world, TWO)
        assert (second.token, second.fence) == (TWO, 2)
        assert world.store.release_locks([held(first)]) == set()
        assert world.store.extend_locks([held(second)]) == {TWO}

    def test_many_locks_are_extended_and_released_by_one_call(self, world: World) -> None:
        records = [take(world, ONE[:-1] + str(at), f"key {at}") for at in range(5)]
        world.store.release_locks([held(records[0])])
        rows = [held(record) for record in records]
        assert world.store.extend_locks(rows) == {record.token for record in records[1:]}
        assert world.store.release_locks(rows) == {record.token for record in records[1:]}

    def test_no_fence_falls_when_old_locks_are_forgotten(self, world: World) -> None:
        world.store.write_jobs([PauseJob("any", "none")])  # where nothing was ever changed, nothing is forgotten
        for token in (ONE, TWO):
            world.store.release_locks([held(take(world, token))])
        kept = take(world, ONE, "kept", seconds=30 * DAY)
        world.later(8 * DAY)
        for _ in range(3):
            world.store.purge(OldNodes(7 * DAY))
        assert world.store.extend_locks([held(kept)]) == {ONE}
        assert take(world, ONE).fence > 2

    def test_after_a_recovery_no_fence_comes_again(self, world: World) -> None:
        before = take(world)
        world.store.recover()
        assert world.store.extend_locks([held(before)]) == set()
        world.later(31.0)
        assert take(world, TWO).fence > 1_000_000_000
        assert take(world, TWO, "new").fence > 1_000_000_000
