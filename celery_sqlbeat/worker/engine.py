"""Runs a keeper: each of its three steps in a native thread of its own, asleep until there is something to do.

So neither a slow start nor a statement that hangs delays a heartbeat or the stop of a task. The rounds of `serve` may
be done by an event loop instead (serving.py).
"""

import _thread
import logging
import time
from collections.abc import Callable
from typing import Any

from celery_sqlbeat.worker.alarm import Alarm
from celery_sqlbeat.worker.keeper import BEAT, SERVE, WATCH, Keeper
from celery_sqlbeat.worker.serving import Serving

logger = logging.getLogger(__name__)

_AFTER_ERROR = 1.0  # seconds; an error that nobody expected must not become a busy loop


class Engine:
    """The threads of one keeper. `start_new_thread` and `allocate_lock`: the originals, where `_thread` is patched."""

    def __init__(
        self,
        make: Callable[[Callable[[str], None]], Keeper],
        start_new_thread: Callable[..., Any] = _thread.start_new_thread,
        allocate_lock: Callable[[], Any] = _thread.allocate_lock,
    ) -> None:
        """`make` builds the keeper with the function that wakes its steps."""
        self._alarms = {step: Alarm(allocate_lock) for step in (SERVE, BEAT, WATCH)}
        self._start_new_thread = start_new_thread
        self._running = False
        self.keeper = make(self.wake)
        self.serving = Serving(self.keeper.serving, self._alarms[SERVE])

    def wake(self, step: str) -> None:
        """Let a step begin its next round now."""
        if step == SERVE:
            self.serving.wake()
        else:
            self._alarms[step].ring()

    def start(self) -> None:
        """Start the threads. In the process that runs the keeper: they do not survive a fork."""
        self._running = True
        steps = {SERVE: self.serving, BEAT: self.keeper.beat, WATCH: self.keeper.watch}
        for name, step in steps.items():
            self._start_new_thread(self._run, (step, self._alarms[name]))

    def stop(self, seconds: float) -> bool:
        """Write what is to be written, for at most so long, then end the threads; False if something is left.

        Blocks the caller. Leases are extended and tasks are stopped until then.
        """
        self.serving.leave()
        self.keeper.close()
        end = time.monotonic() + seconds
        while not self.keeper.is_idle and time.monotonic() < end:
            time.sleep(0.01)
        self._running = False
        for alarm in self._alarms.values():
            alarm.ring()
        return self.keeper.is_idle

    def _run(self, step: Callable[[], float], alarm: Alarm) -> None:
        while self._running:
            try:
                seconds = step()
            except Exception:
                logger.exception("the keeper of the leases goes on after an error")
                seconds = _AFTER_ERROR
            alarm.sleep(seconds)
