"""Named locks over all processes of a namespace: leases with fences, extended in the background.

A lock is as good as its lease. Who stands still for longer has lost it, knows that by its own
clock, and its fence tells those that it writes to.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.app import running_as
from celery_sqlbeat.errors import (
    DatabaseBusy,
    LeaseLost,
    LockNotAcquired,
    SqlbeatError,
    StoreError,
    TransientError,
    VersionConflict,
)
from celery_sqlbeat.model.locks import (
    LEAST_EXPIRY,
    LONGEST_HOLDER,
    HeldLock,
    LockRecord,
    checked_key,
    seconds_of,
)
from celery_sqlbeat.store import Store

_EXTENSIONS = 3  # in a lease, so that two of them may fail
_SHORTEST_POLL, _LONGEST_POLL = 0.05, 1.0  # seconds, while it waits for a lock
_SHORTEST_RETRY = 0.05  # seconds, after an extension that failed
_MOST_TRIES = 20  # to learn who holds a lock
_IDLE_SECONDS = 60.0  # the thread that extends locks ends after so long without one


class Lock:
    """A lock of this process; use it with `with`, or by `acquire` and `release`."""

    def __init__(self, locks: Locks, key: str, expiry: float, wait: float) -> None:
        self.key = key
        self.fence = 0
        """Pass it on to what you write to; of two holders the later one has the higher fence."""
        self.expiry = expiry
        self.token = ""
        self.place: tuple[int, str] = (0, key)
        """The thread that took it."""
        self.extend_at = self.valid_until = 0.0
        self._locks = locks
        self._wait = wait
        self._is_held = self._is_lost = False

    def acquire(self) -> Lock:
        """Take the lock, or raise LockNotAcquired, which names its holder."""
        if self.is_held:
            return self
        self.release()  # what is lost is taken anew
        self._locks.take(self, self._wait)
        return self

    @property
    def lost(self) -> bool:
        """Whether its lease was taken over, or may have ended: write nothing more."""
        return self._is_lost or (self._is_held and environment.monotonic() >= self.valid_until)

    @property
    def is_held(self) -> bool:
        """Whether it was taken, is not released, and not lost."""
        return self._is_held and not self.lost

    def check(self) -> None:
        """Raise LeaseLost where the lock is lost: for between the steps of long work."""
        if self.lost:
            raise LeaseLost(f"the lock {self.key!r} is lost: its lease has ended, and somebody else may hold it")

    def extend(self, expiry: float | timedelta | None = None) -> None:
        """Extend the lease now, for so many seconds; None: as at the start."""
        if expiry is not None:
            self.expiry = seconds_of("expiry", expiry, LEAST_EXPIRY)
        if not self._is_held:
            raise LeaseLost(f"the lock {self.key!r} is not held: acquire it first")
        self.check()
        self._locks.extend([self])
        self.check()

    def release(self) -> bool:
        """Free the lock; return whether it was still held."""
        if not self._is_held:
            return False
        self._is_held = False
        return self._locks.release(self) and not self._is_lost

    def begun(self, fence: int, sent_at: float) -> None:
        """Note that it was taken by a statement that was sent at this instant."""
        self.fence, self._is_held, self._is_lost = fence, True, False
        self.extended(sent_at)

    def extended(self, sent_at: float) -> None:
        """Note that its lease was extended by a statement that was sent at this instant."""
        self.valid_until = sent_at + self.expiry
        self.extend_at = sent_at + self.expiry / _EXTENSIONS

    def is_gone(self) -> None:
        """Note that somebody else has it, or its lease has ended."""
        if not self._is_lost:
            self._is_lost = True
            events.advice(
                topic="lock",
                text=f"the lock {self.key!r} (fence {self.fence}) is lost: its lease has ended, or it was taken away",
                remedy="ask `lost` between long steps; give it a longer expiry where its process may stand still",
            )

    def held(self) -> HeldLock:
        """Return what a store must know of it."""
        return HeldLock(self.key, self.token, self.fence, self.expiry)

    def __enter__(self) -> Lock:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except StoreError as failed:
            # The body has ended; the lease ends by itself, and an error of the body counts more.
            events.step_failed(step="release a lock", subject=self.key, error=failed)

    def __repr__(self) -> str:
        state = "lost" if self.lost else "held" if self._is_held else "free"
        return f"<lock {self.key!r}, {state}, fence {self.fence}>"


class Locks:
    """The locks of one process: takes them, and extends what is held."""

    def __init__(
        self, ready: Callable[[], Store], pause: Callable[[float], object] = lambda s: threading.Event().wait(s)
    ) -> None:
        self._ready = ready
        self._pause = pause
        self._guard = environment.lock()
        self._forget()

    def _forget(self) -> None:
        """Begin anew, as in a child process, which holds none of its parent's locks."""
        self._pid = os.getpid()
        self._held: dict[str, Lock] = {}
        self._inside: dict[tuple[int, str], str] = {}
        self._wakeup = environment.wakeup()
        self._is_extending = False
        self._wakes_at = 0.0

    def lock(self, key: str, expiry: float | timedelta = 30, wait: float | timedelta = 0) -> Lock:
        """Return a lock that waits for so many seconds until it is free."""
        return Lock(self, checked_key(key), seconds_of("expiry", expiry, LEAST_EXPIRY), seconds_of("wait", wait))

    def has_taken(self, key: str) -> bool:
        """Return whether this thread is inside of this lock."""
        return (threading.get_ident(), key) in self._inside

    def list(self) -> Sequence[LockRecord]:
        """Return the locks that somebody holds, by key."""
        store = self._ready()
        held: Sequence[LockRecord] = []
        while page := store.locks(held[-1].key if held else ""):
            held = [*held, *page]
        return held

    def free(self, key: str, force: bool = False, *, version: int | None = None) -> LockRecord | None:
        """Take a lock from its holder, at the fence `version` if given; return what it was."""
        record = next((lock for lock in self.list() if lock.key == key), None)
        if record is None:
            return None
        if not force:
            raise LockNotAcquired(record.key, record.holder, record.fence, *record.held_and_left())
        held = HeldLock(record.key, record.token, record.fence, 0.0)
        if version not in (None, record.fence) or not self._ready().release_locks([held]):
            raise VersionConflict(key, record.fence if version is None else version)
        return record

    def take(self, lock: Lock, wait: float) -> None:
        """Take a lock; poll, with jitter, for as long as somebody else holds it."""
        if self._pid != os.getpid():
            self._forget()
        inside = (threading.get_ident(), lock.key)
        if inside in self._inside:
            raise SqlbeatError(
                f"the lock {lock.key!r} is asked for inside of itself, which would wait for ever: this thread took it "
                f"at {self._inside[inside]}"
            )
        lock.token = environment.Ids().random_id()
        record = self._waited(lock, environment.monotonic() + wait)
        if record.token != lock.token:
            raise LockNotAcquired(record.key, record.holder, record.fence, *record.held_and_left())
        self._inside[inside] = _caller()
        lock.place = inside
        self._keep(lock)

    def _waited(self, lock: Lock, end: float) -> LockRecord:
        """Return who has the lock, once that is this one, or the time is over."""
        clock, pause, tries = environment.monotonic, _SHORTEST_POLL, 0
        while True:
            sent_at = clock()
            try:
                record = self._ready().take_lock(lock.key, lock.token, running_as()[:LONGEST_HOLDER], lock.expiry)
            except TransientError:
                if clock() >= end:
                    raise
                record = None
            else:
                tries += record is None  # it changed hands between the try and the look
                if record is None and tries >= _MOST_TRIES:
                    raise DatabaseBusy(f"the lock {lock.key!r} changes hands too often to say who holds it: try again")
            if record is not None:
                if record.token == lock.token:
                    lock.begun(record.fence, sent_at)
                if record.token == lock.token or clock() >= end:
                    return record
                pause = min(_LONGEST_POLL, 1.5 * pause)
            left = max(0.0, end - clock())
            self._pause(max(_SHORTEST_POLL, min(pause * (0.5 + environment.chance()), left)))

    def release(self, lock: Lock) -> bool:
        """Free a lock; return whether it was still held."""
        with self._guard:
            self._held.pop(lock.token, None)
            self._inside.pop(lock.place, None)
        return lock.token in self._ready().release_locks([lock.held()])

    def extend(self, locks: Sequence[Lock]) -> None:
        """Extend locks by one statement; those that are gone say so."""
        sent_at = environment.monotonic()
        kept = self._ready().extend_locks([lock.held() for lock in locks])
        for lock in locks:
            if lock.token in kept:
                lock.extended(sent_at)
            else:
                lock.is_gone()

    def _keep(self, lock: Lock) -> None:
        """Let the thread extend the lock until it is released."""
        with self._guard:
            self._held[lock.token] = lock
            must_start, self._is_extending = not self._is_extending, True
        if must_start:
            environment.start_thread(self._run)
        elif lock.extend_at < self._wakes_at:
            self._wakeup.ring()

    def _run(self) -> None:
        clock = environment.monotonic
        idle_since = clock()
        while True:
            now = clock()
            with self._guard:
                held = [*self._held.values()]
                if not held and now - idle_since >= _IDLE_SECONDS:
                    self._is_extending = False
                    return
            if held:
                idle_since = now
            due = [lock for lock in held if lock.extend_at <= now and not lock.lost]
            if due:
                self._extend_safely(due, now)
            for lock in held:
                if lock.lost:
                    lock.is_gone()
                    with self._guard:
                        self._held.pop(lock.token, None)
            waits = [min(lock.extend_at, lock.valid_until) for lock in held if not lock.lost]
            self._wakes_at = min([*waits, clock() + _IDLE_SECONDS])
            self._wakeup.sleep(self._wakes_at - clock())

    def _extend_safely(self, due: Sequence[Lock], now: float) -> None:
        try:
            self.extend(due)
        except Exception as error:  # whatever it is, the leases may be extended by the next try
            for lock in due:
                lock.extend_at = now + max(_SHORTEST_RETRY, lock.expiry / (4 * _EXTENSIONS))
            events.heartbeat_failed(leases=len(due), reason=error)


def _caller() -> str:
    """Return the file and line of the first caller outside of this package."""
    frame = sys._getframe(1)
    package = __name__.partition(".")[0]
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == package:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
