"""A connection to PostgreSQL that waits for no answer for ever, and can be asked without waiting for one at all."""

import contextlib
import selectors
import time
from collections.abc import Generator
from typing import Any, NoReturn

import psycopg

from celery_sqlbeat.store.session import Row


class Patient(psycopg.Connection[Row]):
    """A connection that gives up a server which takes no notice of its own statement_timeout: it stands still."""

    patience = 10.0  # seconds; the dialect sets it
    only_sends = False
    """Set for a statement that is to be sent, and whose answer somebody waits for later."""
    _asked: tuple[Generator[Any, Any, Any], int, float] | None = None
    """What goes on, what it waits for, and when it is given up."""

    def wait(self, gen: Generator[Any, Any, Any], *_: Any, **__: Any) -> Any:
        """As psycopg waits, but not for ever. What the session then is in is unknown; it is not used again."""
        try:
            return self._drive(gen, next(gen), time.monotonic() + self.patience)
        except StopIteration as done:
            return done.value

    def wait_for_answer(self) -> None:
        """Wait for that of the statement that was only sent."""
        asked, self._asked = self._asked, None
        if asked is not None:
            with contextlib.suppress(StopIteration):
                self._drive(*asked)

    def is_answered(self) -> bool:
        """Take what has come of the statement that was only sent. Whether that is all."""
        if self._asked is None:
            return True
        gen, _, end = self._asked
        try:
            self._asked = gen, gen.send(selectors.EVENT_READ), end
        except StopIteration:
            self._asked = None
            return True
        if time.monotonic() >= end:
            self._give_up()
        return False

    def _drive(self, gen: Generator[Any, Any, Any], events: int, end: float) -> None:
        """Go on until its StopIteration, or until there is only an answer left to wait for."""
        with _selector() as selector:
            selector.register(self.pgconn.socket, events)
            while not (self.only_sends and events == selectors.EVENT_READ):
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready and time.monotonic() >= end:
                    self._give_up()
                if ready:
                    wanted = gen.send(ready[0][1])
                    if wanted != events:
                        selector.modify(self.pgconn.socket, events := wanted)
        self._asked = gen, events, end

    def _give_up(self) -> NoReturn:
        self.pgconn.finish()
        raise psycopg.OperationalError(f"no answer within {self.patience:g} s")


def _selector() -> selectors.BaseSelector:
    """The usual one. But epoll is four calls that each wait for Python's lock, beside a busy thread for long."""
    usual = selectors.DefaultSelector
    return selectors.PollSelector() if usual is getattr(selectors, "EpollSelector", None) else usual()
