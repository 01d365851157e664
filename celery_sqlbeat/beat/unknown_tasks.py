"""Claims whose task no worker of their queue knows: nothing is sent for them, and nothing is counted.

Only where it is certain: each living worker of the queue has this package and has told its tasks. A fleet whose workers
are away, or where a plain one might know the task, is sent to as ever.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence

from celery_sqlbeat.beat.bystanders import Bystanders
from celery_sqlbeat.beat.standing import Standing
from celery_sqlbeat.errors import TransientError
from celery_sqlbeat.lifecycle import UNKNOWN_TASK
from celery_sqlbeat.model import Claim
from celery_sqlbeat.store.protocol import BeatStore

logger = logging.getLogger(__name__)

_PAUSE = 10.0  # seconds until such a slot is looked at again; so long a new worker is not noticed anyhow
_ASK_SECONDS = 2.0  # about as long as it takes to find out who else consumes the queue
_A_SECOND = 50  # slots that are looked at again, so that thousands of them do not keep beats busy
# Of the time-out, for which a beat itself must have known of a slot. It may be old for another reason: its workers were
# away, and the first that comes back is not the one that knows its task.
_SHARE_SEEN = 0.1
_MOST_SEEN = 10_000  # runs, most of them long ended


class UnknownTasks:
    """Of one beat."""

    def __init__(
        self,
        store: BeatStore,
        standing: Standing,
        queue_of: Callable[[Claim], str | None],
        timeout: float,
        bystanders: Bystanders | None = None,
        clock: Callable[[], float] = time.monotonic,
        rnd: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._standing = standing
        self._queue_of = queue_of
        self._timeout = timeout
        self._bystanders = bystanders
        self._clock = clock
        self._random = rnd
        self._seen: dict[str, float] = {}
        self._told: set[tuple[str | None, str]] = set()

    def sift(self, claims: Sequence[Claim]) -> list[Claim]:
        """Those that are to be sent. The others are given back for a while, or ended once they have waited in vain."""
        sent, held, over = list[Claim](), list[Claim](), list[Claim]()
        longest = min(_PAUSE, self._timeout / 4)
        try:
            for claim in claims:
                if self._is_over(claim):
                    over.append(claim)
                elif (seconds := self._held_seconds(claim)) is None:
                    sent.append(claim)
                else:
                    held.append(claim)
                    longest = min(longest, seconds)
        except TransientError:  # who is there is not known just now
            return list(claims)
        try:
            self._hold(held, max(longest, len(held) / _A_SECOND))
            self._end(over)
        except TransientError as error:  # they are given back by whoever finds that they were not published
            logger.warning("slots whose task nobody knows could not be given back: %s", error)
        return sent

    def _is_over(self, claim: Claim) -> bool:
        waited = claim.slot.unknown_seconds
        if waited is None:
            self._seen.pop(claim.run_id, None)
            return False
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        seen_at = self._seen.setdefault(claim.run_id, self._clock())
        return waited >= self._timeout and self._clock() - seen_at >= _SHARE_SEEN * self._timeout

    def _held_seconds(self, claim: Claim) -> float | None:
        """For how long nothing is sent; None where it is sent."""
        if not self._standing.lacks(claim.task_name):
            return None
        queue = self._queue_of(claim)
        if not self._standing.nobody_knows(queue, claim.task_name):
            if (queue, claim.task_name) in self._told:
                self._told.discard((queue, claim.task_name))
                logger.info("a worker of queue %r may know task %s now: it is sent again", queue, claim.task_name)
            return None
        others = self._bystanders.consume(queue) if self._bystanders is not None else False
        if others is None:
            return _ASK_SECONDS
        return None if others else _PAUSE

    def _hold(self, claims: Sequence[Claim], longest: float) -> None:
        if not claims:
            return
        given = self._store.give_back(claims, UNKNOWN_TASK, longest * (0.8 + 0.2 * self._random()))
        for claim in claims:
            queue = self._queue_of(claim)
            if claim.run_id in given and (queue, claim.task_name) not in self._told:
                self._told.add((queue, claim.task_name))
                logger.warning(
                    "no worker of queue %r knows task %s of job %s: its slots wait for one, each for at most %g s; "
                    "deploy the workers, or correct the task's name or its queue",
                    queue,
                    claim.task_name,
                    claim.job_name,
                    self._timeout,
                )

    def _end(self, claims: Sequence[Claim]) -> None:
        ended = self._store.skip(claims, UNKNOWN_TASK) if claims else set()
        for claim in claims:
            self._seen.pop(claim.run_id, None)
            if claim.run_id in ended:
                logger.error(
                    "job %s, slot %s is skipped: no worker that knows task %s came within %g s",
                    claim.job_name,
                    claim.slot.scheduled_for,
                    claim.task_name,
                    self._timeout,
                )
