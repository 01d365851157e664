"""Keeps SIGTERM and SIGINT waiting while a batch is between claim and mark."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STOPPING = {signal.SIGTERM, signal.SIGINT}
_came: list[int] = []  # what another thread has taken while signals wait


@contextmanager
def signals_wait() -> Iterator[None]:
    """Let no stop signal in; one that comes is delivered at the end. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _came.clear()
    before = _exchange(dict.fromkeys(_STOPPING, lambda number, _: _came.append(number)))
    masked = _mask()
    try:
        yield
    finally:
        try:
            _exchange(before)  # one that another thread takes at this moment may raise out of here
        finally:
            if masked is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        came = _came.copy()
        _came.clear()
        for number in came:
            signal.raise_signal(number)


def stop_is_waiting() -> bool:
    """Whether a signal to stop has come and waits: nobody should wait long for anything any more."""
    pending = signal.sigpending() if hasattr(signal, "sigpending") else set()
    return bool(_came) or not _STOPPING.isdisjoint(pending)


def _exchange(handlers: dict[Any, Any]) -> dict[Any, Any]:
    """Set handlers written in Python; returns those before. Another thread, which tools start, may take the signal."""
    before = {number: signal.getsignal(number) for number in handlers}
    return {number: signal.signal(number, handlers[number]) for number, old in before.items() if callable(old)}


def _mask() -> set[signal.Signals] | None:
    """Block the signals for this thread, for those that end the process without a handler in Python."""
    if not hasattr(signal, "pthread_sigmask"):
        return None
    return {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)}
