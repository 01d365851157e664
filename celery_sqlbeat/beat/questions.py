"""Asks what is other people's code, between a reading and the claim: never while rows are locked, never in beat's way.

Each question runs in a thread. One that takes long holds up nobody but its own job; the log names it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from celery_sqlbeat.durations import span

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 0.05  # for answers that come at once, as most do
_SLOW_SECONDS = 1.0  # after so long the other questions get another thread
_TELL_SECONDS, _TELL_AGAIN_SECONDS = 5.0, 300.0  # when a question without an answer is told in the log, and told again
_SHORTEST_LOOK, _LONGEST_LOOK, _LOOK_SHARE = 0.02, 1.0, 0.1  # seconds, seconds, and of the time that it takes already


class _Question(NamedTuple):
    """What is asked about one job."""

    key: str
    about: Hashable
    ask: Callable[[], Any]
    name: str


class _Pending:
    """A question without an answer."""

    def __init__(self, question: _Question, now: float) -> None:
        self.question, self.since = question, now
        self.tell_at = now + _TELL_SECONDS
        self.is_running = False


class Questions:
    """The questions of one beat and their answers: one of each at a time for each key."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._pending: dict[str, _Pending] = {}
        self._new: list[_Question] = []
        self._queue: deque[_Pending] = deque()
        self._answers: dict[str, tuple[Hashable, Any]] = {}
        self._threads = 0
        self._has_news = False

    def answer(self, key: str, about: Hashable, ask: Callable[[], Any], name: str) -> Any:
        """The answer; None where it is not known yet: then `settle` asks."""
        with self._changed:
            known = self._answers.get(key)
            if known is not None and known[0] == about:
                return known[1]
            if key not in self._pending and all(one.key != key for one in self._new):
                self._new.append(_Question(key, about, ask, name))
            return None

    def settle(self, seconds: float = _WAIT_SECONDS) -> bool:
        """Ask what is to be asked, and wait so long for the answers; whether there are any."""
        with self._changed:
            new, self._new = self._new, []
            if not new:
                return False
            now = self._clock()
            for question in new:
                self._pending[question.key] = pending = _Pending(question, now)
                self._queue.append(pending)
            self._need_threads(now)
            keys = {question.key for question in new}
            self._changed.wait_for(lambda: not keys & self._pending.keys(), seconds)
            return self._take_news()

    def pending(self) -> set[str]:
        """The keys of the questions that have no answer: their jobs wait, here."""
        with self._changed:
            return set(self._pending)

    def has_news(self) -> bool:
        """Whether answers have come since the last time; tells in the log which ones do not come."""
        with self._changed:
            now = self._clock()
            self._need_threads(now)
            for one in self._pending.values():
                if now >= one.tell_at:
                    one.tell_at = now + _TELL_AGAIN_SECONDS
                    logger.error(
                        "the schedule of %s has not said for %s whether it is due: its job waits, all others go on",
                        one.question.name,
                        span(now - one.since),
                    )
            return self._take_news()

    @property
    def seconds_left(self) -> float | None:
        """How long until somebody should look for answers; None where none is awaited."""
        with self._changed:
            if not self._pending:
                return None
            age = self._clock() - min(one.since for one in self._pending.values())
            return min(max(_SHORTEST_LOOK, age * _LOOK_SHARE), _LONGEST_LOOK)

    def _take_news(self) -> bool:
        has_news, self._has_news = self._has_news, False
        return has_news

    def _need_threads(self, now: float) -> None:
        """A thread for what is queued, unless one is there that will come to it soon."""
        if not self._queue:
            return
        slow = sum(one.is_running and now >= one.since + _SLOW_SECONDS for one in self._pending.values())
        if self._threads <= slow:
            self._threads += 1
            threading.Thread(target=self._work, name="sqlbeat-schedules", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._threads -= 1
                    return
                pending = self._queue.popleft()
                pending.is_running = True
                pending.since = self._clock()
                pending.tell_at = pending.since + _TELL_SECONDS
            question = pending.question
            try:
                answer = question.ask()
            except BaseException:  # SystemExit of a thread ends nothing, and would leave the question open for ever
                logger.exception("the schedule of %s cannot be asked", question.name)
                answer = None
            with self._changed:
                self._pending.pop(question.key, None)
                if answer is not None:
                    self._answers[question.key] = question.about, answer
                self._has_news = True
                self._changed.notify_all()
