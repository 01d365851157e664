"""One fire, from the claim to the mark: claim a batch, send it, record what the broker has, give back the rest."""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from celery_sqlbeat.beat.code_calls import CodeCalls
from celery_sqlbeat.beat.publishing import Published, Publisher, Refused, Sending, Sent
from celery_sqlbeat.beat.refusals import KEY, Refusals
from celery_sqlbeat.beat.standing import Standing
from celery_sqlbeat.errors import TransientError
from celery_sqlbeat.lifecycle import Backoff, after_refusal
from celery_sqlbeat.model import Claim
from celery_sqlbeat.store.protocol import Answer, BeatStore, Plans

logger = logging.getLogger(__name__)

# Of the dispatch timeout, kept for recording what was published before anybody may take the claim over.
_MARK_SHARE = 0.3


class _InFlight(NamedTuple):
    """A batch that the broker has not confirmed yet."""

    claims: Sequence[Claim]
    sending: Sending
    until: float


class _Unrecorded(NamedTuple):
    """What the broker did with a batch, until the database knows it."""

    steps: deque[Callable[[], object]]
    """What is not written yet. Each may be tried again by itself."""
    confirmed: int
    until: float


class _Mark:
    """One statement about what the broker has; it may be under way before anybody waits for its answer."""

    def __init__(self, make: Callable[[], Answer]) -> None:
        self._make = make
        self._answer: Answer | None = None

    def begin(self) -> None:
        self._answer = self._make()

    def __call__(self) -> None:
        """Wait for the answer. Where that is an error, the next call makes the mark again."""
        answer, self._answer = self._answer or self._make(), None
        answer()


class Fired(NamedTuple):
    """What one batch found."""

    something: bool
    """Whether anything was to be had; it may be due and held by others."""
    more: bool
    """Whether there may be more."""


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
        rnd: Callable[[], float] = random.random,
        backoff: Backoff = Backoff(),  # noqa: B008 - it is a tuple
    ) -> None:
        self._store = store
        self._plan = plan
        self._publisher = publisher
        self._standing = standing
        self._calls = calls
        self._batch_size = batch_size
        self._dispatch_seconds = dispatch_seconds
        self._clock = clock
        self._random = rnd
        self._backoff = backoff
        self._in_flight: _InFlight | None = None
        self._unrecorded: deque[_Unrecorded] = deque()
        self._refusals = Refusals(clock)
        standing.tell(KEY, self._refusals.told)
        self._unleased: set[str | None] = set()

    def fire(self) -> Fired:
        """Claim one batch while the broker confirms the one before it, and send it while that one is recorded.

        Where there is no next batch, `finish` waits for the last one.
        """
        self.record()
        # Counted from before the sending, by this process's own clock: the claim is never older than that.
        until = self._clock() + self._dispatch_seconds
        claimed = self._store.claim(self._plan, self._batch_size, self._dispatch_seconds, self._calls.claimable)
        for quarantine in claimed.plan.quarantines:
            logger.error("job %s is set aside: %s", quarantine.job_name, quarantine.reason)
        for gap in claimed.plan.gaps:
            name = claimed.names.get(gap.job_id, gap.job_id)
            logger.info("%d slots are skipped (%s): job %s", gap.slot_count, gap.reason, name)
        self.settle()
        if claimed.claims:
            self._standing.claimed += len(claimed.claims)
            self._in_flight = _InFlight(claimed.claims, self._send(claimed.claims, until), until)
        self.record()
        return Fired(claimed.looked_at > 0, claimed.looked_at >= self._batch_size)

    def finish(self) -> None:
        """Wait for what the broker says of the last batch, and record it."""
        self.settle()
        self.record()

    def settle(self) -> None:
        """Wait for what the broker says of the last batch, and begin to record it."""
        if self._in_flight is None:
            return
        (claims, sending, until), self._in_flight = self._in_flight, None
        try:
            published = sending.settle()
        except Exception as error:
            published = _unpublished(claims, error)
        marks = self._marks(published)
        self._unrecorded.append(
            _Unrecorded(deque((*marks, lambda: self._write(published))), len(published.confirmed), until)
        )
        if len(self._unrecorded) == 1:
            for mark in marks:
                mark.begin()

    def _send(self, claims: Sequence[Claim], until: float) -> Sending:
        try:
            return self._publisher.send(self._calls.filled(claims), until - _MARK_SHARE * self._dispatch_seconds)
        except Exception as error:
            failed = _unpublished(claims, error)
            return Sending(lambda: failed)

    def record(self) -> None:
        """Tell the database what the broker has; again, where the database was away the last time.

        Past the dispatch timeout the claims belong to whoever takes them. Where nobody has yet, to record them is
        still better than to send them twice; where somebody has, the fence decides and nothing is written.
        """
        while self._unrecorded:
            unrecorded = self._unrecorded[0]
            while unrecorded.steps:
                try:
                    unrecorded.steps[0]()
                except TransientError:
                    raise
                except Exception:
                    if self._clock() < unrecorded.until:
                        raise
                    logger.exception("of %d published claims some cannot be recorded", unrecorded.confirmed)
                unrecorded.steps.popleft()
            self._unrecorded.popleft()

    def _marks(self, published: Published) -> Sequence[_Mark]:
        leased, forgotten = self._by_kind(published.confirmed)
        timed = [(sent.claim, sent.queued_seconds) for sent in leased]
        return (
            _Mark(lambda: self._store.mark_dispatched(forgotten)),
            _Mark(lambda: self._store.mark_published(timed)),
        )

    def _write(self, published: Published) -> None:
        """What is to be written beside the marks."""
        if published.declined:
            self._cancel(published.declined)
        self._fail(published.refused)
        self._give_back(published.failed)
        for sent in published.confirmed:
            self._refusals.over(sent.claim)
        if self._refusals.are_news():
            self._standing.say_alive()  # with what it tells; the next time may be a minute away

    def hand_over(self) -> None:
        """At the end of this process: record what can still be recorded."""
        try:
            self.finish()
        except Exception as error:  # whatever it is, the rest of the end must follow
            logger.warning("what was published last is not recorded: %s", error)

    def _by_kind(self, confirmed: Sequence[Sent]) -> tuple[list[Sent], list[Claim]]:
        leased, forgotten = [], []
        for sent in confirmed:
            if sent.claim.exclusive and self._standing.leases(sent.queue):
                leased.append(sent)
            else:
                forgotten.append(sent.claim)
                if sent.claim.exclusive:
                    self._say_unleased(sent.queue)
        return leased, forgotten

    def _give_back(self, failed: Sequence[tuple[Claim, str]]) -> None:
        groups: dict[tuple[str, float], list[Claim]] = {}
        for claim, reason in failed:
            groups.setdefault((reason, self._refusals.pause(claim)), []).append(claim)
        for (reason, longest), claims in groups.items():
            seconds = longest * (0.5 + 0.5 * self._random())
            given = self._store.give_back(claims, reason, seconds)
            for claim in claims:
                if claim.run_id in given:
                    self._refusals.came(claim, reason)
                    logger.error(
                        "job %s, slot %s, fence %d was not published: %s; again in %.1f s",
                        claim.job_name,
                        claim.slot.scheduled_for,
                        claim.fence,
                        reason,
                        seconds,
                    )

    def _fail(self, refused: Sequence[Refused]) -> None:
        """What no message can be made of is a failure of its slot: in the end a dead letter, and the job goes on."""
        endings = []
        for claim, error, trace in refused:
            slot = claim.slot
            ending = after_refusal(slot.failures, claim.max_retries, self._backoff, self._random, error, trace)
            endings.append((claim, ending))
        failed = self._store.fail(endings) if endings else set()
        for claim, ending in endings:
            if claim.run_id in failed:
                self._refusals.came(claim, ending.error or "")
                logger.error(
                    "job %s, slot %s, attempt %d cannot be published: %s; %s",
                    claim.job_name,
                    claim.slot.scheduled_for,
                    claim.slot.attempt,
                    ending.error,
                    "it is a dead letter now"
                    if ending.retry_seconds is None
                    else f"tried again in {ending.retry_seconds:.1f} s",
                )

    def _cancel(self, declined: Sequence[tuple[Claim, str]]) -> None:
        """The shop's own code chose to send nothing: as in stock beat, the job goes on with its next slot."""
        for reason, claims in _by_reason(declined).items():
            ended = self._store.cancel(claims, reason)
            for claim in claims:
                if claim.run_id in ended:
                    logger.warning("job %s, slot %s: %s", claim.job_name, claim.slot.scheduled_for, reason)

    def _say_unleased(self, queue: str | None) -> None:
        if queue not in self._unleased:
            self._unleased.add(queue)
            logger.warning(
                "no worker with celery-sqlbeat consumes %s: its tasks are fired and forgotten, without lease or retry",
                "some exchanges" if queue is None else f"queue {queue!r}",
            )


def _by_reason(claims: Sequence[tuple[Claim, str]]) -> dict[str, list[Claim]]:
    groups: dict[str, list[Claim]] = {}
    for claim, reason in claims:
        groups.setdefault(reason, []).append(claim)
    return groups


def _unpublished(claims: Sequence[Claim], error: Exception) -> Published:
    """What got out is not known. Under a higher fence each of them is sent again, and later than at once."""
    logger.error("a batch of %d claims could not be published", len(claims), exc_info=error)
    return Published([], [(claim, type(error).__name__) for claim in claims], [], [])
