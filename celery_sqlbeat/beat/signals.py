"""Keeps SIGTERM and SIGINT waiting while a batch is between claim and mark."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STOPPING = {signal.SIGTERM, signal.SIGINT}


@contextmanager
def signals_wait() -> Iterator[None]:
    """Let no stop signal in; one that comes is delivered at the end. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
