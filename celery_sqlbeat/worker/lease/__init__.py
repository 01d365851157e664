"""The leases of one worker process, and the answers to messages that ask for one.

A lease knows whether the body may begin, whether it must stop, and until when nobody else can have
the run.
"""

import contextlib
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from celery_sqlbeat import environment
from celery_sqlbeat.config.policy import RetryRule
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.model.locks import HeldLock
from celery_sqlbeat.model.one_offs import Asked
from celery_sqlbeat.worker.lease.batching import Timing

Guard = contextlib.AbstractContextManager[Any]  # a lock


class Phase(Enum):
    """How far a run has come in this process."""

    LEASED = "leased"  # started in the database; its body has not begun
    BEGUN = "begun"
    STOPPED = "stopped"  # its task must stop, or is being stopped
    ENDING = "ending"  # its outcome is on its way to the database
    OVER = "over"


class Stop(Enum):
    """Why a task must stop."""

    LOST = "the lease is lost"  # by the database's answer: somebody else may run it, and nothing is to be written
    OVERDUE = "it has taken longer than its max_runtime"  # the lease is kept until the task is gone
    CANCELLED = "somebody cancelled it"  # the lease is kept until the task is gone
    ABANDONED = "the lease could not be extended"  # its end is near; the run may still be this process's to release


class RunLease:
    """The lease of one run. `LeaseTable` makes it; its methods may be called from any thread."""

    def __init__(
        self,
        run: StartedRun,
        celery_retries: int,
        sent_at: float,
        interval: float,
        stop_after: float,
        take_by: float,
        clock: Callable[[], float],
        guard: Guard,
    ) -> None:
        self.run = run
        self.celery_retries = celery_retries
        self.sent_at = sent_at
        """When the last statement that gave or extended the lease was sent (monotonic)."""
        self.interval = interval
        self.stop_after = stop_after
        self.take_by = take_by
        """When the lease is given back, unless the body has begun."""
        self.beat_again_at = sent_at
        """When the next heartbeat may be tried, after one that failed."""
        self.is_extended = True
        """Whether heartbeats extend it: until its outcome is known, or it was abandoned."""
        self.is_recalled = False
        """Whether a beat says that it may be lost: the next heartbeat comes at once."""
        self.beating = False
        """Whether a heartbeat of it is under way."""
        self.overdue_at = float("inf")
        """When the body will have taken longer than its `max_runtime`."""
        self.release_at = float("inf")
        """When the run of a body that must stop is released, whether or not that could be done."""
        self.asked: Asked | None = None
        """Who has cancelled it."""
        self.place: HeldLock | None = None
        """The place that it holds of its pool."""
        self.phase = Phase.LEASED
        self.stop: Stop | None = None
        self.is_recorded: bool | None = None
        """Whether its outcome is in the database; None as long as that is not known."""
        self.luck: float | None = None
        """The chance in the backoff of a failure, drawn once."""
        self.retry: RetryRule | None = None
        """What its job says of retries, as the message has it."""
        self.body_seconds: float | None = None
        """How long the body took; None where it did not begin, or goes on."""
        self._began_at: float | None = None
        self._clock = clock
        self._guard = guard
        self._on_stop: Callable[[], None] | None = None
        self._on_extended: Callable[[float], None] | None = None

    @property
    def watch_at(self) -> float:
        """When `LeaseManager.watch` must check whether it has to stop, or to be given back."""
        if self.phase is Phase.LEASED:
            longest = self.run.max_runtime
            # Its body may begin at any moment, and `max_runtime` counts from then on.
            overdue_at = float("inf") if longest is None else self._clock() + longest
            return min(self.take_by, self.stop_at, overdue_at)
        if self.phase is Phase.BEGUN:
            return min(self.stop_at, self.overdue_at)
        return self.release_at if self.phase is Phase.STOPPED else float("inf")

    @property
    def lost(self) -> bool:
        """Whether the task must stop, from now on for good: the lease is lost or soon may be."""
        return self.stop is not None

    @property
    def reason(self) -> str | None:
        """Why the task must stop, as text."""
        return self.stop.value if self.stop else None

    @property
    def beat_at(self) -> float:
        """When the lease is next to be extended."""
        return self.sent_at if self.is_recalled else self.sent_at + self.interval

    @property
    def stop_at(self) -> float:
        """When the task must be stopped, unless the lease is extended before."""
        return self.sent_at + self.stop_after

    @property
    def is_safe(self) -> bool:
        """Whether nobody else can have the run yet, so that its body may begin."""
        return self.stop is None and self._clock() < self.stop_at

    def take(self) -> bool:
        """Begin the body, once.

        Return False where it must not begin: the lease was given back, is lost, or is about to end.
        The caller then acknowledges the message and drops it; the lease manager does the rest.
        """
        with self._guard:
            if self.phase is not Phase.LEASED or self._clock() >= self.stop_at:
                return False
            self.phase, self._began_at = Phase.BEGUN, self._clock()
            if self.run.max_runtime is not None:
                self.overdue_at = self._clock() + self.run.max_runtime
            return True

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call this once when the task must stop; now if it must stop already.

        The callback must not block. It begins to stop the task; `LeaseManager.finish` is called
        when the task is gone.
        """
        with self._guard:
            if self.stop is None:
                self._on_stop = callback
                return
        callback()

    def tell_extended(self, callback: Callable[[float], None] | None) -> None:
        """Call this with the end of the lease's safe time, now and after each heartbeat.

        The callback must not block. None ends the calls.
        """
        with self._guard:
            self._on_extended = callback
            if callback is not None:
                callback(self.stop_at)

    def extended(self, sent_at: float) -> None:
        """Note that a statement sent at that instant has extended the lease."""
        with self._guard:
            self.sent_at = sent_at
            if self._on_extended is not None:
                self._on_extended(self.stop_at)

    def must_stop(self, why: Stop) -> Callable[[], None] | None:
        """Mark it as stopped, with the guard held; return what to call when the guard is free."""
        self.phase, self.stop = Phase.STOPPED, why
        self.is_extended = self.is_extended and why in (Stop.OVERDUE, Stop.CANCELLED)
        callback, self._on_stop = self._on_stop, None
        return callback

    def ends(self) -> None:
        """Note, with the guard held, that the task is gone and its outcome is on its way."""
        if self._began_at is not None and self.body_seconds is None:
            self.body_seconds = self._clock() - self._began_at
        if self.phase is not Phase.OVER:
            self.phase = Phase.ENDING
        # The callback refers to this lease and to the message: a cycle that would wait for the
        # garbage collector.
        self._on_stop = None


class Started(NamedTuple):
    """The run holds its lease: its task goes to the pool, if `run_lease.take()` still allows it."""

    run_lease: RunLease


class StaleMessage(NamedTuple):
    """The run may not begin, or began before; the message is acknowledged and dropped."""

    reason: str = "stale"
    ends: bool = False
    """Whether its slot has ended, or has no row any more, so that nobody reports more of it."""
    expired: bool = False
    """Whether a beat has ended its slot for the message's age: Celery calls its task expired."""
    cancelled: bool = False
    """Whether somebody has cancelled it: Celery calls its task revoked."""


class StoreUnavailable(NamedTuple):
    """The database could not be asked in time; the message returns to the broker in a while."""

    reason: str


class WrongStore(NamedTuple):
    """The message is of another store or namespace, and returns to the broker in a while."""

    reason: str


StartAnswer = Started | StaleMessage | StoreUnavailable | WrongStore


class LeaseTable:
    """The leases of one process, by start id: two tries of one run may overlap."""

    def __init__(
        self,
        timing: Timing,
        clock: Callable[[], float],
        guard: Guard | None = None,
        rnd: Callable[[], float] = environment.chance,
    ) -> None:
        self.timing = timing
        self.clock = clock
        self.random = rnd
        self.guard: Guard = guard or threading.Lock()
        self._by_start: dict[str, RunLease] = {}
        self._latest: dict[str, RunLease] = {}

    def add(self, run: StartedRun, celery_retries: int, sent_at: float, ahead: bool) -> RunLease:
        """Hold a run that the database has started, by a statement sent at that instant."""
        take_by = self.clock() + (self.timing.ahead_seconds if ahead else self.timing.ask_seconds)
        interval, stop_after = self.timing.interval(run.lease_seconds), self.timing.stop_after(run.lease_seconds)
        run_lease = RunLease(run, celery_retries, sent_at, interval, stop_after, take_by, self.clock, self.guard)
        with self.guard:
            self._by_start[run.start_id] = run_lease
            self._latest[run.run_id] = run_lease
        return run_lease

    def remove(self, run_lease: RunLease) -> None:
        """Forget a lease that is over."""
        with self.guard:
            run_lease.phase, run_lease.is_extended = Phase.OVER, False
            self._by_start.pop(run_lease.run.start_id, None)
            if self._latest.get(run_lease.run.run_id) is run_lease:
                del self._latest[run_lease.run.run_id]

    def is_latest(self, run_lease: RunLease) -> bool:
        """Return whether no later try of its run has begun here, so that this one may end it."""
        return self._latest.get(run_lease.run.run_id) is run_lease

    def of_run(self, run_id: str) -> RunLease | None:
        """Return the lease of the latest try of a run."""
        return self._latest.get(run_id)

    def all(self) -> list[RunLease]:
        """Return every lease, as of now."""
        with self.guard:
            return list(self._by_start.values())

    def __len__(self) -> int:
        return len(self._by_start)
