"""Asks a custom schedule class when its entry is due; only a beat that has the entry can.

The class is somebody else's code: whatever it does, the answer is an instant.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

from celery.schedules import BaseSchedule

from celery_sqlbeat.beat.questions import Questions
from celery_sqlbeat.schedule import COALESCE, OVERLAP, Fire, Gap, Misfire, Skip

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 60.0  # after an answer that is none: long enough not to flood the log
_SOONEST = 0.1  # seconds; a class that says "at once" without being due must not keep beat busy
_LATEST = 366 * 86400.0  # seconds; then it is asked again
_CLOCK_SECONDS = 5.0  # the clocks of hosts may differ so far; a greater difference is made up for


class Answer(NamedTuple):
    """Whether the entry is due now, and when to ask again."""

    is_due: bool
    next_at: datetime


def ask(entry: Any, last_run_at: datetime | None, now: datetime) -> Answer:
    """Ask an entry whether it is due; `now` is the server's clock, by which the answer counts.

    An entry that never ran counts from now, as in stock beat.
    """
    try:
        with _server_clock(entry.schedule, now):
            entry.last_run_at = _in_its_clock(entry, last_run_at or now, now)
            due, seconds = entry.is_due()
        wait = float(seconds)
        if math.isnan(wait):
            raise ValueError("is_due() said that the next look is in nan seconds")
    except Exception:
        logger.exception(
            "the schedule of %s cannot say when it is due; asking again in %g s", entry.name, _AGAIN_SECONDS
        )
        return Answer(False, now + timedelta(seconds=_AGAIN_SECONDS))
    return Answer(bool(due), now + timedelta(seconds=min(max(wait, _SOONEST), _LATEST)))


class CustomSlots:
    """The slots of one entry, for a planner of claims. No misfire policy applies: the class knows no missed slots."""

    def __init__(
        self, entry: Any, since: datetime | None = None, key: str = "", questions: Questions | None = None
    ) -> None:
        """`since` is from when an entry counts that never ran.

        `questions` ask its class, by the `key` of the entry, outside of the transaction that plans; without them it is
        asked at once.
        """
        self._entry = entry
        self._key = key
        self._questions = questions
        self._since = since or datetime.now(timezone.utc)
        self._claimed: tuple[datetime, datetime] | None = None  # when it was last due here, and when to ask again

    def first_slot(self, added_at: datetime, start: datetime | None = None, key: str = "") -> datetime | None:
        """When a row without a next run may be due; None: the entry has not said yet."""
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
        """The slot, if the entry says that it is due; otherwise when to ask again. None: it has not said yet."""
        mine = self._claimed if self._claimed is not None and self._claimed[1] == due else None
        # Where nobody else has run it since: stock beat counts from the sending, which is earlier than the run's end.
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
        """The slot, not run, if the entry says that it is due; otherwise when to ask again. None as in `plan`."""
        answer = self.plan(due, until)
        return Skip(Gap(due, due, 1, OVERLAP), answer.next_slot) if isinstance(answer, Fire) else answer

    def next_after_retry(self, slot: datetime, now: datetime, key: str = "") -> tuple[datetime | None, float | None]:
        """When to ask again, if an attempt of this slot begins now: when it has ended, counted from now."""
        self._claimed = now, now
        return now, None

    def _ask(self, due: datetime, last: datetime, now: datetime) -> Answer | None:
        if self._questions is None:
            return ask(self._entry, last, now)
        found: Answer | None = self._questions.answer(
            self._key, (due, last), partial(_ask_whatever, self._entry, last, now), str(self._entry.name)
        )
        return found


def _ask_whatever(entry: Any, last: datetime, now: datetime) -> Answer:
    """As `ask`, in a thread of its own, where nothing that is raised has another meaning."""
    try:
        return ask(entry, last, now)
    except BaseException:
        logger.exception("the schedule of %s ended its thread; asking again in %g s", entry.name, _AGAIN_SECONDS)
        return Answer(False, now + timedelta(seconds=_AGAIN_SECONDS))


@contextmanager
def _server_clock(schedule: Any, now: datetime) -> Iterator[None]:
    """Let the schedule see the server's clock instead of this host's; one that brings a clock along keeps it."""
    if not isinstance(schedule, BaseSchedule) or schedule.nowfun is not None:
        yield
        return
    schedule.nowfun = lambda: now.astimezone(schedule.app.timezone)
    try:
        yield
    finally:
        schedule.nowfun = None


def _in_its_clock(entry: Any, instant: datetime, now: datetime) -> datetime:
    """The instant as the schedule's own clock would have shown it: naive or aware, in its zone, at its pace."""
    shown: datetime = entry.default_now()
    if shown.tzinfo is None:
        return shown - (now - instant)
    off = shown - now
    if abs(off.total_seconds()) < _CLOCK_SECONDS:
        off = timedelta()
    return (instant + off).astimezone(shown.tzinfo)
