"""Take, extend and release named locks: leases of their own, with fences that never fall."""

from collections.abc import Sequence
from datetime import timedelta

from celery_sqlbeat.model.locks import HeldLock, LockRecord
from celery_sqlbeat.store.sql.engine import Part


class Locks(Part):
    """The verbs of named locks."""

    def take_lock(self, key: str, token: str, holder: str, lease_seconds: float) -> LockRecord | None:
        """Take a lock that is free, and return who holds it now; None: it was freed meanwhile."""
        scope = {"namespace": self.namespace, "lock_key": key}
        taken = self.database.fetch("take_lock", token=token, holder=holder, lease_seconds=lease_seconds, **scope)
        if taken:
            fence, now = taken[0]
            return LockRecord(key, token, holder, fence, now, now + timedelta(seconds=lease_seconds), now)
        held = self.database.read("read_lock", **scope)
        return LockRecord._make(held[0]) if held else None

    def extend_locks(self, held: Sequence[HeldLock]) -> set[str]:
        """Extend the leases of locks; return the tokens of those that are still held."""
        rows = sorted((lock.key, lock.token, lock.fence, lock.lease_seconds) for lock in held)
        return {row[0] for row in self.database.fetch("extend_locks", rows, namespace=self.namespace)}

    def release_locks(self, held: Sequence[HeldLock]) -> set[str]:
        """Free locks; return the tokens of those that were still held."""
        rows = sorted((lock.key, lock.token) for lock in held)
        return {row[0] for row in self.database.fetch("release_locks", rows, namespace=self.namespace)}

    def locks(self, after_key: str = "", page_size: int = 500) -> list[LockRecord]:
        """Return a page of the locks that somebody holds, by key."""
        page = {"after_key": after_key, "page_size": page_size}
        rows = self.database.read("list_locks", namespace=self.namespace, **page)
        return [LockRecord._make(row) for row in rows]
