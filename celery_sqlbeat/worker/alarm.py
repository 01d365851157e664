"""Lets a native thread sleep until a time, or until another wakes it."""

import _thread
from collections.abc import Callable
from typing import Any

_LONGEST_SLEEP = 60.0  # seconds; nothing depends on it


class Alarm:
    """For one sleeper and any number of wakers. A bare lock, since `threading` may be patched."""

    def __init__(self, allocate_lock: Callable[[], Any] = _thread.allocate_lock) -> None:
        self._asleep = allocate_lock()
        self._asleep.acquire()
        self._guard = allocate_lock()
        self._rung = False

    def ring(self) -> None:
        """Wake the sleeper; who does not sleep yet will not fall asleep."""
        if self._rung:
            return  # it has not heard the last one yet, and looks at everything when it does
        with self._guard:
            if not self._rung:
                self._rung = True
                self._asleep.release()

    def sleep(self, seconds: float) -> None:
        """Sleep so long at most."""
        if seconds > 0 and not self._rung:
            self._asleep.acquire(True, min(seconds, _LONGEST_SLEEP))
        with self._guard:
            if self._rung:
                self._rung = False
                self._asleep.acquire(False)
