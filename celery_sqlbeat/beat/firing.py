"""One fire, from the claim to the mark: claim a batch, send it, record what the broker has, give back the rest."""

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from celery_sqlbeat.beat.bystanders import Bystanders
from celery_sqlbeat.beat.check_ins import carried
from celery_sqlbeat.beat.code_calls import CodeCalls
from celery_sqlbeat.beat.publishing import Published, Publisher, Refused, Sending, Sent
from celery_sqlbeat.beat.recording import Mark, Recording
from celery_sqlbeat.beat.refusals import KEY, Refusals
from celery_sqlbeat.beat.standing import Standing
from celery_sqlbeat.beat.unknown_tasks import UnknownTasks
from celery_sqlbeat.errors import DatabaseAway, StoreError
from celery_sqlbeat.lifecycle import LEFT_TO_OTHERS, Backoff, Ending, after_refusal
from celery_sqlbeat.model import Attempt, Claim, DueJob, Plan
from celery_sqlbeat.store.protocol import Answer, BeatStore, Plans

logger = logging.getLogger(__name__)

# Of the dispatch timeout, kept for recording what was published before anybody may take the claim over.
_MARK_SHARE = 0.3


class _InFlight(NamedTuple):
    """A batch that the broker has not confirmed yet."""

    claims: Sequence[Claim]
    sending: Sending
    until: float


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
        unknown_tasks: UnknownTasks | None = None,
        bystanders: Bystanders | None = None,
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
        self._unknown_tasks = unknown_tasks
        self._bystanders = bystanders
        self._in_flight: _InFlight | None = None
        self._recording = Recording(store, clock, rnd)
        self._refusals = Refusals(clock)
        standing.tell(KEY, self._refusals.told)
        self._unleased: set[str | None] = set()
        self._unleasable: set[str] = set()

    def fire(self) -> Fired:
        """Claim one batch while the broker confirms the one before it, and send it while that one is recorded.

        Where there is no next batch, `finish` waits for the last one.
        """
        self.record()
        if self._recording.is_behind:
            return Fired(False, False)
        # Counted from before the sending, by this process's own clock: the claim is never older than that.
        until = self._clock() + self._dispatch_seconds
        unleasable = self._standing.unleasable()
        plan = partial(self._planned, unleasable) if unleasable else self._plan
        claimed = self._store.claim(plan, self._batch_size, self._dispatch_seconds, self._calls.claimable)
        for quarantine in claimed.plan.quarantines:
            logger.error("job %s is set aside: %s", quarantine.job_name, quarantine.reason)
        for gap in claimed.plan.gaps:
            name = claimed.names.get(gap.job_id, gap.job_id)
            logger.info("%d slots are skipped (%s): job %s", gap.slot_count, gap.reason, name)
        self.settle()
        claims = self._unknown_tasks.sift(claimed.claims) if self._unknown_tasks else claimed.claims
        if claims:
            self._standing.claimed += len(claims)
            self._in_flight = _InFlight(claims, self._send(claims, until), until)
        self.record()
        # The transaction is over: now custom schedules are asked, and what they say is claimed with the next batch.
        has_answers = self._calls.questions.settle()
        return Fired(claimed.looked_at > 0, has_answers or claimed.looked_at >= self._batch_size)

    def _planned(
        self,
        unleasable: AbstractSet[str],
        due: Sequence[DueJob],
        attempts: Mapping[str, Attempt],
        beside: Callable[[str], int],
    ) -> Plan:
        """The plan, where runs need no lease of their job that nobody could keep: they go on beside each other."""
        plan = self._plan(due, attempts, beside)
        for at, claim in enumerate(plan.claims):
            if claim.task_name in unleasable:
                plan.claims[at] = claim._replace(exclusive=False)
                self._say_unleasable(claim.task_name)
        return plan

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
        self._recording.add(self._marks(published, until))
        for sent in published.confirmed:
            self._refusals.over(sent.claim)

    def _send(self, claims: Sequence[Claim], until: float) -> Sending:
        try:
            known = carried(self._store, claims) if self._publisher.is_watched else claims
            filled, until = self._calls.filled(known), until - _MARK_SHARE * self._dispatch_seconds
            return self._publisher.send(filled, until, self._standing.leases)
        except Exception as error:
            failed = _unpublished(claims, error)
            return Sending(lambda: failed)

    def record(self) -> None:
        """Tell the database what the broker has; again, where that was not possible the last time."""
        self._recording.record()
        if self._refusals.are_news():
            self._tell_refusals()

    def _tell_refusals(self) -> None:
        """Register with what this beat tells of jobs that cannot be sent; the next time may be a minute away."""
        try:
            self._standing.say_alive()
        except DatabaseAway:
            raise
        except StoreError as error:
            logger.info("what this beat tells of itself is told later: %s", error)

    @property
    def seconds_left(self) -> float | None:
        """How long until something is to be recorded; None where nothing waits."""
        return self._recording.seconds_left

    def _marks(self, published: Published, until: float) -> Sequence[Mark]:
        leased, forgotten = self._by_kind(published.confirmed)
        queued = {sent.claim.run_id: sent.queued_seconds for sent in leased}

        # Nobody will say when these end, so they do not count among the runs that go on beside each other.
        unseen = {
            sent.claim.run_id
            for sent in published.confirmed
            if sent.claim.max_parallel is not None and not self._standing.leases(sent.queue)
        }

        def left_to_others(claims: Sequence[Claim]) -> Answer:
            return self._store.mark_dispatched(claims, LEFT_TO_OTHERS)

        def published_ones(claims: Sequence[Claim]) -> Answer:
            return self._store.mark_published([(claim, queued[claim.run_id]) for claim in claims])

        return (
            *self._noting(published.confirmed, until),
            Mark([claim for claim in forgotten if claim.run_id not in unseen], self._store.mark_dispatched, until),
            *(
                [Mark([claim for claim in forgotten if claim.run_id in unseen], left_to_others, until)]
                if unseen
                else ()
            ),
            Mark([sent.claim for sent in leased], published_ones, until),
            *self._cancelling(published.declined, until),
            *self._failing(published.refused, until),
            *self._giving_back(published.failed, until),
        )

    def _noting(self, confirmed: Sequence[Sent], until: float) -> Iterable[Mark]:
        opened = {sent.claim.run_id: sent.check_in for sent in confirmed if sent.check_in is not None}
        if opened:

            def note(claims: Sequence[Claim]) -> Answer:
                return lambda: self._store.note_check_ins([(claim, opened[claim.run_id]) for claim in claims])

            yield Mark([sent.claim for sent in confirmed if sent.check_in is not None], note, until)

    def hand_over(self) -> None:
        """At the end of this process: record what can still be recorded."""
        try:
            self.finish()
        except Exception as error:  # whatever it is, the rest of the end must follow
            logger.warning("what was published last is not recorded: %s", error)

    def _by_kind(self, confirmed: Sequence[Sent]) -> tuple[list[Sent], list[Claim]]:
        leased, forgotten = [], []
        for sent in confirmed:
            if sent.is_leased:
                leased.append(sent)
            else:
                forgotten.append(sent.claim)
                if sent.claim.exclusive:
                    self._say_unleased(sent.queue)
        if self._bystanders is not None and leased:
            self._bystanders.watch({sent.queue for sent in leased})
        return leased, forgotten

    def _giving_back(self, failed: Sequence[tuple[Claim, str]], until: float) -> Iterable[Mark]:
        groups: dict[tuple[str, float], list[Claim]] = {}
        for claim, reason in failed:
            groups.setdefault((reason, self._refusals.pause(claim)), []).append(claim)
        for (reason, longest), claims in groups.items():
            seconds = longest * (0.5 + 0.5 * self._random())
            yield Mark(claims, partial(_later, partial(self._give_back, reason, seconds)), until)

    def _give_back(self, reason: str, seconds: float, claims: Sequence[Claim]) -> set[str]:
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
        return given

    def _failing(self, refused: Sequence[Refused], until: float) -> Iterable[Mark]:
        """What no message can be made of is a failure of its slot: in the end a dead letter, and the job goes on."""
        endings: dict[str, Ending] = {}
        for claim, error, trace in refused:
            slot = claim.slot
            ending = after_refusal(slot.failures, claim.max_retries, self._backoff, self._random, error, trace)
            endings[claim.run_id] = ending
        if endings:
            yield Mark([one.claim for one in refused], partial(_later, partial(self._fail, endings)), until)

    def _fail(self, endings: Mapping[str, Ending], claims: Sequence[Claim]) -> set[str]:
        failed = self._store.fail([(claim, endings[claim.run_id]) for claim in claims])
        for claim in claims:
            ending = endings[claim.run_id]
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
        return failed

    def _cancelling(self, declined: Sequence[tuple[Claim, str]], until: float) -> Iterable[Mark]:
        for reason, claims in _by_reason(declined).items():
            yield Mark(claims, partial(_later, partial(self._cancel, reason)), until)

    def _cancel(self, reason: str, claims: Sequence[Claim]) -> set[str]:
        """The shop's own code chose to send nothing: as in stock beat, the job goes on with its next slot."""
        ended = self._store.cancel(claims, reason)
        for claim in claims:
            if claim.run_id in ended:
                logger.warning("job %s, slot %s: %s", claim.job_name, claim.slot.scheduled_for, reason)
        return ended

    def _say_unleasable(self, task: str) -> None:
        if task not in self._unleasable:
            self._unleasable.add(task)
            logger.warning(
                "task %s has a strategy of its own, which does not tell how its runs end: "
                "they are fired and forgotten, without retry",
                task,
            )

    def _say_unleased(self, queue: str | None) -> None:
        if queue not in self._unleased:
            self._unleased.add(queue)
            logger.warning(
                "no worker with celery-sqlbeat consumes %s: its tasks are fired and forgotten, without lease or retry",
                "some exchanges" if queue is None else f"queue {queue!r}",
            )


def _later(work: Callable[[Sequence[Claim]], set[str]], claims: Sequence[Claim]) -> Answer:
    """A mark that is not begun before its answer is wanted."""
    return lambda: work(claims)


def _by_reason(claims: Sequence[tuple[Claim, str]]) -> dict[str, list[Claim]]:
    groups: dict[str, list[Claim]] = {}
    for claim, reason in claims:
        groups.setdefault(reason, []).append(claim)
    return groups


def _unpublished(claims: Sequence[Claim], error: Exception) -> Published:
    """What got out is not known. Under a higher fence each of them is sent again, and later than at once."""
    logger.error("a batch of %d claims could not be published", len(claims), exc_info=error)
    return Published([], [(claim, type(error).__name__) for claim in claims], [], [])
