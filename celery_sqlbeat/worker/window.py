"""When a task may be stopped by an exception raised inside it: while its body runs, and not while it holds a lock.

Between `task_prerun` and `task_postrun`: later it would hit Celery, or the task that comes next in its thread.
"""

import logging
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from celery import signals

from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.execution import Execution
from celery_sqlbeat.worker.stopped import TaskStopped

logger = logging.getLogger(__name__)

_AGAIN_UNSAFE = 0.005  # seconds; a log line or an import is soon over
_AGAIN_SWALLOWED = 2.0  # seconds that a task gets for its clean-up before it is told once more
_MOST_TIMES = 10  # a task that swallows so many will not be told by an eleventh
_LOCKING = ("logging/", "importlib/_bootstrap", "<frozen importlib")  # an exception there leaves locks for ever
_here = threading.local()  # green where `threading` is: the window of the task that runs in this thread


class Window:
    """The body of one execution, in the thread that runs it."""

    is_killable = False
    """Whether Celery itself can end a task of this pool."""

    def __init__(self, execution: Execution, raise_there: Callable[["Window"], bool], later: native.Later) -> None:
        """`raise_there` raises TaskStopped in the task; it says False where that must wait a moment."""
        self.execution = execution
        self.is_open = False
        self.lock = native.lock()
        self.was_told = False
        self.must_stop = False
        self._raise_there = raise_there
        self._later = later
        self._times = 0

    def run(self, body: Callable[[], Any]) -> Any:
        """Run what Celery runs, in this thread."""
        _here.window = self
        try:
            return body()
        finally:
            _here.window = None
            self.close()

    def open(self) -> None:
        """The body begins."""
        self.is_open = True

    def close(self) -> None:
        """The body has ended; what was raised and has not arrived is taken back."""
        while True:
            try:
                with self.lock:
                    self.is_open = False
                    if self.was_told:
                        self.take_back()
                    return
            except TaskStopped:
                continue  # it has just arrived here

    def take_back(self) -> None:
        """Take back what was raised, but has not arrived."""

    def stop(self) -> None:
        """Stop the body, as soon as that is safe."""
        self.must_stop = True
        self._later.after(0.0, self._try)

    def _try(self) -> None:
        with self.lock:
            if self.execution.is_over or self._times >= _MOST_TIMES:
                return
            told = self.is_open and self._raise_there(self)
            if told:
                self._times += 1
                self.was_told = True
        self._later.after(_AGAIN_SWALLOWED if told else _AGAIN_UNSAFE, self._try)


def is_safe(frame: FrameType | None) -> bool:
    """Whether an exception at this place leaves no lock behind that others need."""
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in _LOCKING):
            return False
        frame = frame.f_back
    return True


def watch_bodies() -> None:
    """See where bodies begin and end. For pools that run them in this process."""
    signals.task_prerun.connect(_on_prerun, weak=False, dispatch_uid="sqlbeat-window")
    signals.task_postrun.connect(_on_postrun, weak=False, dispatch_uid="sqlbeat-window")


def _on_prerun(task_id: str | None = None, **_: Any) -> None:
    window = getattr(_here, "window", None)
    if window is not None and window.execution.req.id == task_id:
        window.open()


def _on_postrun(task_id: str | None = None, **_: Any) -> None:
    window = getattr(_here, "window", None)
    if window is not None and window.execution.req.id == task_id:
        window.close()
