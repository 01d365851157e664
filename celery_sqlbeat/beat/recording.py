"""Record the result of each published batch, while the next batch is being sent.

A locked row holds up no other: its claim is recorded later, by itself.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from celery_sqlbeat import environment, events
from celery_sqlbeat.beat.known_workers import KnownWorkers
from celery_sqlbeat.beat.republish_evidence import RepublishEvidence
from celery_sqlbeat.beat.withheld import KEY, PublishFailures, publish_failed
from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, DatabaseUncertain, StoreError
from celery_sqlbeat.model import Claim
from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    DISPATCHED,
    Backoff,
    Ending,
    after_refusal,
    left_to_others,
    released,
)
from celery_sqlbeat.publish.publisher import Published, Refused
from celery_sqlbeat.publish.sender import Sent
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import Guard, Recorded, Release, RunNote

_RECORD = "record what was published"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two tries at a locked row
_TRIES_TO_WARN = 3  # before that another beat or a worker may just have been writing there
_MOST_PENDING = 1000  # claims published and not recorded; beyond that nothing more is claimed

Answer = Callable[[], Recorded]
"""Waits for the outcome of a statement. Called once."""
_Work = Callable[[Sequence[Claim]], Recorded]
_Tell = Callable[[Sequence[Claim], set[str]], None]


@dataclass(kw_only=True)
class PendingRecord:
    """One statement about claims of a batch, which may begin before its outcome is awaited."""

    claims: Sequence[Claim]
    work: _Work
    tell: _Tell
    """Tells of the claims, and which of them were written, in the beat's own thread."""
    until: float
    """When the dispatch timeout of the claims ends."""
    tries: int = 0
    not_before: float = 0.0
    begun: Answer | None = None

    def outcome(self) -> Recorded:
        """Wait for the outcome. After an error the next call makes the statement again."""
        begun, self.begun = self.begun, None
        return self.work(self.claims) if begun is None else begun()

    def again(self, claims: Sequence[Claim], not_before: float) -> "PendingRecord":
        """Return the same statement for some of the claims, not to be made before an instant."""
        return replace(self, claims=claims, tries=self.tries + 1, not_before=not_before, begun=None)


class PublishRecorder:
    """Holds what is not yet recorded of published batches."""

    def __init__(
        self,
        store: Store,
        membership: KnownWorkers,
        clock: Callable[[], float] = environment.monotonic,
        rnd: Callable[[], float] = environment.chance,
        backoff: Backoff = Backoff(),  # noqa: B008 - it is a tuple
        evidence: RepublishEvidence | None = None,
        begin: Callable[[Answer], Answer] | None = None,
        tells_lost: bool = True,
    ) -> None:
        """`begin` begins a statement in a thread. `tells_lost`: whether lost claims are events."""
        self.pending = deque[PendingRecord]()
        self._store, self._membership = store, membership
        self._clock, self._random = clock, rnd
        self._backoff, self._evidence = backoff, evidence
        self._begin, self._tells_lost = begin, tells_lost
        self._failures = PublishFailures(clock)
        membership.tell(KEY, self._failures.told)
        self._unleased: set[str | None] = set()

    @property
    def is_behind(self) -> bool:
        """Whether too much is unrecorded to claim more."""
        return sum(len(record.claims) for record in self.pending) >= _MOST_PENDING

    @property
    def seconds_left(self) -> float | None:
        """The seconds until a locked row is tried again; None where nothing is pending."""
        if not self.pending:
            return None
        return max(0.0, min(record.not_before for record in self.pending) - self._clock())

    def add(self, published: Published, until: float) -> None:
        """Begin to record a batch, unless an earlier one is being recorded.

        `until`: when the dispatch timeout of its claims ends.
        """
        is_first = all(record.tries for record in self.pending)
        for claims, work, tell in self._records(published):
            if claims:
                begun = self._begin(partial(work, claims)) if is_first and self._begin is not None else None
                self.pending.append(PendingRecord(claims=claims, work=work, tell=tell, until=until, begun=begun))
        if self._failures.jobs:
            for sent in published.confirmed:
                self._failures.over(sent.claim)

    def record(self) -> None:
        """Record what can be recorded now.

        Raises DatabaseUnavailable; the next call goes on from there. Past the dispatch timeout any
        beat may take the claims: recording them late is better than sending them twice, and the
        fence keeps what was taken from being written.
        """
        later: list[PendingRecord] = []
        try:
            while self.pending:
                record = self.pending[0]
                if record.not_before > self._clock():
                    later.append(record)
                else:
                    later += self._recorded(record)
                self.pending.popleft()
        finally:
            self.pending.extendleft(reversed(later))
        if self._failures.is_news:
            self._announce_failures()

    def _announce_failures(self) -> None:
        """Register at once with the jobs that cannot be sent, not only at the next heartbeat."""
        self._failures.is_news = False
        try:
            self._membership.say_alive()
        except DatabaseUnavailable:
            raise
        except StoreError as error:
            events.step_failed(step="register", error=error)

    def _recorded(self, record: PendingRecord) -> list[PendingRecord]:
        """Record one statement's claims; return what is left for later."""
        try:
            done, busy = record.outcome()
        except DatabaseUnavailable:
            raise
        except Exception as error:
            return self._failed(record, error)
        record.tell(record.claims, done)
        for claim in record.claims if self._tells_lost else ():
            if claim.run_id not in done and claim.run_id not in busy:
                events.claim_lost(job_name=claim.job_name, run_id=claim.run_id, fence=claim.fence)
        locked = [claim for claim in record.claims if claim.run_id in busy]
        if not locked:
            return []
        if record.tries == _TRIES_TO_WARN:
            events.step_failed(step=_RECORD, subject=_names(locked), error="its row is locked by another program")
        return [record.again(locked, self._clock() + self._pause(record))]

    def _failed(self, record: PendingRecord, error: Exception) -> list[PendingRecord]:
        """Halve a failed statement down to the claim to blame; a busy database blames none."""
        now, claims = self._clock(), record.claims
        is_busy = isinstance(error, DatabaseBusy) and not isinstance(error, DatabaseUncertain)
        if not is_busy and len(claims) == 1 and now >= record.until:
            events.fault_caught(doing=_RECORD, error=error, subject=_names(claims))
            return []
        if record.tries == 0:
            events.step_failed(step=_RECORD, subject=_names(claims), error=error)
        later = now + self._pause(record)
        if is_busy or len(claims) == 1:
            return [record.again(claims, later)]
        middle = len(claims) // 2
        return [record.again(claims[:middle], now), record.again(claims[middle:], now)]

    def _pause(self, record: PendingRecord) -> float:
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(record.tries, 10)) * (0.5 + 0.5 * self._random())

    def _records(self, published: Published) -> Iterator[tuple[Sequence[Claim], _Work, _Tell]]:
        """Yield the statements about a batch in order, each with its claims, which may be none."""
        yield from self._confirmed(published.confirmed)
        for reason, claims in _grouped(published.declined).items():
            yield claims, self._ends(Ending(CANCELLED, reason)), partial(_tell_cancelled, reason)
        if published.refused:
            yield self._refused(published.refused)
        for (reason, longest), claims in _grouped(
            [(claim, (reason, self._failures.pause(claim))) for claim, reason in published.failed]
        ).items():
            seconds = longest * (0.5 + 0.5 * self._random())
            yield claims, self._ends(released(reason, seconds)), partial(self._tell_released, reason, seconds)

    def _confirmed(self, confirmed: Sequence[Sent]) -> Iterator[tuple[Sequence[Claim], _Work, _Tell]]:
        opened = [(sent.claim, sent.check_in) for sent in confirmed if sent.check_in is not None]
        if opened:
            notes = {claim.run_id: RunNote(claim.run_id, claim.claim_id, text) for claim, text in opened}
            noted = [claim for claim, _ in opened]
            yield noted, lambda claims: self._store.note_runs([notes[c.run_id] for c in claims]), _tell_nothing
        queued: dict[str, float] = {}
        leased, forgotten, unseen = list[Claim](), list[Claim](), list[Claim]()
        queues: set[str | None] = set()
        for sent in confirmed:
            claim = sent.claim
            if sent.is_leased:
                leased.append(claim)
                queued[claim.run_id] = sent.queued_seconds
                queues.add(sent.queue)
                continue
            if claim.exclusive:
                self._warn_unleased(sent.queue)
            # No worker reports their end, so they do not count among parallel runs.
            is_unseen = claim.max_parallel is not None and not self._membership.leases(sent.queue)
            (unseen if is_unseen else forgotten).append(claim)
        published = [sent.claim.job_name for sent in confirmed]
        dispatched = [claim.job_name for claim in (*forgotten, *unseen)]
        if self._evidence is not None and queues:
            self._evidence.watch(queues)
        if published:
            events.messages_published(messages=len(published), job_names=published)
        if dispatched:
            events.runs_dispatched(runs=len(dispatched), job_names=dispatched)
        yield forgotten, self._ends(Ending(DISPATCHED)), _tell_nothing
        yield unseen, self._ends(left_to_others()), _tell_nothing
        yield leased, lambda claims: self._store.mark_published([(c, queued[c.run_id]) for c in claims]), _tell_nothing

    def _ends(self, ending: Ending) -> _Work:
        return lambda claims: self._store.finish([Release.of(c, ending) for c in claims], Guard.UNSTARTED)

    def _tell_released(self, reason: str, seconds: float, claims: Sequence[Claim], done: set[str]) -> None:
        for claim in claims:
            if claim.run_id in done:
                self._failures.came(claim, reason)
                publish_failed(claim, reason, "broker", seconds)
        if done:
            events.claims_released(claims=len(done), reason=reason, retry_seconds=seconds)

    def _refused(self, refused: Sequence[Refused]) -> tuple[Sequence[Claim], _Work, _Tell]:
        """Fail slots whose message cannot be made: they retry, and in the end are dead letters."""
        endings = {
            claim.run_id: after_refusal(
                claim.slot.failures, claim.max_retries, self._backoff, self._random, error, trace
            )
            for claim, error, trace in refused
        }
        return (
            [refusal.claim for refusal in refused],
            lambda claims: self._store.finish([Release.of(c, endings[c.run_id]) for c in claims], Guard.UNSTARTED),
            partial(self._tell_refused, endings),
        )

    def _tell_refused(self, endings: Mapping[str, Ending], claims: Sequence[Claim], done: set[str]) -> None:
        for claim in claims:
            ending = endings[claim.run_id]
            if claim.run_id in done:
                self._failures.came(claim, ending.error or "")
                publish_failed(claim, ending.error or "", "message", ending.retry_seconds)
                if ending.retry_seconds is None:
                    events.dead_lettered(
                        job_name=claim.job_name,
                        run_id=claim.run_id,
                        slot=claim.slot.scheduled_for,
                        attempt=claim.slot.attempt,
                        reason=ending.error,
                    )

    def _warn_unleased(self, queue: str | None) -> None:
        if queue not in self._unleased:
            self._unleased.add(queue)
            events.worker_unleased(queue=queue)


def _tell_cancelled(reason: str, claims: Sequence[Claim], done: set[str]) -> None:
    """Tell what the shop's own code declined to send; as in stock beat, the job goes on."""
    for claim in claims:
        if claim.run_id in done:
            events.step_failed(step="publish", subject=claim.job_name, error=reason)
            events.run_cancelled(job_name=claim.job_name, run_id=claim.run_id, reason=reason)


def _tell_nothing(claims: Sequence[Claim], done: set[str]) -> None:
    """Tell nothing: the batch was told of as it was confirmed."""


def _grouped(claims: Sequence[tuple[Claim, Any]]) -> dict[Any, list[Claim]]:
    groups: dict[Any, list[Claim]] = {}
    for claim, key in claims:
        groups.setdefault(key, []).append(claim)
    return groups


def _names(claims: Sequence[Claim]) -> str:
    first = f"job {claims[0].job_name}, slot {claims[0].slot.scheduled_for}"
    return first if len(claims) == 1 else f"{first} and {len(claims) - 1} others"
