"""One fire, from the claim to the mark: claim a batch, publish it, record what the broker has, give back the rest."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from celery_sqlbeat.beat.code_calls import CodeCalls
from celery_sqlbeat.beat.publishing import Published, Publisher, Sent
from celery_sqlbeat.beat.standing import Standing
from celery_sqlbeat.errors import DatabaseAway
from celery_sqlbeat.model import Claim
from celery_sqlbeat.store.protocol import BeatStore, Plans

logger = logging.getLogger(__name__)

# Of the dispatch timeout, kept for recording what was published before anybody may take the claim over.
_MARK_SHARE = 0.3


class _Unrecorded(NamedTuple):
    """What the broker did with a batch, until the database knows it."""

    published: Published
    until: float


class Firing:
    """Fires what is due, batch by batch."""

    def __init__(
        self,
        store: BeatStore,
        plan: Plans,
        publisher: Publisher,
        standing: Standing,
        calls: CodeCalls,
        batch_size: int,
        dispatch_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._plan = plan
        self._publisher = publisher
        self._standing = standing
        self._calls = calls
        self._batch_size = batch_size
        self._dispatch_seconds = dispatch_seconds
        self._clock = clock
        self._unrecorded: _Unrecorded | None = None

    def fire(self) -> bool:
        """Fire one batch; whether there may be more that is due."""
        self.record()
        # Counted from before the sending, by this process's own clock: the claim is never older than that.
        until = self._clock() + self._dispatch_seconds
        claimed = self._store.claim(self._plan, self._batch_size, self._dispatch_seconds, self._calls.keys)
        for quarantine in claimed.plan.quarantines:
            logger.error("job %s is set aside: %s", quarantine.job_name, quarantine.reason)
        for gap in claimed.plan.gaps:
            logger.info("%d slots are skipped (%s): job %s", gap.slot_count, gap.reason, gap.job_id)
        if claimed.claims:
            self._standing.claimed += len(claimed.claims)
            published = self._publisher.publish(
                self._calls.filled(claimed.claims), until - _MARK_SHARE * self._dispatch_seconds
            )
            self._unrecorded = _Unrecorded(published, until)
            self.record()
        return claimed.looked_at >= self._batch_size

    def record(self) -> None:
        """Tell the database what the broker has; again, where the database was away the last time."""
        if self._unrecorded is None:
            return
        published, until = self._unrecorded
        if self._clock() >= until:
            # By now the claims belong to whoever takes them; every write of ours would find that out.
            logger.warning("%d published claims could not be recorded in time", len(published.confirmed))
            self._unrecorded = None
            return
        leased, forgotten = self._by_kind(published.confirmed)
        if forgotten:
            self._store.mark_dispatched(forgotten)
        if leased:
            self._store.mark_published([(sent.claim, sent.claim.lease_seconds + sent.wait_seconds) for sent in leased])
        self._give_back(published.failed)
        self._unrecorded = None

    def hand_over(self) -> None:
        """At the end of this process: record what can still be recorded."""
        try:
            self.record()
        except DatabaseAway as error:
            logger.warning("what was published last is not recorded: %s", error)

    def _by_kind(self, confirmed: Sequence[Sent]) -> tuple[list[Sent], list[Claim]]:
        leased, forgotten = [], []
        for sent in confirmed:
            if sent.claim.exclusive and self._standing.leases(sent.queue):
                leased.append(sent)
            else:
                forgotten.append(sent.claim)
        return leased, forgotten

    def _give_back(self, failed: Sequence[tuple[Claim, str]]) -> None:
        reasons: dict[str, list[Claim]] = {}
        for claim, reason in failed:
            logger.error("job %s was not published: %s", claim.job_name, reason)
            reasons.setdefault(reason, []).append(claim)
        for reason, claims in reasons.items():
            self._store.give_back(claims, reason)
