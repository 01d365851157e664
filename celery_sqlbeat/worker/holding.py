"""One run that this process holds: whether its body may begin, whether it must stop, and until when its lease is safe.

The keeper makes it and keeps its lease; whoever runs the task asks and listens. Safe to use from any thread.
"""

import contextlib
from collections.abc import Callable
from enum import Enum
from typing import Any

from celery_sqlbeat.model import StartedRun

Guard = contextlib.AbstractContextManager[Any]  # a lock


class Phase(Enum):
    """Where a held run is on its way."""

    LEASED = "leased"  # begun in the database; its body has not
    BEGUN = "begun"
    STOPPED = "stopped"  # its task must stop, or is being stopped
    ENDING = "ending"  # its outcome is on its way to the database
    OVER = "over"


class Stop(Enum):
    """Why a task must stop."""

    LOST = "the lease is lost"  # the database said so: somebody else may run it, and nothing is to be written
    OVERDUE = "it has taken longer than its max_runtime"  # the lease is kept until the task is gone
    ABANDONED = "the lease could not be extended"  # its end is near; the run may still be this process's to release


class Holding:
    """A run that holds its lease, in the hands of this process. Made by the keeper."""

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
        """When the last statement that gave or extended the lease was sent, by the monotonic clock."""
        self.interval = interval
        self.stop_after = stop_after
        self.take_by = take_by
        """When the lease is given back, unless the body has begun."""
        self.beat_again_at = sent_at
        """Not before then the next heartbeat is tried, after one that failed."""
        self.is_extended = True
        """Whether heartbeats extend it: until its end, and never again once it was abandoned."""
        self.is_recalled = False
        """Whether somebody says that it may be lost: the next heartbeat comes at once."""
        self.beating = False
        """Whether a heartbeat of it is under way."""
        self.overdue_at = float("inf")
        """When the body will have taken longer than its `max_runtime`."""
        self.release_at = float("inf")
        """When the run is released whose body is overdue, whether or not that could be stopped."""
        self.phase = Phase.LEASED
        self.stop: Stop | None = None
        self.written: bool | None = None
        """Whether its outcome is in the database; None as long as that is not known."""
        self.luck: float | None = None
        """The chance in the backoff of a failure, drawn once: whoever asks twice is told the same."""
        self._clock = clock
        self._guard = guard
        self._on_stop: Callable[[], None] | None = None
        self._on_extended: Callable[[float], None] | None = None

    @property
    def watch_at(self) -> float:
        """When somebody has to look whether it must stop, or be given back."""
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
        """Whether the task must stop: the lease is lost or soon may be. Never becomes false again."""
        return self.stop is not None

    @property
    def reason(self) -> str | None:
        """Why the task must stop, in words."""
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
        """Whether nobody else can have the run yet: a body that is about to begin may do so."""
        return self.stop is None and self._clock() < self.stop_at

    def take(self) -> bool:
        """Say that the body begins now. False: it must not; the lease was given back, is lost, or is about to end.

        Then acknowledge the message, drop it and do no more about it: the keeper sees to the rest. True once.
        """
        with self._guard:
            if self.phase is not Phase.LEASED or self._clock() >= self.stop_at:
                return False
            self.phase = Phase.BEGUN
            if self.run.max_runtime is not None:
                self.overdue_at = self._clock() + self.run.max_runtime
            return True

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call this once when the task must stop, from a thread of the keeper; at once where it must stop already.

        The callback must not block. It sets the stop in motion; `Keeper.finish` says when the task is really gone.
        """
        with self._guard:
            if self.stop is None:
                self._on_stop = callback
                return
        callback()

    def tell_extended(self, callback: Callable[[float], None] | None) -> None:
        """Tell until when the lease is safe, now and whenever it is extended; None: no more. It must not block."""
        with self._guard:
            self._on_extended = callback
            if callback is not None:
                callback(self.stop_at)

    def extended(self, sent_at: float) -> None:
        """For the keeper: a statement that was sent at that instant has extended the lease."""
        with self._guard:
            self.sent_at = sent_at
            if self._on_extended is not None:
                self._on_extended(self.stop_at)

    def must_stop(self, why: Stop) -> Callable[[], None] | None:
        """For the keeper, which holds the guard: mark it as stopped; returns what to call when the guard is free."""
        self.phase, self.stop = Phase.STOPPED, why
        self.is_extended = self.is_extended and why is Stop.OVERDUE
        callback, self._on_stop = self._on_stop, None
        return callback

    def ends(self) -> None:
        """For the keeper, which holds the guard: the task is gone, and its outcome is on its way."""
        if self.phase is not Phase.OVER:
            self.phase = Phase.ENDING
        # Nobody is to be stopped. Whoever would be holds this holding and the message, and such a circle would be left
        # to the garbage collector; the message goes now, not with the batch of outcomes.
        self._on_stop = None
