"""Pool of sessions: each has one user at a time, and none crosses a fork or is used when spent."""

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from celery_sqlbeat import environment


class Closeable(Protocol):
    """A session with a server."""

    def close(self) -> None:
        """Close its connection; never raises."""


S = TypeVar("S", bound=Closeable)

_MOST_IDLE = 4  # sessions kept open; beat and worker need one, an administrator's program a few
_LONGEST_DRAIN = 1.0  # seconds that a fork waits for the sessions that are lent

# Sessions of a parent process. A child must neither use nor close them, and to be collected would
# close them.
_INHERITED: list[Closeable] = []
_OF_THREAD = environment.original("_thread", "_local")()  # of a native one, not of a green one


def _this_thread() -> object:
    """Return what stands for the calling native thread; its id may be that of an ended one."""
    return vars(_OF_THREAD).setdefault("thread", object())


class SessionPool(Generic[S]):
    """Keeps idle sessions for the next borrower.

    Where sessions do not survive a fork, all are closed before it. SQLite notes a process's locks
    in memory, which the child inherits: the child would take the parent's locks for its own, and
    what it commits would be lost.
    """

    def __init__(
        self,
        connect: Callable[[], S],
        survive_fork: bool = True,
        is_spent: Callable[[S], bool] = lambda _: False,
    ) -> None:
        self._connect = connect
        self._is_spent = is_spent
        self._thread: Callable[[], object] = _this_thread if environment.is_patched() else lambda: None
        # With the native thread that each may be lent to. Under gevent or eventlet a socket belongs
        # to the event loop of the thread that made it, and fails in any other.
        self._idle: list[tuple[object, S]] = []
        self._forget()
        if not survive_fork:
            _FORK_SHY.add(self)

    def acquire(self) -> S:
        """Acquire an idle session, or a new one."""
        session = self._idle_session()
        if session is not None:
            return session
        with self._lock:
            self._lent += 1
        try:
            return self._connect()
        except BaseException:
            self._returned()
            raise

    def _idle_session(self) -> S | None:
        if os.getpid() != self._pid:
            self._forget()
        while True:
            with self._lock:
                session = self._newest_of_this_thread()
                if session is None:
                    return None
                if not self._is_spent(session):
                    self._lent += 1
                    return session
            session.close()

    def _newest_of_this_thread(self) -> S | None:
        here = self._thread()
        at = next((at for at in reversed(range(len(self._idle))) if self._idle[at][0] == here), None)
        return None if at is None else self._idle.pop(at)[1]

    def release(self, session: S) -> None:
        """Take back a session that is in order."""
        if os.getpid() != self._pid:
            self.discard(session)
            return
        surplus: S | None = None
        with self._lock:
            here = self._thread()
            self._idle.append((here, session))
            self._lent -= 1
            if len(self._idle) > _MOST_IDLE:  # rather one of another thread, which may have ended
                surplus = self._idle.pop(next((at for at, (own, _) in enumerate(self._idle) if own != here), -1))[1]
        if surplus is not None:
            surplus.close()

    def discard(self, session: S) -> None:
        """Close a session that is not in order, or not needed any more."""
        session.close()
        self._returned()

    def close(self) -> None:
        """Close what is idle."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.close()

    def drain(self) -> None:
        """Close everything before a fork, and give out no session until `resume`."""
        deadline = environment.monotonic() + _LONGEST_DRAIN
        while True:
            self.close()
            self._lock.acquire()
            if not (self._lent or self._idle) or environment.monotonic() > deadline:
                return
            self._lock.release()
            time.sleep(0.001)

    def resume(self) -> None:
        """Give out sessions again after a fork, in the parent."""
        self._lock.release()

    def _returned(self) -> None:
        with self._lock:
            self._lent -= 1

    def _forget(self) -> None:
        _INHERITED.extend(session for _, session in self._idle)
        self._pid = os.getpid()
        self._lock = threading.Lock()  # a lock that the parent's other thread held would never open in the child
        self._idle = []
        self._lent = 0


_FORK_SHY: "weakref.WeakSet[SessionPool[Any]]" = weakref.WeakSet()
_drained: list[SessionPool[Any]] = []


def _before_fork() -> None:
    for pool in sorted(_FORK_SHY, key=id):  # two threads that fork at once take the locks in one order
        pool.drain()
        _drained.append(pool)


def _after_fork_in_parent() -> None:
    while _drained:
        _drained.pop().resume()


def _after_fork_in_child() -> None:
    while _drained:
        _drained.pop()._forget()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
