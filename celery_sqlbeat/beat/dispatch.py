"""One tick of a beat: record, wake, reclaim, and dispatch what is due batch by batch.

A tick never raises because a row is locked, and never blocks for more than a few seconds.
"""

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat import environment, events
from celery_sqlbeat.beat.deadlines import Deadlines, ReclaimGuard
from celery_sqlbeat.beat.duties import Duty
from celery_sqlbeat.beat.membership import BeatMembership
from celery_sqlbeat.beat.recording import PublishRecorder
from celery_sqlbeat.beat_schedule.custom_schedule import ScheduleQuestions
from celery_sqlbeat.beat_schedule.sync import EntryCalls
from celery_sqlbeat.errors import KEY_REMEDY, LOCKED, BrokerUnavailable, DatabaseUnavailable, DatabaseUncertain
from celery_sqlbeat.model import Claim, Claimed, DueBatch, Plan
from celery_sqlbeat.model.claim_orders import READ_AHEAD, ChosenOrder
from celery_sqlbeat.publish.messages import carried
from celery_sqlbeat.publish.publisher import Published, Publisher, Sending
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import EVERY_SHARE

CONNECT_SECONDS = 2.0  # for the broker; a tick must not block
# Of the dispatch timeout, kept for recording a batch before another beat may take its claims.
_RECORD_SHARE = 0.3
_REMIND_SECONDS = 600.0  # between two reports of jobs that wait for a beat with their key


class _InFlightBatch(NamedTuple):
    """A batch that the broker has not confirmed yet."""

    claims: Sequence[Claim]
    sending: Sending
    until: float


class DispatchResult(NamedTuple):
    """What came of one batch."""

    something: bool
    """Whether anything was written; what is due may be in the hands of others."""
    more: bool
    """Whether there may be more."""


class Dispatcher:
    """Claims batches of due jobs, and has them published and recorded."""

    def __init__(
        self,
        store: Store,
        plan: Callable[[DueBatch], Plan],
        publisher: Publisher,
        membership: BeatMembership,
        calls: EntryCalls,
        recorder: PublishRecorder,
        batch_size: int,
        dispatch_seconds: float,
        clock: Callable[[], float] = environment.monotonic,
        sift: Callable[[Sequence[Claim]], Sequence[Claim]] = list,
        order: ChosenOrder | None = None,
    ) -> None:
        """`sift` returns the claims to send, and has released the others."""
        self._store = store
        self._plan = plan
        self._publisher = publisher
        self._membership = membership
        self._calls = calls
        self._recorder = recorder
        self._batch_size = batch_size
        self._dispatch_seconds = dispatch_seconds
        self._clock = clock
        self._sift, self._order = sift, order
        self._in_flight: _InFlightBatch | None = None
        self._unleasable: set[str] = set()
        self._is_crowded = False
        """Whether more is due than one batch, so that beats share it."""
        self._follows_crowd = False
        """Whether the others may still be claiming what is left of a crowd."""
        self._takes_all = False
        """Whether the last batch had nothing of this beat's share, and was left to the others."""
        self._besides: set[str] = set()
        """The ids of jobs that full batches have missed."""
        self._locked: set[str] = set()
        """The ids of jobs whose arguments this beat cannot open, in the last batch."""
        self._remind_at = clock()

    def fire(self) -> DispatchResult:
        """Claim one batch while the broker confirms the one before it, and send it.

        The batch before is recorded meanwhile. Where no batch follows, `finish` waits for the last.
        """
        if self._recorder.pending:
            self._recorder.record()
            if self._recorder.is_behind:
                return DispatchResult(False, False)
        # Counted on this process's clock from before the statement: no claim is older than that.
        until = self._clock() + self._dispatch_seconds
        due, is_full = self._read_due()
        claimed = self._claim(due)
        self.await_confirms()
        claims = self._sift(claimed.claims)
        if claims:
            self._membership.claimed += len(claims)
            self._in_flight = _InFlightBatch(claims, self._send(claims, until), until)
        if self._recorder.pending:
            self._recorder.record()
        # What is locked would fill each batch, and hide what is due after it.
        self._besides = self._besides | claimed.missed | self._locked if is_full else set()
        # Custom schedules may be asked now, for the next batch.
        questions = self._calls.questions
        has_answers = not questions.is_idle and questions.ask_new()
        return DispatchResult(claimed.is_news, has_answers or is_full)

    def _read_due(self) -> tuple[DueBatch, bool]:
        """Read a batch that this beat should claim, and whether there may be more.

        Where more is due than one batch, each living beat takes the jobs of its share first. Where
        the others have not taken theirs, it takes them after a lag.
        """
        share = self._membership.share() if self._is_crowded else EVERY_SHARE
        size = self._batch_size
        due = self._store.due(READ_AHEAD * size if self._order else size, self._calls.claimable, share, self._besides)
        due = self._order(due, size) if self._order else due
        is_full = len(due.jobs) >= self._batch_size
        if share != EVERY_SHARE:
            self._is_crowded, self._follows_crowd = is_full, True
            return due, is_full
        if due.jobs and (is_full or self._follows_crowd) and (share := self._membership.share()) != EVERY_SHARE:
            own = [job for job in due.jobs if job.job_id[-1].lower() in share]
            self._is_crowded, is_left = is_full and bool(own), not own and not self._takes_all
            self._takes_all = is_left
            if own or is_left:
                return due._replace(jobs=own), is_full and bool(own)
        self._follows_crowd = False
        return due, is_full

    def _claim(self, due: DueBatch) -> Claimed:
        claimed = self._store.claim(due, self._planned(due), self._membership.name, self._dispatch_seconds)
        for quarantine in claimed.quarantines:
            events.job_quarantined(job_name=quarantine.job_name, reason=quarantine.reason)
        if claimed.gaps:
            names = {job.job_id: job.job_name for job in due.jobs}
            for gap in claimed.gaps:
                name = names[gap.job_id]
                events.slot_skipped(
                    job_name=name, reason=gap.reason, slots=gap.slot_count, first=gap.first, last=gap.last
                )
        if claimed.claims:
            self._tell_claims(claimed.claims, due.jobs[0].now)
        return claimed

    def _tell_claims(self, claims: Sequence[Claim], now: datetime) -> None:
        first = [claim.slot.scheduled_for for claim in claims if claim.slot.continues is None]
        events.jobs_claimed(
            claims=len(claims),
            job_names=[claim.job_name for claim in claims],
            lateness=[(now - slot).total_seconds() for slot in first],
        )

    def _planned(self, due: DueBatch) -> Plan:
        """Plan a batch; runs whose leases no worker could keep go on beside each other."""
        plan = self._plan(due)
        self._locked = {job.job_id for job in plan.locked}
        if plan.locked and self._clock() >= self._remind_at:
            self._remind_at = self._clock() + _REMIND_SECONDS
            text = f"{len(plan.locked)} due jobs wait, as {plan.locked[0].job_name}: {LOCKED}"
            events.advice(topic="payload", text=text, remedy=KEY_REMEDY)
        unleasable = self._membership.unleasable() if plan.claims else frozenset()
        for index, claim in enumerate(plan.claims):
            if claim.task_name in unleasable:
                plan.claims[index] = claim._replace(exclusive=False)
                self._warn_unleasable(claim.task_name)
        return plan

    def _send(self, claims: Sequence[Claim], until: float) -> Sending:
        try:
            known = carried(self._store, claims) if self._publisher.is_watched else claims
            filled = self._calls.filled(known)
            return self._publisher.send(filled, until - _RECORD_SHARE * self._dispatch_seconds, self._membership.leases)
        except Exception as error:
            unpublished = _unpublished(claims, error)
            return lambda: unpublished

    def finish(self) -> None:
        """Wait until the broker has confirmed the last batch, and record it."""
        self.await_confirms()
        if self._recorder.pending:
            self._recorder.record()

    def await_confirms(self) -> None:
        """Wait until the broker has confirmed the last batch, and begin to record it."""
        if self._in_flight is None:
            return
        (claims, sending, until), self._in_flight = self._in_flight, None
        try:
            published = sending()
        except Exception as error:
            published = _unpublished(claims, error)
        self._recorder.add(published, until)

    def hand_over(self) -> None:
        """Record what can still be recorded at the end of this process."""
        try:
            self.finish()
        except Exception as error:  # the other steps of the end must follow in any case
            events.step_failed(step="record what was published last", error=error)

    def _warn_unleasable(self, task: str) -> None:
        if task not in self._unleasable:
            self._unleasable.add(task)
            events.advice(
                topic="strategy",
                text=f"task {task} has its own strategy: its runs are fired and forgotten, without retry",
                remedy="none is needed where that will do: such a strategy does not report how a run ends",
            )


def _unpublished(claims: Sequence[Claim], error: Exception) -> Published:
    """Return the batch as failed: what got out is unknown, so all is sent again, newly fenced."""
    events.fault_caught(doing="publish a batch", error=error, subject=f"{len(claims)} claims")
    return Published([], [(claim, type(error).__name__) for claim in claims], [], [])


class Tick:
    """What a beat does again and again in Celery's own thread."""

    def __init__(
        self,
        deadlines: Deadlines,
        publisher: Publisher,
        dispatcher: Dispatcher,
        recorder: PublishRecorder,
        reclaim: Duty,
        reclaim_guard: ReclaimGuard,
        questions: ScheduleQuestions,
    ) -> None:
        self._deadlines = deadlines
        self._publisher = publisher
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._reclaim = reclaim
        self._reclaim_guard = reclaim_guard
        self._questions = questions

    def __call__(self) -> float:
        """Do what is due; return the seconds until there is something to do again."""
        try:
            return self._walk()
        except Exception as error:
            # In a fail-over an error has no cause: workers may get it, too, and extend no lease.
            if isinstance(error, (DatabaseUnavailable, DatabaseUncertain)):
                self._reclaim_guard.away()
            self._dispatcher.await_confirms()  # no batch stays in flight while this beat waits
            raise

    def _walk(self) -> float:
        deadlines, dispatcher = self._deadlines, self._dispatcher
        if self._recorder.pending:
            self._recorder.record()  # what the broker has already comes before everything else
        if not self._questions.is_idle and self._questions.has_news():
            deadlines.stir()
        if not deadlines.have_come():
            return self._rest()
        snapshot = deadlines.anticipated()
        reclaimed = False
        if snapshot is None:
            dispatcher.finish()
            snapshot = deadlines.read()
            reclaimed = snapshot.has_come(snapshot.ends_at) and self._reclaim.do_if_due()
        fired = deadlines.is_due(snapshot)
        if fired:
            self._publisher.connect(CONNECT_SECONDS)  # before anything is claimed
            result = dispatcher.fire()
            deadlines.note_claim(result.something)
            if result.more:
                deadlines.go_on(snapshot)
                return 0.0
        dispatcher.finish()
        if fired or reclaimed:
            snapshot = deadlines.read()
        if deadlines.sleep(snapshot, self._reclaim.due_at):
            self._connect_ahead()
        return self._rest()

    def _connect_ahead(self) -> None:
        """Connect to the broker before a slot is due: a beat that connects then loses it."""
        with contextlib.suppress(BrokerUnavailable):
            self._publisher.connect(CONNECT_SECONDS)

    def _rest(self) -> float:
        waits = [self._deadlines.seconds_left]
        if (seconds := self._recorder.seconds_left) is not None:
            waits.append(seconds)
        if not self._questions.is_idle and (seconds := self._questions.seconds_left) is not None:
            waits.append(seconds)
        return max(0.0, min(waits))
