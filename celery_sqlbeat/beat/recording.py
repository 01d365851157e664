"""Tells the database what the broker has of each batch, while the next one is on its way.

A row that somebody keeps locked holds up no other: what was published of its job is told later, by itself.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from celery_sqlbeat.errors import DatabaseAway, DatabaseBusy, DatabaseUncertain
from celery_sqlbeat.model import Claim
from celery_sqlbeat.store.protocol import Answer, BeatStore

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two tries at a row that stays locked
_TRIES_TO_TELL = 3  # before that another beat or a worker may just have been writing there
_MOST_WAITING = 1000  # claims that are published and not recorded; beyond that nothing more is claimed


class Mark:
    """One statement about claims of a batch; it may be under way before anybody waits for its answer."""

    def __init__(self, claims: Sequence[Claim], tell: Callable[[Sequence[Claim]], Answer], until: float) -> None:
        """`tell` begins the statement; its answer has the runs for which it was done. `until`: the dispatch timeout."""
        self.claims = claims
        self.until = until
        self.tries = 0
        self.not_before = 0.0
        self._tell = tell
        self._answer: Answer | None = None

    def begin(self) -> None:
        """Send the statement."""
        self._answer = self._tell(self.claims)

    def answer(self) -> set[str]:
        """Wait for the answer. Where that is an error, the next call makes the mark again."""
        answer, self._answer = self._answer or self._tell(self.claims), None
        return answer()

    def again(self, claims: Sequence[Claim], not_before: float) -> "Mark":
        """The same for some of the claims, later."""
        mark = Mark(claims, self._tell, self.until)
        mark.tries, mark.not_before = self.tries + 1, not_before
        return mark


class Recording:
    """The marks that the database has still to be told."""

    def __init__(
        self,
        store: BeatStore,
        clock: Callable[[], float] = time.monotonic,
        rnd: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = rnd
        self._marks: deque[Mark] = deque()

    def add(self, marks: Sequence[Mark]) -> None:
        """Begin to record a batch, unless an earlier one is being recorded."""
        is_first = all(mark.tries for mark in self._marks)
        self._marks.extend(marks)
        if is_first:
            for mark in marks:
                mark.begin()

    @property
    def is_behind(self) -> bool:
        """Whether so much is not recorded that nothing more should be published."""
        return sum(len(mark.claims) for mark in self._marks) >= _MOST_WAITING

    @property
    def seconds_left(self) -> float | None:
        """How long until something can be told that somebody kept locked; None where nothing waits."""
        if not self._marks:
            return None
        return max(0.0, min(mark.not_before for mark in self._marks) - self._clock())

    def record(self) -> None:
        """Tell the database what can be told now; raises DatabaseAway, and goes on there the next time.

        Past the dispatch timeout the claims belong to whoever takes them. Where nobody has yet, to record them is
        still better than to send them twice; where somebody has, the fence decides and nothing is written.
        """
        later: list[Mark] = []
        try:
            while self._marks:
                mark = self._marks[0]
                if mark.not_before > self._clock():
                    later.append(mark)
                else:
                    later += self._told(mark)
                self._marks.popleft()
        finally:
            self._marks.extendleft(reversed(later))

    def _told(self, mark: Mark) -> list[Mark]:
        """Tell one mark; returns what is left of it for later."""
        if not mark.claims:
            return []
        try:
            done = mark.answer()
            missed = [claim for claim in mark.claims if claim.run_id not in done]
            left = self._store.unmarked(missed) if missed else set()
        except DatabaseAway:
            raise
        except Exception as error:
            return self._failed(mark, error)
        if not left:
            return []
        locked = [claim for claim in missed if claim.run_id in left]
        if mark.tries == _TRIES_TO_TELL:
            logger.warning("what was published of %s is recorded when its row is unlocked", _names(locked))
        return [mark.again(locked, self._clock() + self._pause(mark))]

    def _failed(self, mark: Mark, error: Exception) -> list[Mark]:
        """What fails is halved down to the claim to blame; a database that is busy blames none."""
        now, claims = self._clock(), mark.claims
        is_busy = isinstance(error, DatabaseBusy) and not isinstance(error, DatabaseUncertain)
        if not is_busy and len(claims) == 1 and now >= mark.until:
            logger.error("what was published of %s cannot be recorded", _names(claims), exc_info=error)
            return []
        if mark.tries == 0:
            logger.error("what was published of %s is not recorded yet: %s", _names(claims), error)
        later = now + self._pause(mark)
        if is_busy or len(claims) == 1:
            return [mark.again(claims, later)]
        middle = len(claims) // 2
        return [mark.again(claims[:middle], now), mark.again(claims[middle:], now)]

    def _pause(self, mark: Mark) -> float:
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(mark.tries, 10)) * (0.5 + 0.5 * self._random())


def _names(claims: Sequence[Claim]) -> str:
    first = f"job {claims[0].job_name}, slot {claims[0].slot.scheduled_for}"
    return first if len(claims) == 1 else f"{first} and {len(claims) - 1} others"
