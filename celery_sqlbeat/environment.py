"""Give the process what its machine has: clocks, chance, variables, native threads, signals.

No other module asks the standard library for these; tests and the simulation replace them here.
"""

import _thread
import gc
import importlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from types import FrameType
from typing import Any, NamedTuple
from uuid import UUID

from celery_sqlbeat import events

_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))  # the two highest bits of a UUID's ninth byte are 10
_PER_MILLISECOND = 4096  # the 12 bits after the version number count within a batch
_LONGEST_SLEEP = 60.0  # seconds; nothing depends on it


monotonic: Callable[[], float] = time.monotonic
"""Seconds of a clock that nobody sets; the built-in itself, since each task asks it often."""

chance: Callable[[], float] = random.random
"""A number from 0.0 up to 1.0 that protects no secret: jitter, back-off."""


def now() -> datetime:
    """Return the time of this host's clock in UTC. No claim or lease is decided by it."""
    return datetime.now(timezone.utc)


def unix_time() -> float:
    """Return the seconds since 1970 by this host's clock, which may be set."""
    return time.time()


def unix_nanoseconds() -> int:
    """Return the nanoseconds since 1970 by this host's clock, which may be set."""
    return time.time_ns()


def random_hex(count: int) -> str:
    """Return this many random bytes in hexadecimal; fit for a secret."""
    return os.urandom(count).hex()


def variables() -> Mapping[str, str]:
    """Return the environment variables of this process."""
    return os.environ


def is_disabled() -> bool:
    """Return whether this process is to be as if this package were not installed."""
    return variables().get("SQLBEAT_DISABLE", "0") not in ("", "0")


def original(module: str, name: str) -> Any:
    """Return a member of a module as it was before gevent or eventlet patched it."""
    if "gevent.monkey" in sys.modules:
        from gevent.monkey import get_original

        return get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        from eventlet.patcher import original as unpatched

        return getattr(unpatched(module), name)
    return getattr(importlib.import_module(module), name)


_reading_frames = _thread.allocate_lock()


def frames() -> Mapping[int, FrameType]:
    """Return what each thread runs, by its id.

    Before Python 3.11.8 a garbage collection in the middle of that waits for itself for ever.
    """
    with _reading_frames:
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if is_collecting:
                gc.enable()


class Ids:
    """Makes ids in batches: run ids stay together in an index, claim ids cannot be guessed."""

    def __init__(
        self,
        random_bytes: Callable[[int], bytes] = os.urandom,
        milliseconds: Callable[[], int] = lambda: unix_nanoseconds() // 1_000_000,
    ) -> None:
        self._random_bytes = random_bytes
        self._milliseconds = milliseconds

    def run_ids(self, count: int) -> list[str]:
        """Make this many run ids, UUIDs of version 7 in ascending order."""
        noise = bytearray(self._random_bytes(8 * count))
        noise[::8] = noise[::8].translate(_VARIANT)
        tails = noise.hex()
        now = self._milliseconds()
        made: list[str] = []
        while len(made) < count:
            stamp = f"{now + len(made) // _PER_MILLISECOND:012x}"
            head = f"{stamp[:8]}-{stamp[8:]}-7"
            first = len(made)
            made += [
                f"{head}{at - first:03x}-{tails[16 * at : 16 * at + 4]}-{tails[16 * at + 4 : 16 * at + 16]}"
                for at in range(first, min(count, first + _PER_MILLISECOND))
            ]
        return made

    def claim_ids(self, count: int) -> list[str]:
        """Make this many claim ids, of which all 128 bits are random."""
        noise = self._random_bytes(16 * count).hex()
        return [
            f"{noise[at : at + 8]}-{noise[at + 8 : at + 12]}-{noise[at + 12 : at + 16]}-"
            f"{noise[at + 16 : at + 20]}-{noise[at + 20 : at + 32]}"
            for at in range(0, 32 * count, 32)
        ]

    def random_id(self) -> str:
        """Make one random id, for a node or a start."""
        return str(UUID(bytes=self._random_bytes(16), version=4))


class Machine(NamedTuple):
    """Clocks and chance of one process. The simulation gives each of its processes its own."""

    clock: Callable[[], float] = monotonic
    wall: Callable[[], datetime] = now
    random: Callable[[], float] = chance
    ids: Ids = Ids()  # without state: one for all


THIS_MACHINE = Machine()


class Wakeup:
    """Lets a native thread sleep until others wake it; `threading` may be patched."""

    def __init__(self, allocate_lock: Callable[[], Any] = _thread.allocate_lock) -> None:
        self._asleep = allocate_lock()
        self._asleep.acquire()
        self._guard = allocate_lock()
        self._rung = False

    def ring(self) -> None:
        """Wake the sleeper; if nobody sleeps, the next sleep ends at once."""
        if self._rung:
            return  # the sleeper has not woken from the last ring, and reads everything when it does
        with self._guard:
            if not self._rung:
                self._rung = True
                self._asleep.release()

    def sleep(self, seconds: float) -> None:
        """Sleep for this long at most."""
        if seconds > 0 and not self._rung:
            self._asleep.acquire(True, min(seconds, _LONGEST_SLEEP))
        with self._guard:
            if self._rung:
                self._rung = False
                self._asleep.acquire(False)


lock: Callable[[], Any] = original("_thread", "allocate_lock")
"""Makes a lock between native threads, also under gevent or eventlet. Each message takes one."""

thread_id: Callable[[], int] = original("_thread", "get_ident")
"""Return the id of the calling native thread, not of a green one."""


def wakeup() -> Wakeup:
    """Make a wakeup for a native thread."""
    return Wakeup(original("_thread", "allocate_lock"))


def is_patched() -> bool:
    """Return whether gevent or eventlet has replaced native threads by green ones."""
    return _thread.start_new_thread is not original("_thread", "start_new_thread")


def start_thread(work: Callable[[], None]) -> None:
    """Run this in a native thread that does not keep the process alive.

    A task that computes for a minute stops every green thread; heartbeats go on in a native one.
    """
    original("_thread", "start_new_thread")(work, ())


class Later:
    """Calls actions later, in a native thread that lives only while there is an action to call."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = lock()
        self._wakeup = wakeup()
        self._pending: list[tuple[float, Callable[[], None]]] = []
        self._is_running = False

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call this in so many seconds; an error in it is logged."""
        with self._lock:
            self._pending.append((self._clock() + seconds, action))
            must_start, self._is_running = not self._is_running, True
        if must_start:
            start_thread(self._run)
        else:
            self._wakeup.ring()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    self._is_running = False
                    return
                at = self._clock()
                due = sorted((call for call in self._pending if call[0] <= at), key=lambda call: call[0])
                self._pending = [call for call in self._pending if call[0] > at]
                wait = min((call[0] for call in self._pending), default=at) - at
            for _, action in due:
                call_safely(action)
            if not due:
                self._wakeup.sleep(wait)


def call_safely(action: Callable[[], None]) -> None:
    """Call this; an error in it is logged and stops nothing else."""
    try:
        action()
    except Exception as error:
        events.fault_caught(doing="call back", error=error, subject=_name_of(action))


def _name_of(action: Any) -> str:
    # Never its repr: that of a bound method shows its object, and a request's shows arguments.
    while isinstance(action, partial):
        action = action.func
    return str(getattr(action, "__qualname__", type(action).__name__))


_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_came_signals: list[int] = []  # signals that another thread has taken meanwhile


@contextmanager
def signals_wait() -> Iterator[None]:
    """Hold stop signals back until the end of the block; only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _came_signals.clear()
    before = _exchange_handlers(dict.fromkeys(_STOP_SIGNALS, lambda number, _: _came_signals.append(number)))
    masked = _mask_stop_signals()
    try:
        yield
    finally:
        try:
            _exchange_handlers(before)  # one that another thread takes at this moment may raise out of here
        finally:
            if masked is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        came = _came_signals.copy()
        _came_signals.clear()
        for number in came:
            signal.raise_signal(number)


def stop_is_waiting() -> bool:
    """Return whether a stop signal is held back: nothing should wait long any more."""
    pending = signal.sigpending() if hasattr(signal, "sigpending") else set()
    return bool(_came_signals) or not _STOP_SIGNALS.isdisjoint(pending)


def _exchange_handlers(handlers: dict[Any, Any]) -> dict[Any, Any]:
    """Set the handlers of signals that have one in Python; returns the handlers before."""
    before = {number: signal.getsignal(number) for number in handlers}
    return {number: signal.signal(number, handlers[number]) for number, old in before.items() if callable(old)}


def _mask_stop_signals() -> set[signal.Signals] | None:
    """Block the signals for this thread: without a handler in Python they end the process."""
    if not hasattr(signal, "pthread_sigmask"):
        return None
    return {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)}
