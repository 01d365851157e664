"""Write how runs ended, in batches; keep each outcome until it is written or known to be lost."""

from collections import deque
from collections.abc import Callable

from celery_sqlbeat import events
from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, DatabaseUncertain, StoreError
from celery_sqlbeat.model.lifecycle import CANCELLED, DLQ, SKIPPED, Ending, after_cancellation
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import Extended, Release
from celery_sqlbeat.worker.lease import LeaseTable, RunLease, Stop
from celery_sqlbeat.worker.lease.batching import Batcher, QueuedRow, next_batches
from celery_sqlbeat.worker.lease.places import Places

Then = Callable[[bool], None]

_WHILE_LOCKED = 0.25  # seconds until a lease is kept whose row somebody has locked: to ask again costs no waiting
_WHILE_BEATING = 0.02  # seconds; about as long as the heartbeat's statement


class Outcome(QueuedRow):
    """What is to be written about one run."""

    __slots__ = ("ending", "keep_seconds", "refused_at", "run_lease", "then")

    def __init__(
        self, most: int, run_lease: RunLease, ending: Ending | None, keep_seconds: float, then: Then | None
    ) -> None:
        super().__init__(run_lease.run.run_id, most)
        self.run_lease = run_lease
        self.ending = ending
        """None where Celery's own retry follows, for which the lease is kept longer."""
        self.keep_seconds = keep_seconds
        self.then = [then] if then is not None else []
        self.refused_at: float | None = None
        """When the database first refused it alone, not for its absence or a lock."""


class OutcomeWriter:
    """The outcomes of one process. `step` belongs to one thread, everything else to any."""

    def __init__(self, store: Store, leases: LeaseTable) -> None:
        self._store = store
        self._leases = leases
        self._places = Places(store, "")
        self._new: deque[Outcome] = deque()
        self._waiting: dict[str, Outcome] = {}
        timing = leases.timing
        self._batcher = Batcher(leases.clock, leases.random, timing.outcome_spacing)

    def close(self) -> None:
        """Write everything at once from here on."""
        self._batcher.close()

    def add(self, run_lease: RunLease, ending: Ending | None, keep_seconds: float, then: Then | None) -> None:
        """Write this with the next batch; `then` is told whether it was written."""
        self._new.append(Outcome(self._leases.timing.batch_size, run_lease, ending, keep_seconds, then))

    @property
    def is_idle(self) -> bool:
        """Whether everything is written, or known to be lost."""
        return not self._new and not self._waiting

    def step(self) -> float:
        """Write what has gathered; return the seconds until the next step."""
        now = self._leases.clock()
        self._take_new()
        if self._waiting and self._batcher.sends(now):
            self._drop_superseded()
            endings = [outcome for outcome in self._waiting.values() if outcome.ending is not None]
            for batch in next_batches(endings, now):
                self._write(batch, self._finish)
            kept = [
                outcome
                for outcome in self._waiting.values()
                if outcome.ending is None and not self._is_beating(outcome, now)
            ]
            for batch in next_batches(kept, now) if kept else ():
                self._write(batch, self._keep)
        return self._seconds_left()

    def _take_new(self) -> None:
        while self._new:
            outcome = self._new[0]  # removed once it stands elsewhere: `is_idle` must not be true meanwhile
            if outcome.then:
                self._batcher.flush_soon(self._leases.timing.late_ack_spacing)
            earlier = self._waiting.get(outcome.run_lease.run.start_id)
            if earlier is not None:  # the first report of a run counts; Celery reports a hard time limit twice
                earlier.then += outcome.then
            elif outcome.run_lease.is_recorded is not None or outcome.run_lease.stop is Stop.LOST:
                self._done(outcome, is_recorded=bool(outcome.run_lease.is_recorded))
            else:
                self._waiting[outcome.run_lease.run.start_id] = outcome
            self._new.popleft()

    def _drop_superseded(self) -> None:
        """Drop outcomes of runs that have begun again here: Celery's own retry writes them."""
        for outcome in list(self._waiting.values()):
            if not self._leases.is_latest(outcome.run_lease):
                self._done(outcome, is_recorded=outcome.ending is None)

    def _is_beating(self, outcome: Outcome, now: float) -> bool:
        """Return whether a heartbeat is under way: it could shorten the lease of a retry again."""
        if outcome.run_lease.beating:
            outcome.not_before = now + _WHILE_BEATING
        return outcome.run_lease.beating

    def _write(self, batch: list[Outcome], write: Callable[[list[Outcome]], Extended]) -> None:
        try:
            lost, busy, asked = write(batch)
        except StoreError as error:
            self._batcher.failed(batch, error)
            if len(batch) == 1 and _is_refusal(error):
                self._refused(batch[0], error)
            return
        self._batcher.succeeded()
        for outcome in batch:
            if outcome.run_id in busy:
                outcome.not_before = self._leases.clock() + _WHILE_LOCKED
            elif outcome.ending is None and outcome.run_id in asked:
                outcome.ending = after_cancellation(asked[outcome.run_id])  # no heartbeat follows that would bring it
            else:
                self._done(outcome, is_recorded=outcome.run_id not in lost)

    def _refused(self, outcome: Outcome, error: StoreError) -> None:
        """Try an outcome again for a bounded time: fail-overs end, missing rights are granted.

        The lease is extended for its length once more. The outcome is given up when that time has
        passed, too.
        """
        now, lease = self._leases.clock(), outcome.run_lease.run.lease_seconds
        if outcome.refused_at is None:
            outcome.refused_at = now
        if now >= outcome.refused_at + 2 * lease:
            events.finish_failed(
                run_id=outcome.run_id, effect="its lease has ended, the run is taken over", error=error
            )
            self._done(outcome, is_recorded=False)
            return
        if now >= outcome.refused_at + lease:
            with self._leases.guard:
                outcome.run_lease.is_extended = False
        events.finish_failed(run_id=outcome.run_id, effect="it is tried again", error=error)

    def _finish(self, batch: list[Outcome]) -> Extended:
        releases = [Release.of(outcome.run_lease.run, outcome.ending) for outcome in batch if outcome.ending]
        done, busy = self._store.finish(releases)
        return Extended({end.run_id for end in releases} - done - busy, busy)

    def _keep(self, batch: list[Outcome]) -> Extended:
        return self._store.extend(
            [(outcome.run_lease.run, outcome.keep_seconds + outcome.run_lease.run.lease_seconds) for outcome in batch]
        )

    def _done(self, outcome: Outcome, is_recorded: bool) -> None:
        outcome.run_lease.is_recorded = is_recorded
        self._leases.remove(outcome.run_lease)
        self._places.free(outcome.run_lease)
        if is_recorded and outcome.ending is not None:
            _tell(outcome.run_lease, outcome.ending)
        for then in outcome.then:
            try:
                then(is_recorded)
            except Exception as error:
                events.fault_caught(doing="follow an outcome", error=error, subject=outcome.run_id)
        self._waiting.pop(outcome.run_lease.run.start_id, None)  # last: a worker that ends waits for all of `then`

    def _seconds_left(self) -> float:
        if self._new:
            return 0.0
        at = min((outcome.not_before for outcome in self._waiting.values()), default=float("inf"))
        return max(0.0, max(self._batcher.opens_at, at) - self._leases.clock())


def _is_refusal(error: StoreError) -> bool:
    """Return whether the database refused this very statement, not for a lock or a time-out."""
    return isinstance(error, DatabaseUncertain) or not isinstance(error, (DatabaseUnavailable, DatabaseBusy))


def _tell(run_lease: RunLease, ending: Ending) -> None:
    run = run_lease.run
    name, run_id, slot = run.job_name, run.run_id, run.scheduled_for
    seconds = run_lease.body_seconds
    events.run_finished(job_name=name, run_id=run_id, state=ending.state, reason=ending.reason, seconds=seconds)
    if ending.state == DLQ:
        reason = ending.error or ending.reason
        events.dead_lettered(job_name=name, run_id=run_id, slot=slot, attempt=run.attempt, reason=reason)
    elif ending.state == SKIPPED:
        events.slot_skipped(job_name=name, reason=ending.reason or SKIPPED, slots=1, first=slot, last=slot)
    elif ending.state == CANCELLED:
        events.run_cancelled(job_name=name, run_id=run_id, reason=ending.reason or CANCELLED)
