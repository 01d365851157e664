"""Take, extend and release named locks: leases of their own, with fences that never fall."""

from collections.abc import Sequence
from typing import NamedTuple

from celery_sqlbeat.model.locks import HeldLock, LockRecord
from celery_sqlbeat.store.keyvalue.reading import read_rows
from celery_sqlbeat.store.keyvalue.rows import Key, Place, Row, Scan
from celery_sqlbeat.store.keyvalue.tables import LOCK, LOCKS, STORE, after, first_fence, instant, record_of
from celery_sqlbeat.store.keyvalue.units import View, carry_out, sure


class _Request(NamedTuple):
    key: str
    token: str
    holder: str
    lease_seconds: float


class LockRegister:
    """What a store is asked about locks."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def take_lock(self, key: str, token: str, holder: str, lease_seconds: float) -> LockRecord | None:
        """Take a lock that is free, and return who holds it now."""
        return sure(carry_out(self._place, [_Request(key, token, holder, lease_seconds)], _of_request, _take))[0]

    def extend_locks(self, held: Sequence[HeldLock]) -> set[str]:
        """Extend the leases of locks; return the tokens of those that are still held."""
        kept = sure(carry_out(self._place, held, _of_lock, _extend))
        return {lock.token for lock, is_kept in zip(held, kept, strict=True) if is_kept}

    def release_locks(self, held: Sequence[HeldLock]) -> set[str]:
        """Free locks; return the tokens of those that were still held."""
        freed = sure(carry_out(self._place, held, _of_lock, _release))
        return {lock.token for lock, is_freed in zip(held, freed, strict=True) if is_freed}

    def locks(self, after_key: str = "", page_size: int = 500) -> list[LockRecord]:
        """Return a page of the locks that somebody holds, by key."""
        held: list[LockRecord] = []
        while len(held) < page_size:
            wanted = page_size - len(held)
            snapshot = self._place.read(scans=[Scan(LOCKS, limit=wanted, after=after_key or None)])
            keys = [key for key, _ in snapshot.scanned[0].ids]
            rows = read_rows(self._place, LOCK, keys)
            held += [_record(key, row, snapshot.now) for key, row in rows.items() if _is_held(row, snapshot.now)]
            if len(keys) < wanted:
                break
            after_key = keys[-1]
        return sorted(held)


def _of_request(request: _Request) -> list[Key]:
    return [(LOCK, request.key), STORE]


def _of_lock(lock: HeldLock) -> list[Key]:
    return [(LOCK, lock.key)]


def _is_held(row: Row, now: int) -> bool:
    return bool(row.get("lease_ends_at") is not None and row["lease_ends_at"] > now)


def _record(key: str, row: Row, now: int) -> LockRecord:
    return record_of(LockRecord, row, {"key": key, "now": instant(now)})


def _take(view: View, request: _Request) -> LockRecord:
    row, ends_at = view.row(LOCK, request.key), after(view.now, request.lease_seconds)
    if row is None or row["token"] != request.token:
        if row is not None and _is_held(row, view.now):
            return _record(request.key, row, view.now)
        fence = 1 + (first_fence(None, view.row(*STORE)) if row is None else row["fence"])
        row = {"token": request.token, "holder": request.holder, "fence": fence, "taken_at": view.now}
    new = {**row, "lease_ends_at": ends_at}
    view.add(LOCK, request.key, new)
    return _record(request.key, new, view.now)


def _extend(view: View, lock: HeldLock) -> bool:
    row = view.row(LOCK, lock.key)
    if row is None or (row["token"], row["fence"]) != (lock.token, lock.fence) or not _is_held(row, view.now):
        return False
    row["lease_ends_at"] = after(view.now, lock.lease_seconds)
    return True


def _release(view: View, lock: HeldLock) -> bool:
    row = view.row(LOCK, lock.key)
    if row is None or row["token"] != lock.token or row.get("lease_ends_at") is None:
        return False
    row["lease_ends_at"] = None
    return True
