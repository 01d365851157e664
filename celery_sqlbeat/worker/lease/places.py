"""The places of pools that the runs of one worker process hold, beside their leases."""

from collections.abc import Callable, Iterable

from celery_sqlbeat import environment, events
from celery_sqlbeat.config.pools import holder_of, pool_of
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.model.locks import HeldLock
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.places import take_place
from celery_sqlbeat.worker.lease import RunLease

FULL_SECONDS = 1.0  # at least, until a run that found its pool full is tried again


class Places:
    """Takes, extends and frees places. They end with the leases of runs whose process has died."""

    def __init__(self, store: Store, worker: str, rnd: Callable[[], float] = environment.chance) -> None:
        self._store = store
        self._worker = worker
        self._random = rnd

    def take(self, run: StartedRun, text: str) -> HeldLock | str | None:
        """Take a place of this pool; a text says why there is none. None: no such pool."""
        pool = pool_of(text)
        if pool is None:
            return None  # a beat writes no other text, so somebody has forged it
        holder = holder_of(run.job_name, run.run_id, self._worker)
        try:
            taken = take_place(self._store, pool, run.start_id, holder, run.lease_seconds, self._random)
        except StoreError as error:
            return f"pool {pool.name} could not be asked: {error}"
        return pool.full(taken) if isinstance(taken, list) else taken

    def extend(self, run_leases: Iterable[RunLease]) -> None:
        """Extend the places of leases that were just extended."""
        held = {run_lease.place.token: run_lease for run_lease in run_leases if run_lease.place is not None}
        if not held:
            return
        try:
            kept = self._store.extend_locks([lease.place for lease in held.values() if lease.place is not None])
        except StoreError as error:
            events.heartbeat_failed(leases=len(held), reason=error)
            return
        for run_lease in (held[token] for token in held.keys() - kept):
            place, run_lease.place = run_lease.place, None
            text = f"the run {run_lease.run.run_id} of {run_lease.run.job_name} goes on without its place: it was freed"
            events.noted(topic=f"lock {place.key if place else ''}", text=text)

    def free(self, run_lease: RunLease) -> None:
        """Free the place of a run that is over."""
        place, run_lease.place = run_lease.place, None
        if place is None:
            return
        try:
            self._store.release_locks([place])
        except StoreError as error:  # it ends by itself, as the lease does
            events.step_failed(step="free a place of a pool", subject=place.key, error=error)
