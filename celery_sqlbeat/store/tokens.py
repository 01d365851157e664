"""One access token for all connections of a process, fetched in a thread of its own and renewed before it ends.

Whoever needs a connection waits for a token only where there is none at all, and never for long.
"""

import logging
import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from celery_sqlbeat.unpatched import original

RENEW_SECONDS = 300.0  # before its end a token is asked for anew; earlier, credentials give the same one again
RETIRE_SECONDS = 60.0  # before its end a token is used no more: for logins, and for connections made with it
RETRY_SECONDS = 10.0  # between two questions to a credential
_FRESH_SECONDS = 60.0  # a token so young was not refused for its age
_LONGEST_REASON = 400  # characters; a chain of credentials tells of each that it tried

NO_TOKEN = "no access token for the database"  # noqa: S105 - what an error says

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Three parts in base64, as tokens are written; an error of a credential should hold none.
_LIKE_A_TOKEN = re.compile(r"[\w-]{8,}\.[\w-]{8,}\.[\w-]*")


class TokenAway(Exception):
    """No access token for now; the message says why."""


class Token:
    """An access token and its end, on this process's monotonic clock. Never shown."""

    __slots__ = ("_text", "ends_at", "since")

    def __init__(self, text: str, since: float, ends_at: float) -> None:
        self._text = text
        self.since = since
        self.ends_at = ends_at

    def told(self, reader: Callable[[str], T]) -> T:
        """What a reader makes of the text, which is thus in no variable of whoever logs in."""
        return reader(self._text)

    def is_same(self, other: "Token") -> bool:
        """Whether both have the same text."""
        return self._text == other._text

    def __repr__(self) -> str:
        return "<access token>"


class Tokens:
    """The token of one identity.

    `asking` makes a new credential, as the first question and every child process needs one, and returns how to ask it:
    for something with a `token` and an `expires_on` in seconds of the epoch. What is left of a token is counted from
    when it came, so that a jump of this host's clock changes nothing.
    """

    def __init__(
        self,
        asking: Callable[[], Callable[[], Any]],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        start: Callable[[Callable[[], None]], None] = lambda run: _start_thread(run),
    ) -> None:
        self._asking = asking
        self._clock = clock
        self._wall = wall
        self._start = start
        self._token: Token | None = None
        self._refused: Token | None = None
        self._asked_at: float | None = None
        self._begin()

    def current(self, patience: float) -> Token:
        """A token that can be used, or a TokenAway; waits for a first one as long as its patience."""
        self._renew_where_due()
        token = self._usable()
        question = self._question
        if token is None and question is not None:
            question.wait(patience)
            token = self._usable()
        if token is None:
            reason = self._reason or f"Entra ID gave no token within {patience:g} s"
            raise TokenAway(f"{NO_TOKEN}: {reason}")
        return token

    def is_retired(self, token: Token) -> bool:
        """Whether a connection that was made with this token must be used no more; renews it in time."""
        self._renew_where_due()
        return not self._is_alive(token) or token is self._refused

    def refused(self, token: Token) -> bool:
        """Take note that the server refused it; whether another one may help. A new one or the same again does not."""
        seen_before = self._refused is not None and self._refused.is_same(token)
        if seen_before or self._clock() - token.since < _FRESH_SECONDS:
            return False
        self._refused = token
        self._asked_at = None  # ask again, however soon
        return True

    def _begin(self) -> None:
        """At first, and in a child process: the parent's thread, lock and connections are not here."""
        self._pid = os.getpid()
        self._lock = original("_thread", "allocate_lock")()
        self._ask: Callable[[], Any] | None = None
        self._question: _Question | None = None
        self._asked_at = None
        self._reason: str | None = None

    def _is_alive(self, token: Token) -> bool:
        return token.ends_at - self._clock() > RETIRE_SECONDS

    def _usable(self) -> Token | None:
        token = self._token
        return token if token is not None and token is not self._refused and self._is_alive(token) else None

    def _renew_where_due(self) -> None:
        if os.getpid() != self._pid:
            self._begin()
        now = self._clock()
        token = self._usable()
        if token is not None and token.ends_at - now > RENEW_SECONDS:
            return
        if self._asked_at is not None and now - self._asked_at < RETRY_SECONDS:
            return
        with self._lock:
            if self._question is not None and not self._question.is_answered:
                return
            if self._ask is None:
                self._ask = self._asking()
            self._asked_at = now
            self._question = question = _Question(self._ask, self._came, self._failed)
        self._start(question.put)

    def _came(self, text: str, expires_on: float) -> None:
        now = self._clock()
        self._token, self._reason = Token(text, now, now + expires_on - self._wall()), None

    def _failed(self, error: Exception) -> None:
        reason = _LIKE_A_TOKEN.sub("***", " ".join(f"{type(error).__name__}: {error}".split()))
        if len(reason) > _LONGEST_REASON:
            reason = reason[: _LONGEST_REASON - 3] + "..."
        self._reason = reason
        logger.warning("Entra ID gives no token, it is asked again in %g s at the earliest: %s", RETRY_SECONDS, reason)


class _Question:
    """One question to a credential, which may take long, or never be answered.

    Put in a native thread: a green one would get nowhere while the thread that wants the token does not yield.
    """

    def __init__(
        self,
        ask: Callable[[], Any],
        came: Callable[[str, float], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._ask, self._came, self._failed = ask, came, failed
        self.is_answered = False
        self._unanswered = original("_thread", "allocate_lock")()
        self._unanswered.acquire()

    def put(self) -> None:
        try:
            self._came(*self._ask()[:2])
        except Exception as error:
            self._failed(error)
        finally:
            self.is_answered = True
            self._unanswered.release()

    def wait(self, seconds: float) -> None:
        """Until it is answered, or for so long."""
        if self._unanswered.acquire(True, seconds):
            self._unanswered.release()


def _start_thread(run: Callable[[], None]) -> None:
    original("_thread", "start_new_thread")(run, ())
