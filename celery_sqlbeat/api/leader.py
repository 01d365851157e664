"""Elect one process among many: the holder of a lock that it extends for as long as it lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType

from celery_sqlbeat import environment, events
from celery_sqlbeat.api.locks import Lock, Locks
from celery_sqlbeat.errors import LockNotAcquired, SqlbeatError

PREFIX = "leader of "  # of the keys of such locks
_TRIES = 3  # in a lease of the leader's, so that another one follows soon after its end
_LEAST_PAUSE = 0.05  # seconds
_SHARE = 0.9  # of the lease: before its end the old leader has given up, whatever its clock's rate


class Leader:
    """A candidate; use it with `with`, or by `start` and `stop`. Of one name at most one leads."""

    def __init__(
        self,
        locks: Locks,
        name: str,
        expiry: float | timedelta = 30,
        on_won: Callable[[], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """Campaign as soon as `start` is called; the callbacks run in the campaign's thread."""
        self.name = name
        self._lock: Lock = locks.lock(PREFIX + name, expiry)
        self._on_won, self._on_lost = on_won, on_lost
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._leads = False

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now, by its own clock."""
        lock = self._lock
        left = lock.valid_until - environment.monotonic()
        return self._leads and lock.is_held and left > (1.0 - _SHARE) * lock.expiry

    @property
    def fence(self) -> int:
        """The fence of its lead: pass it on to what you write to."""
        return self._lock.fence

    def start(self) -> Leader:
        """Campaign in the background."""
        if self._thread is None:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._campaign, name=f"sqlbeat leader {self.name}", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Give up the lead, and campaign no longer."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopped.set()
            thread.join()

    def _campaign(self) -> None:
        pause = max(_LEAST_PAUSE, self._lock.expiry / (_TRIES * 4))
        while not self._stopped.is_set():
            try:
                self._step()
            except SqlbeatError as error:
                events.step_failed(step="campaign", subject=self.name, error=error)
            self._stopped.wait(pause * (0.5 + environment.chance()))
        self._step_down()

    def _step(self) -> None:
        if self._leads:
            if not self.is_leader:
                self._step_down()
            return
        try:
            self._lock.acquire()
        except LockNotAcquired:
            return
        self._leads = True
        events.noted(topic="leader", text=f"this process leads as {self.name!r}, with fence {self.fence}")
        _call(self._on_won)

    def _step_down(self) -> None:
        if not self._leads:
            return
        self._leads = False
        try:
            _call(self._on_lost)
            self._lock.release()
        except SqlbeatError as error:
            events.step_failed(step="release a lock", subject=self.name, error=error)
        events.noted(topic="leader", text=f"this process leads as {self.name!r} no longer")

    def __enter__(self) -> Leader:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _call(callback: Callable[[], None] | None) -> None:
    if callback is not None:
        environment.call_safely(callback)
