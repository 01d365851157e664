"""Threads and locks of the operating system, also where gevent or eventlet has put green ones in their place.

A task that computes for a minute stops every green thread, and a heartbeat must not stop with them.
"""

import _thread
import logging
import time
from collections.abc import Callable
from typing import Any

from celery_sqlbeat.unpatched import original
from celery_sqlbeat.worker.alarm import Alarm

logger = logging.getLogger(__name__)


lock: Callable[[], Any] = original("_thread", "allocate_lock")
"""Makes a lock that holds between native threads. Looked up once: each message gets one."""

thread_id: Callable[[], int] = original("_thread", "get_ident")
"""The id of the native thread that runs this, whatever its green threads are called."""


def alarm() -> Alarm:
    """An alarm for a native thread."""
    return Alarm(original("_thread", "allocate_lock"))


def is_patched() -> bool:
    """Whether gevent or eventlet has put green threads in the place of native ones."""
    return _thread.start_new_thread is not original("_thread", "start_new_thread")


def start(work: Callable[[], None]) -> None:
    """Run this in a native thread that does not keep the process alive."""
    original("_thread", "start_new_thread")(work, ())


class Later:
    """Calls things later in a native thread of its own, which lives only while there is something to call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = lock()
        self._alarm = alarm()
        self._pending: list[tuple[float, Callable[[], None]]] = []
        self._is_running = False

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call this in so many seconds; an error in it is logged."""
        with self._lock:
            self._pending.append((self._clock() + seconds, action))
            must_start, self._is_running = not self._is_running, True
        if must_start:
            start(self._run)
        else:
            self._alarm.ring()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    self._is_running = False
                    return
                now = self._clock()
                due = [action for at, action in self._pending if at <= now]
                self._pending = [one for one in self._pending if one[0] > now]
                wait = min((at for at, _ in self._pending), default=now) - now
            for action in due:
                called(action)
            if not due:
                self._alarm.sleep(wait)


def called(action: Callable[[], None]) -> None:
    """Call this; an error in it is logged, and stops nobody else."""
    try:
        action()
    except Exception:
        logger.exception("%r failed", action)
