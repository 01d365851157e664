"""How a running task is stopped, by the kind of its pool. Safe to call from any thread.

In pools of this process an exception is raised from the beginning of the body to `task_postrun`.
Before it would hit Celery, which would call it a failure; later it would hit the task that comes
next in the thread. It is not raised where it would leave a lock of `logging` or of imports taken.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from celery import signals

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.event_loop import Loop
from celery_sqlbeat.celery_bridge.pools import signal_process
from celery_sqlbeat.celery_bridge.tasks import is_wrapped
from celery_sqlbeat.config.settings import stop_timeout
from celery_sqlbeat.worker.task.body import here
from celery_sqlbeat.worker.task.stops import TaskCancelled, TaskStopped
from celery_sqlbeat.worker.task.tracking import TrackedRequest

_AGAIN_UNSAFE = 0.005  # seconds; a log line or an import is soon over
_AGAIN_SWALLOWED = 2.0  # seconds that a task gets for its clean-up before it is told once more
_MOST_TIMES = 10  # a task that swallows so many will not be told by an eleventh
_LOCKING = ("logging/", "importlib/_bootstrap", "<frozen importlib")  # an exception there leaves locks for ever


class InterruptibleBody:
    """Guards one body in the thread that runs it, so that an exception hits nothing else."""

    is_killable = False
    """Whether Celery itself can end a task of this pool."""

    def __init__(
        self, execution: TrackedRequest, raise_there: Callable[["InterruptibleBody"], bool], later: environment.Later
    ) -> None:
        """`raise_there` raises its `stop_error` in the task; False where that must wait."""
        self.execution = execution
        self.is_open = False
        self.lock = environment.lock()
        self.was_told = False
        self.must_stop = False
        self._raise_there = raise_there
        self._later = later
        self._times = 0

    def run(self, body: Callable[[], Any]) -> Any:
        """Run what Celery runs, in this thread."""
        here.body_guard = self
        try:
            return body()
        finally:
            here.body_guard = None
            self.close()

    def open(self) -> None:
        """Allow exceptions: the body begins."""
        self.is_open = True

    def close(self) -> None:
        """Allow no more, and take back what has not arrived: the body has ended."""
        while True:
            try:
                with self.lock:
                    self.is_open = False
                    if self.was_told:
                        self.take_back()
                    return
            except (TaskStopped, TaskCancelled):
                continue  # it has just arrived here

    def take_back(self) -> None:
        """Take back an exception that has not arrived."""

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
    """Return whether an exception in this frame leaves no lock behind that others need."""
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in _LOCKING):
            return False
        frame = frame.f_back
    return True


def watch_bodies() -> None:
    """Guard bodies from now on, in pools that run them in this process."""
    signals.task_prerun.connect(_on_prerun, weak=False, dispatch_uid="sqlbeat-body")
    signals.task_postrun.connect(_on_postrun, weak=False, dispatch_uid="sqlbeat-body")


def _on_prerun(task_id: str | None = None, task: Any = None, **_: Any) -> None:
    if is_wrapped(task):
        return  # its body opens the guard by itself
    body_guard = getattr(here, "body_guard", None)
    if body_guard is not None and body_guard.execution.req.id == task_id:
        body_guard.open()


def _on_postrun(task_id: str | None = None, **_: Any) -> None:
    body_guard = getattr(here, "body_guard", None)
    if body_guard is not None and body_guard.execution.req.id == task_id:
        body_guard.close()


_LONGEST_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_SIGNAL = getattr(signal, "SIGURG", None)  # unused elsewhere, and ignored without a handler
_later = environment.Later()
_solo: list[InterruptibleBody] = []  # at most one: the body that the main thread runs


class ProcessStop:
    """Stops a task of prefork by SIGTERM, and by SIGKILL if its process does not end."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __call__(self, execution: TrackedRequest) -> None:
        """Stop the task; the pool reports it once the process is gone."""
        if execution.pid is None:
            return  # no child has it yet; it asks again when one has
        self._signal(execution, None)
        lease = execution.run_lease.run.lease_seconds if execution.run_lease else 0.0
        grace = min(_LONGEST_GRACE, stop_timeout(lease) / 2)
        _later.after(grace, lambda: self._signal(execution, signal.SIGKILL))

    def _signal(self, execution: TrackedRequest, number: int | None) -> None:
        with execution.lock:  # while it is held, the child gets no other task
            if not execution.is_over:
                signal_process(self._pool, execution.pid, number)


def thread_guard(execution: TrackedRequest) -> InterruptibleBody:
    """Return the guard of a body in a thread: an exception arrives with its next bytecode."""
    return _ThreadGuard(execution, _raise_in_thread, _later)


class _ThreadGuard(InterruptibleBody):
    def run(self, body: Callable[[], Any]) -> Any:
        self.thread = threading.get_ident()
        return super().run(body)

    def take_back(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), None)


def _raise_in_thread(body_guard: InterruptibleBody) -> bool:
    thread = body_guard.thread  # type: ignore[attr-defined]
    if not is_safe(environment.frames().get(thread)):
        return False
    told = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(body_guard.execution.stop_error)
    )
    return bool(told)


def solo_guard(execution: TrackedRequest) -> InterruptibleBody:
    """Return the guard of a body in solo: a signal interrupts a system call of the main thread."""
    if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return thread_guard(execution)
    if signal.getsignal(_SIGNAL) is not _on_signal:
        signal.signal(_SIGNAL, _on_signal)
    return _SoloGuard(execution, _raise_in_main, _later)


class _SoloGuard(InterruptibleBody):
    def run(self, body: Callable[[], Any]) -> Any:
        _solo.append(self)
        try:
            return super().run(body)
        finally:
            _solo.remove(self)


def _raise_in_main(body_guard: InterruptibleBody) -> bool:
    signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL or 0)
    return body_guard.is_open


def _on_signal(_number: int, frame: FrameType | None) -> None:
    for body_guard in _solo:
        if body_guard.is_open and body_guard.must_stop:
            if is_safe(frame):
                raise body_guard.execution.stop_error("this run must stop")
            _later.after(0.005, lambda: os.kill(os.getpid(), _SIGNAL))  # type: ignore[arg-type]


def green_guard(
    execution: TrackedRequest, loop: Loop, kill: Callable[[Any, BaseException], None], current: Any
) -> InterruptibleBody:
    """Return the guard of a body in a green thread, into which the hub's thread throws."""

    def throw(body_guard: InterruptibleBody) -> bool:
        error = body_guard.execution.stop_error("this run must stop")
        loop.post(lambda: kill(current, error) if body_guard.is_open else None)
        return True

    return InterruptibleBody(execution, throw, _later)
