"""Ask custom schedule classes when their entries are due: in threads, never while rows are locked.

Only a beat that has the entry can ask. The class is foreign code: whatever it does, the answer is
an instant.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.schedules import clock_set
from celery_sqlbeat.config.validation import span
from celery_sqlbeat.schedule import COALESCE, OVERLAP, Fire, Gap, Misfire, Skip

_ASK = "ask a schedule whether it is due"
_WAIT_SECONDS = 0.05  # for answers that come at once, as most do
_SLOW_SECONDS = 1.0  # after which the other questions get another thread
_TELL_SECONDS, _TELL_AGAIN_SECONDS = 5.0, 300.0  # until an open question is logged, and logged again
# Seconds, seconds, and the share of the time that the oldest question has been open.
_SHORTEST_POLL, _LONGEST_POLL, _POLL_SHARE = 0.02, 1.0, 0.1
_AGAIN_SECONDS = 60.0  # after an error: long enough not to flood the log
_SOONEST = 0.1  # seconds; a class that is due "at once", and is not, must not keep beat busy
_LATEST = 366 * 86400.0  # seconds; then it is asked again
_CLOCK_SECONDS = 5.0  # by which clocks of hosts may differ; a greater difference is compensated


class _Question(NamedTuple):
    """A question about one job."""

    key: str
    about: Hashable
    ask: Callable[[], Any]
    name: str


class _Pending:
    """A question that has no answer yet."""

    def __init__(self, question: _Question, now: float) -> None:
        self.question, self.since = question, now
        self.tell_at = now + _TELL_SECONDS
        self.is_running = False


class ScheduleQuestions:
    """Holds the questions of one beat and their answers, one of each at a time for each key.

    Each question runs in a thread. One that takes long holds up its own job only, and is logged.
    """

    def __init__(self, clock: Callable[[], float] = environment.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._pending: dict[str, _Pending] = {}
        self._new: list[_Question] = []
        self._queue: deque[_Pending] = deque()
        self._answers: dict[str, tuple[Hashable, Any]] = {}
        self._threads = 0
        self._has_news = False
        self.is_idle = True
        """Whether there is nothing to ask, no answer to wait for, and none that is new."""

    def answer(self, key: str, about: Hashable, ask: Callable[[], Any], name: str) -> Any:
        """Return the answer; None where it is not known yet, and `ask_new` is to ask."""
        with self._changed:
            known = self._answers.get(key)
            if known is not None and known[0] == about:
                return known[1]
            if key not in self._pending and all(question.key != key for question in self._new):
                self._new.append(_Question(key, about, ask, name))
                self.is_idle = False
            return None

    def ask_new(self, seconds: float = _WAIT_SECONDS) -> bool:
        """Ask the new questions, wait so long for the answers, and return whether there are any."""
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
        """Return the keys of the questions without an answer: their jobs wait."""
        with self._changed:
            return set(self._pending)

    def has_news(self) -> bool:
        """Return whether answers have come since the last call; log those that are overdue."""
        with self._changed:
            now = self._clock()
            self._need_threads(now)
            for pending in self._pending.values():
                if now >= pending.tell_at:
                    pending.tell_at = now + _TELL_AGAIN_SECONDS
                    since = span(now - pending.since)
                    events.fault_caught(
                        doing=_ASK,
                        subject=pending.question.name,
                        error=f"it has not said for {since} whether it is due: its job waits, all others go on",
                    )
            return self._take_news()

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the next poll for answers; None where none is awaited."""
        with self._changed:
            if not self._pending:
                return None
            age = self._clock() - min(pending.since for pending in self._pending.values())
            return min(max(_SHORTEST_POLL, age * _POLL_SHARE), _LONGEST_POLL)

    def _take_news(self) -> bool:
        has_news, self._has_news = self._has_news, False
        self.is_idle = not (self._pending or self._new)
        return has_news

    def _need_threads(self, now: float) -> None:
        """Start a thread for the queue, unless a running one will soon be free."""
        if not self._queue:
            return
        slow = sum(pending.is_running and now >= pending.since + _SLOW_SECONDS for pending in self._pending.values())
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
            except BaseException as error:  # SystemExit, too, must not leave the question open for ever
                events.fault_caught(doing=_ASK, subject=question.name, error=error)
                answer = None
            with self._changed:
                self._pending.pop(question.key, None)
                if answer is not None:
                    self._answers[question.key] = question.about, answer
                self._has_news = True
                self._changed.notify_all()


class DueAnswer(NamedTuple):
    """Whether the entry is due now, and when to ask again."""

    is_due: bool
    next_at: datetime


def ask_schedule(entry: Any, last_run_at: datetime | None, now: datetime) -> DueAnswer:
    """Ask an entry whether it is due at `now`, an instant of the server's clock.

    An entry that never ran counts from now, as in stock beat.
    """
    try:
        with clock_set(entry.schedule, now):
            entry.last_run_at = _in_its_clock(entry, last_run_at or now, now)
            due, seconds = entry.is_due()
        wait = float(seconds)
        if math.isnan(wait):
            raise ValueError("is_due() returned nan seconds")
    except Exception as error:
        events.fault_caught(doing=_ASK, subject=entry.name, error=error)
        return DueAnswer(False, now + timedelta(seconds=_AGAIN_SECONDS))
    return DueAnswer(bool(due), now + timedelta(seconds=min(max(wait, _SOONEST), _LATEST)))


class CustomSlots:
    """The slots of one entry, for a planner of claims.

    No misfire policy applies: a custom schedule class knows no missed slots.
    """

    def __init__(
        self, entry: Any, since: datetime | None = None, key: str = "", questions: ScheduleQuestions | None = None
    ) -> None:
        """Ask through `questions`, by the `key` of the entry, outside of the transaction.

        Without `questions` its class is asked at once. An entry that never ran counts from `since`.
        """
        self._entry = entry
        self._key = key
        self._questions = questions
        self._since = since or environment.now()
        self._claimed: tuple[datetime, datetime] | None = None
        """When it was last due here, and when to ask again."""

    def first_slot(self, added_at: datetime, start: datetime | None = None, key: str = "") -> datetime | None:
        """Return when a row without a next run may be due; None without an answer."""
        answer = self._ask(added_at, self._since, added_at)
        if answer is None:
            return None
        return max(added_at if answer.is_due else answer.next_at, start or added_at)

    def plan(
        self,
        due: datetime,
        now: datetime,
        last_run: datetime | None = None,
        misfire: Misfire = COALESCE,
        key: str = "",
    ) -> Fire | Skip | None:
        """Plan the slot if the entry is due, or else when to ask again; None without an answer."""
        mine = self._claimed if self._claimed is not None and self._claimed[1] == due else None
        # Unless another beat has run it since. Stock beat counts from the sending, not the end.
        last = mine[0] if mine is not None else last_run or self._since
        answer = self._ask(due, last, now)
        if answer is None:
            return None
        if answer.is_due:
            self._claimed = now, answer.next_at
            return Fire(due, answer.next_at, None, None)
        self._claimed = (last, answer.next_at) if mine is not None else None
        return Skip(None, answer.next_at)

    def passed_by(self, due: datetime, until: datetime, key: str = "") -> Skip | None:
        """Skip the slot if the entry is due, else plan when to ask again; None as in `plan`."""
        answer = self.plan(due, until)
        return Skip(Gap(due, due, 1, OVERLAP), answer.next_slot) if isinstance(answer, Fire) else answer

    def next_after_retry(self, slot: datetime, now: datetime, key: str = "") -> tuple[datetime | None, float | None]:
        """Return when to ask again, counted from now, as an attempt of this slot begins now."""
        self._claimed = now, now
        return now, None

    def _ask(self, due: datetime, last: datetime, now: datetime) -> DueAnswer | None:
        if self._questions is None:
            return ask_schedule(self._entry, last, now)
        answer: DueAnswer | None = self._questions.answer(
            self._key, (due, last), partial(_ask_guarded, self._entry, last, now), str(self._entry.name)
        )
        return answer


def _ask_guarded(entry: Any, last: datetime, now: datetime) -> DueAnswer:
    """Ask in a thread, where no exception has a meaning outside of the question."""
    try:
        return ask_schedule(entry, last, now)
    except BaseException as error:
        events.fault_caught(doing=_ASK, subject=entry.name, error=error)
        return DueAnswer(False, now + timedelta(seconds=_AGAIN_SECONDS))


def _in_its_clock(entry: Any, instant: datetime, now: datetime) -> datetime:
    """Return an instant as the schedule's own clock shows it: naive or aware, in its zone."""
    shown: datetime = entry.default_now()
    if shown.tzinfo is None:
        return shown - (now - instant)
    off = shown - now
    if abs(off.total_seconds()) < _CLOCK_SECONDS:
        off = timedelta()
    return (instant + off).astimezone(shown.tzinfo)
