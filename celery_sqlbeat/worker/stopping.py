"""How a running task is stopped, by the kind of its pool. Each way may be asked for from any thread."""

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from celery_sqlbeat.config import stop_timeout
from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.execution import Execution
from celery_sqlbeat.worker.loops import Loop
from celery_sqlbeat.worker.window import Window, is_safe

logger = logging.getLogger(__name__)

_LONGEST_GRACE = 3.0  # seconds between the polite signal and the one that nobody can refuse
_SIGNAL = getattr(signal, "SIGURG", None)  # nobody uses it, and without a handler it does nothing
_later = native.Later()
_solo: list[Window] = []  # at most one: the body that the main thread runs


class ProcessStop:
    """prefork: a signal to the child, and a second one that it cannot swallow."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __call__(self, execution: Execution) -> None:
        """Stop the task; what it leaves behind is reported by the pool once the child is gone."""
        if execution.pid is None:
            return  # no child has it yet; it asks again when one has
        self._signal(execution, None)
        lease = execution.holding.run.lease_seconds if execution.holding else 0.0
        grace = min(_LONGEST_GRACE, stop_timeout(lease) / 2)
        _later.after(grace, lambda: self._signal(execution, signal.SIGKILL))

    def _signal(self, execution: Execution, number: int | None) -> None:
        with execution.lock:  # while it is held, the child gets no other task
            if not execution.is_over:
                self._pool.terminate_job(execution.pid, number)


def thread_window(execution: Execution) -> Window:
    """threads: an exception that arrives with the next bytecode of the task's thread."""
    return _ThreadWindow(execution, _raise_in_thread, _later)


class _ThreadWindow(Window):
    def run(self, body: Callable[[], Any]) -> Any:
        self.thread = threading.get_ident()
        return super().run(body)

    def take_back(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), None)


def _raise_in_thread(window: Window) -> bool:
    thread = window.thread  # type: ignore[attr-defined]
    if not is_safe(sys._current_frames().get(thread)):
        return False
    told = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(window.execution.stop_error)
    )
    return bool(told)


def solo_window(execution: Execution) -> Window:
    """solo: a signal, since the main thread may sleep in a system call; elsewhere as for threads."""
    if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return thread_window(execution)
    if signal.getsignal(_SIGNAL) is not _on_signal:
        signal.signal(_SIGNAL, _on_signal)
    return _SoloWindow(execution, _raise_in_main, _later)


class _SoloWindow(Window):
    def run(self, body: Callable[[], Any]) -> Any:
        _solo.append(self)
        try:
            return super().run(body)
        finally:
            _solo.remove(self)


def _raise_in_main(window: Window) -> bool:
    signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL or 0)
    return window.is_open


def _on_signal(_number: int, frame: FrameType | None) -> None:
    for window in _solo:
        if window.is_open and window.must_stop:
            if is_safe(frame):
                raise window.execution.stop_error("this run must stop")
            _later.after(0.005, lambda: os.kill(os.getpid(), _SIGNAL))  # type: ignore[arg-type]


def green_window(execution: Execution, loop: Loop, kill: Callable[[Any, BaseException], None], current: Any) -> Window:
    """gevent and eventlet: an exception thrown into the green thread, by the thread of the hub."""

    def throw(window: Window) -> bool:
        error = window.execution.stop_error("this run must stop")
        loop.post(lambda: kill(current, error) if window.is_open else None)
        return True

    return Window(execution, throw, _later)
