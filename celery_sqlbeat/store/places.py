"""Take a place of a pool: the first of its locks that is free."""

from collections.abc import Callable

from celery_sqlbeat import environment
from celery_sqlbeat.config.pools import Pool, in_turn
from celery_sqlbeat.model.locks import HeldLock, LockRecord
from celery_sqlbeat.store.protocol import Store


def places_held(store: Store, pool: Pool) -> dict[str, LockRecord]:
    """Return which places of a pool somebody holds, by key; one may be missing."""
    wanted = set(pool.keys)
    return {lock.key: lock for lock in store.locks(pool.before, pool.places) if lock.key in wanted}


def take_place(
    store: Store,
    pool: Pool,
    token: str,
    holder: str,
    lease_seconds: float,
    rnd: Callable[[], float] = environment.chance,
) -> HeldLock | list[str]:
    """Take a place of a pool that is free; else return who holds them.

    What was read is only where to begin: each place is asked for before the pool is called full.
    """
    held = places_held(store, pool)
    holders: dict[str, str] = {}
    for key in in_turn(pool.keys, held, rnd):
        lock = store.take_lock(key, token, holder, lease_seconds)
        if lock is None:
            lock = held.get(key)  # it was freed meanwhile, and may be taken again
        elif lock.token == token:
            return HeldLock(key, token, lock.fence, lease_seconds)
        if lock is not None:
            holders[key] = lock.holder
    return [holders[key] for key in sorted(holders)]
