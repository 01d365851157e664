"""A store that seals the arguments it is given, and opens those that it gives back.

Whoever uses it sees plain texts. A text that no key opens comes back sealed: whoever reads the
definition of its job is told so by PayloadLocked.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from celery_sqlbeat.config.payload_key import Keyring, is_sealed
from celery_sqlbeat.model import (
    AddJob,
    Claimable,
    CodeImport,
    CodeState,
    DueBatch,
    JobRecord,
    JobWrite,
    JobWriteResult,
    RunningJob,
    UpdateJob,
)
from celery_sqlbeat.model.one_offs import OneOff, Submitted
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.records import ALL_JOBS, EVERY_SHARE, Expired, Imported, JobQuery

R = TypeVar("R", bound=Any)


def sealed_store(store: Store, keys: Keyring) -> Store:
    """Return the store, with arguments that only these keys open."""
    made: Any = _SealedStore(store, keys)
    return made  # type: ignore[no-any-return]  # the verbs without arguments are those of the store


def unsealed(store: Store, rows: Sequence[R]) -> tuple[Store, list[R]]:
    """Return the store below, and rows as it would be given them."""
    if not isinstance(store, _SealedStore):
        return store, [*rows]
    below: Store = store._store
    return below, [*map(store._sealed, rows)]


class _SealedStore:
    def __init__(self, store: Store, keys: Keyring) -> None:
        self._store = store
        self._keys = keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def due(
        self, batch_size: int, claimable: Claimable = ALL_JOBS, share: str = EVERY_SHARE, besides: Collection[str] = ()
    ) -> DueBatch:
        due = self._store.due(batch_size, claimable, share, besides)
        return due._replace(jobs=self._all_opened(due.jobs))

    def expired(self, batch_size: int, owner: str = "") -> Expired:
        leases, replaceable = self._store.expired(batch_size, owner)
        return Expired(self._all_opened(leases), self._all_opened(replaceable))

    def jobs(self, query: JobQuery) -> dict[str, JobRecord]:
        return {name: self._opened(row) for name, row in self._store.jobs(query).items()}

    def running(self, least_seconds: float, most: int) -> list[RunningJob]:
        return self._all_opened(self._store.running(least_seconds, most))

    def write_jobs(self, writes: Sequence[JobWrite], together: bool = False) -> JobWriteResult:
        sealed = [
            replace(write, draft=self._sealed(write.draft)) if isinstance(write, AddJob | UpdateJob) else write
            for write in writes
        ]
        return self._store.write_jobs(sealed, together)

    def submit(self, one_offs: Sequence[OneOff], submitter: str, dispatch_seconds: float) -> dict[str, Submitted]:
        return self._store.submit([*map(self._sealed, one_offs)], submitter, dispatch_seconds)

    def code_state(self, owner: str, release: str, live_seconds: float) -> CodeState:
        state = self._store.code_state(owner, release, live_seconds)
        return state._replace(rows=self._all_opened(state.rows))

    def import_code(self, batch: CodeImport) -> Imported:
        changes = batch.changes
        if changes is not None:
            additions = [each._replace(definition=self._sealed(each.definition)) for each in changes.additions]
            changed = [each._replace(definition=self._sealed(each.definition)) for each in changes.changes]
            batch = batch._replace(changes=changes._replace(additions=additions, changes=changed))
        return self._store.import_code(batch)

    def _all_opened(self, rows: Iterable[R]) -> list[R]:
        return [self._opened(row) for row in rows]

    def _opened(self, row: R) -> R:
        if not is_sealed(row.args) and not is_sealed(row.kwargs):
            return row
        opened: R = row._replace(args=self._keys.opened(row.args), kwargs=self._keys.opened(row.kwargs))
        return opened

    def _sealed(self, row: R) -> R:
        sealed: R = row._replace(args=self._keys.sealed(row.args), kwargs=self._keys.sealed(row.kwargs))
        return sealed
