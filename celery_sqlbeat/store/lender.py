"""Lends sessions: each to one borrower at a time, none to a child of the process that opened it."""

import os
import threading
from collections.abc import Callable

from celery_sqlbeat.store.session import Session

_MOST_IDLE = 4  # sessions kept open; beat and worker need one, an administrator's program a few

# Sessions of a parent process. A child must neither use nor close them, and to be collected would close them.
_INHERITED: list[Session] = []


class Lender:
    """Keeps idle sessions for the next borrower."""

    def __init__(self, connect: Callable[[], Session]) -> None:
        self._connect = connect
        self._idle: list[Session] = []
        self._forget()

    def borrow(self) -> Session:
        """An idle session, or a new one."""
        if os.getpid() != self._pid:
            _INHERITED.extend(self._idle)
            self._forget()
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def give_back(self, session: Session) -> None:
        """Take back a session that is in order."""
        with self._lock:
            if os.getpid() == self._pid and len(self._idle) < _MOST_IDLE:
                self._idle.append(session)
                return
        self.discard(session)

    def discard(self, session: Session) -> None:
        """Close a session that is not in order, or not needed any more."""
        session.close()

    def close(self) -> None:
        """Close what is idle."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()  # a lock that the parent's other thread held would never open in the child
        self._idle = []
