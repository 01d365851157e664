"""What becomes of ended leases: given back, published again, released for a new attempt, or left to the broker."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from celery_sqlbeat.beat.bystanders import Bystanders, May
from celery_sqlbeat.beat.check_ins import carried
from celery_sqlbeat.beat.code_calls import CodeCalls
from celery_sqlbeat.beat.publishing import Publisher
from celery_sqlbeat.beat.replacing import Replacing
from celery_sqlbeat.beat.sight import Sight
from celery_sqlbeat.beat.standing import Standing
from celery_sqlbeat.definition import read_call
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.lifecycle import EndedLease, Ending, Republish, after_ended_lease, left_to_others
from celery_sqlbeat.model import Claim, HeldLease, Slot
from celery_sqlbeat.store.protocol import BeatStore

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0  # for the broker; a tick must not block
_NEARLY_SECONDS = 1.0  # a message that lives no longer than that is not worth another copy


class Reaping:
    """Takes over what beats and workers left behind, in bounded batches, whichever beat comes first."""

    def __init__(
        self,
        store: BeatStore,
        publisher: Publisher,
        standing: Standing,
        calls: CodeCalls,
        sight: Sight,
        max_lost_leases: int,
        dispatch_seconds: float,
        batch_size: int,
        clock: Callable[[], float] = time.monotonic,
        bystanders: Bystanders | None = None,
        replacing: Replacing | None = None,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._standing = standing
        self._calls = calls
        self._sight = sight
        self._max_lost_leases = max_lost_leases
        self._dispatch_seconds = dispatch_seconds
        self._batch_size = batch_size
        self._clock = clock
        self._bystanders = bystanders
        self._replacing = replacing

    def reap(self) -> int:
        """Deal with a batch of ended leases, and of runs that make room; returns how many were dealt with."""
        replaced = self._replacing.replace() if self._replacing is not None else 0
        sent_at = self._clock()
        found = self._store.ended(self._batch_size)
        if found:  # the server's clock may have been set since the look that led here
            self._sight.saw(found[0].now, sent_at)
        endings: list[tuple[HeldLease, Ending]] = []
        waiting: list[tuple[HeldLease, Republish]] = []
        for lease in found:
            if not (self._sight.may_reclaim() if lease.started else self._sight.may_take_claims()):
                continue  # its worker, or its beat, may live, and gets the chance to say so
            answer = self._answer(lease)
            if answer is None:
                continue
            if isinstance(answer, Republish):
                waiting.append((lease, answer))
            else:
                endings.append((lease, answer))
        taken = self._store.reclaim(endings)
        for lease, ending in endings:
            if lease.run_id in taken:
                logger.warning(
                    "job %s, slot %s, attempt %d, fence %d: %s",
                    lease.job_name,
                    lease.scheduled_for,
                    lease.attempt,
                    lease.fence,
                    ending.reason or ending.state,
                )
        return replaced + len(taken) + self._publish_again(waiting)

    def _answer(self, lease: HeldLease) -> Ending | Republish | None:
        """What becomes of it; None where that is not known yet."""
        facts = EndedLease.of(lease)
        is_queued = not lease.started and lease.published_at is not None
        if is_queued and self._calls.is_sent_by_others(lease.job_name, lease.code_owner):
            return None  # only they can make its message again
        claim = None if lease.started else self._claim(lease)
        expires_at = None if claim is None else self._expires_at(claim, lease)
        expired = expires_at is not None and (expires_at - lease.now).total_seconds() < _NEARLY_SECONDS
        answer = after_ended_lease(facts, self._max_lost_leases, claim is not None, expired)
        if claim is None or not isinstance(answer, Republish):
            return answer
        queue = self._publisher.queue_of(claim)
        if queue is None or not self._standing.may_republish(queue):
            return answer._replace(publish=False)
        if self._bystanders is None or lease.published_at is None:
            return answer
        may = self._bystanders.may_republish(queue, lease.published_at, lease.now)
        if may is None:
            return None
        return left_to_others() if may is May.LEAVE else answer._replace(publish=may is May.PUBLISH)

    def _claim(self, lease: HeldLease) -> Claim | None:
        """The claim that its message carries; None where this beat cannot make that message again."""
        if lease.code_key is not None and lease.code_key not in self._calls.keys:
            return None
        if not self._calls.is_own(lease.job_name, lease.code_owner):
            return None
        try:
            return self._calls.filled([_claim_of(lease)])[0]
        except FieldError:
            return None

    def _expires_at(self, claim: Claim, lease: HeldLease) -> datetime | None:
        return lease.published_at and self._publisher.expires_at(claim, lease.published_at)

    def _publish_again(self, waiting: Sequence[tuple[HeldLease, Republish]]) -> int:
        """Extend first, publish then: whoever extends is the only one to publish, and what is lost is seen again."""
        until = self._clock() + self._dispatch_seconds
        if any(answer.publish for _, answer in waiting):
            self._publisher.connect(_CONNECT_SECONDS)  # before anything is extended
        won = self._store.extend_queued([(lease, answer.queued_seconds) for lease, answer in waiting])
        again: Sequence[Claim] = [
            self._copy(lease) for lease, answer in waiting if answer.publish and lease.run_id in won
        ]
        if self._publisher.is_watched:
            again = carried(self._store, again, are_copies=True)
        if again:
            logger.warning("%d messages were not taken by any worker in time; they are published again", len(again))
            published = self._publisher.publish(again, until)
            for claim, reason in [*published.failed, *(each[:2] for each in published.refused)]:
                # Nothing is lost: it is seen again at its next deadline.
                logger.error("job %s, fence %d was not published again: %s", claim.job_name, claim.fence, reason)
        return len(won)

    def _copy(self, lease: HeldLease) -> Claim:
        """The message once more; it expires when the first one does."""
        claim = self._calls.filled([_claim_of(lease)])[0]
        expires_at = self._expires_at(claim, lease)
        return claim if expires_at is None else claim._replace(options={**claim.options, "expires": expires_at})


def _claim_of(lease: HeldLease) -> Claim:
    """The claim that its message carried; the row may have been edited since."""
    slot = Slot(
        lease.kind, lease.scheduled_for, lease.attempt, lease.failures, lease.lost_leases, None, None, False, None, True
    )
    return Claim(
        lease.job_id,
        lease.job_name,
        *read_call(lease),
        lease.run_id,
        lease.claim_id,
        lease.fence,
        slot,
        lease.lease_seconds,
        0,
        bool(lease.exclusive),
        lease.code_key,
    )
