"""Reclaim ended leases, and cancel runs that make room for the next slot of their job.

An ended lease is released, published again, given to a new attempt, or left to the broker.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from celery_sqlbeat import environment, events
from celery_sqlbeat.beat.deadlines import ReclaimGuard
from celery_sqlbeat.beat.membership import BeatMembership
from celery_sqlbeat.beat.republish_evidence import RepublishAnswer, RepublishEvidence
from celery_sqlbeat.beat.withheld import publish_failed
from celery_sqlbeat.beat_schedule.sync import EntryCalls
from celery_sqlbeat.errors import FieldError, PayloadLocked
from celery_sqlbeat.model import Claim, HeldLease, ReplaceableRun, Slot
from celery_sqlbeat.model.definition import Rules, allowed_call, policy_of
from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    DLQ,
    REPLACED_REASON,
    SKIPPED,
    Ending,
    ExpiredLease,
    Republish,
    after_ended_lease,
    left_to_others,
)
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.publish.messages import carried
from celery_sqlbeat.publish.publisher import Publisher
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import Guard, KeptRun, Release

_CONNECT_SECONDS = 2.0  # for the broker; a tick must not block
_NEARLY_SECONDS = 1.0  # a message that expires sooner is not worth another copy
_PAUSE_SECONDS = 1.0  # where leases have ended that may not be taken yet


class Replacer:
    """Cancels the current run of jobs with `overlap = replace`, under its fence, for the next slot.

    The run loses its lease before the next one begins, so no two are valid; its worker learns of it
    by a heartbeat.
    """

    def __init__(
        self,
        store: Store,
        planner: Planner,
        owner: str,
        recall: Callable[[Sequence[str]], None],
    ) -> None:
        """Replace the runs of `owner`, the app of this beat.

        `recall` asks the workers to check at once whether they still hold these runs.
        """
        self._store = store
        self._planner = planner
        self.owner = owner
        self._recall = recall

    def replace(self, runs: Sequence[ReplaceableRun]) -> int:
        """Cancel the runs that make room; return how many were cancelled or postponed."""
        if not runs:
            return 0
        plans = [(run, *self._planner.makes_room(run)) for run in runs]
        postponed = [KeptRun(run, later) for run, makes_room, later in plans if not makes_room]
        if postponed:
            self._store.postpone(postponed)
        making_room = [run for run, makes_room, _ in plans if makes_room]
        releases = [Release.of(run, Ending(CANCELLED, REPLACED_REASON)) for run in making_room]
        replaced = self._store.finish(releases, Guard.REPLACEABLE).done if releases else set()
        for run in making_room:
            if run.run_id in replaced:
                events.run_cancelled(
                    job_name=run.job_name, run_id=run.run_id, reason="replaced: the next slot has come"
                )
        if replaced:
            self._recall(sorted(replaced))
        return len(replaced) + len(postponed)


class Reclaimer:
    """Reclaims what beats and workers left behind, in bounded batches."""

    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        membership: BeatMembership,
        calls: EntryCalls,
        rules: Rules,
        reclaim_guard: ReclaimGuard,
        max_lost_leases: int,
        dispatch_seconds: float,
        batch_size: int,
        clock: Callable[[], float] = environment.monotonic,
        evidence: RepublishEvidence | None = None,
        replacer: Replacer | None = None,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._membership = membership
        self._calls = calls
        self._rules = rules
        self._reclaim_guard = reclaim_guard
        self._max_lost_leases = max_lost_leases
        self._dispatch_seconds = dispatch_seconds
        self._batch_size = batch_size
        self._clock = clock
        self._evidence = evidence
        self._replacer = replacer

    def reclaim(self) -> float:
        """Reclaim a batch of ended leases, and make room; return the seconds until the next."""
        sent_at = self._clock()
        owner = self._replacer.owner if self._replacer is not None else ""
        ended, replaceable = self._store.expired(self._batch_size, owner)
        if ended:  # the server's clock may have been set since the deadlines were read
            self._reclaim_guard.saw(ended[0].now, sent_at)
        replaced = self._replacer.replace(replaceable) if self._replacer is not None else 0
        endings: list[tuple[HeldLease, Ending]] = []
        waiting: list[tuple[HeldLease, Republish]] = []
        for lease in ended:
            if not (self._reclaim_guard.may_reclaim() if lease.started else self._reclaim_guard.may_take_claims()):
                continue  # its worker, or its beat, may live, and gets the time to extend or record it
            answer = self._answer(lease, sent_at)
            if answer is None:
                continue
            if isinstance(answer, Republish):
                waiting.append((lease, answer))
            else:
                endings.append((lease, answer))
        releases = [Release.of(lease, ending) for lease, ending in endings]
        reclaimed = self._store.finish(releases, Guard.EXPIRED).done if releases else set()
        for lease, ending in endings:
            if lease.run_id in reclaimed:
                _tell(lease, ending)
        return 0.0 if replaced + len(reclaimed) + self._publish_again(waiting) else _PAUSE_SECONDS

    def _answer(self, lease: HeldLease, sent_at: float) -> Ending | Republish | None:
        """Decide what becomes of a lease; return None where that is not known yet."""
        facts = ExpiredLease.of(lease)
        is_queued = not lease.started and lease.published_at is not None
        if is_queued and self._calls.is_sent_by_others(lease.job_name, lease.code_owner):
            return None  # only they can make its message again
        try:
            claim = None if lease.started else self._claim(lease)
        except PayloadLocked:
            if is_queued:
                return None  # a beat that has its key can make its message again
            claim = None
        expires_at = None if claim is None else self._expires_at(claim, lease)
        expired = expires_at is not None and (expires_at - lease.now).total_seconds() < _NEARLY_SECONDS
        answer = after_ended_lease(facts, self._max_lost_leases, claim is not None, expired)
        if claim is None or not isinstance(answer, Republish):
            return answer
        queue = self._publisher.queue_of(claim)
        if queue is None or not self._membership.may_republish(queue):
            return answer._replace(publish=False)
        if self._evidence is None or lease.published_at is None:
            return answer
        may = self._evidence.may_republish(queue, lease, sent_at)
        if may is None:
            return None
        if may is RepublishAnswer.LEAVE:
            return left_to_others()
        if may is RepublishAnswer.WAIT:
            return answer._replace(publish=False, withheld=self._evidence.withheld.get(queue))
        return answer

    def _claim(self, lease: HeldLease) -> Claim | None:
        """Return the claim for its message; None where this beat cannot make that message again."""
        if lease.code_key is not None and lease.code_key not in self._calls.keys:
            return None
        if not self._calls.is_own(lease.job_name, lease.code_owner):
            return None
        try:
            return self._calls.filled([claim_of(lease, self._rules)])[0]
        except PayloadLocked:
            raise
        except FieldError:
            return None

    def _expires_at(self, claim: Claim, lease: HeldLease) -> datetime | None:
        return lease.published_at and self._publisher.expires_at(claim, lease.published_at)

    def _publish_again(self, waiting: Sequence[tuple[HeldLease, Republish]]) -> int:
        """Extend, then publish: only the beat that extends publishes; a lost copy is due again."""
        until = self._clock() + self._dispatch_seconds
        if any(answer.publish for _, answer in waiting):
            self._publisher.connect(_CONNECT_SECONDS)  # before anything is extended
        later = [(lease, answer.queued_seconds) for lease, answer in waiting]
        won = self._store.postpone(later, self._membership.name) if later else set()
        for lease, answer in waiting:
            if answer.withheld is not None and lease.run_id in won:
                text = f"run {lease.run_id} of job {lease.job_name} is not sent again: {answer.withheld}"
                events.noted(topic="republish", text=text)
        again: Sequence[Claim] = [
            self._copy(lease) for lease, answer in waiting if answer.publish and lease.run_id in won
        ]
        if self._publisher.is_watched:
            again = carried(self._store, again, are_copies=True)
        if again:
            published = self._publisher.publish(again, until)
            names = [sent.claim.job_name for sent in published.confirmed]
            if names:
                events.runs_republished(runs=len(names), job_names=names)
            for claim, reason in [*published.failed, *(refusal[:2] for refusal in published.refused)]:
                # Nothing is lost: it is due again at its next deadline.
                publish_failed(claim, reason, "republish", None)
        return len(won)

    def _copy(self, lease: HeldLease) -> Claim:
        """Return the claim for another copy of the message, which expires with the first one."""
        claim = self._calls.filled([claim_of(lease, self._rules)])[0]
        expires_at = self._expires_at(claim, lease)
        return claim if expires_at is None else claim._replace(options={**claim.options, "expires": expires_at})


def _tell(lease: HeldLease, ending: Ending) -> None:
    name, run_id, slot = lease.job_name, lease.run_id, lease.scheduled_for
    reason = ending.reason or ending.state
    events.run_reclaimed(
        job_name=name, run_id=run_id, slot=slot, attempt=lease.attempt, fence=lease.fence, reason=reason
    )
    if ending.state == DLQ:
        events.dead_lettered(job_name=name, run_id=run_id, slot=slot, attempt=lease.attempt, reason=reason)
    elif ending.state == SKIPPED:
        events.slot_skipped(job_name=name, reason=reason, slots=1, first=slot, last=slot)


def claim_of(lease: HeldLease, rules: Rules) -> Claim:
    """Return the claim that its message carried; the row may have been edited since."""
    policy = policy_of(lease.job_name, lease.policies, rules.policies)
    call = allowed_call(lease, rules)
    slot = Slot(
        kind=lease.kind,
        scheduled_for=lease.scheduled_for,
        attempt=lease.attempt,
        failures=lease.failures,
        lost_leases=lease.lost_leases,
        planned_at=None,
        delay_seconds=None,
        advances=False,
        continues=None,
        same_run=True,
    )
    return Claim(
        job_id=lease.job_id,
        job_name=lease.job_name,
        task_name=call.task_name,
        args=call.args,
        kwargs=call.kwargs,
        options=call.options,
        run_id=lease.run_id,
        claim_id=lease.claim_id,
        fence=lease.fence,
        slot=slot,
        lease_seconds=lease.lease_seconds,
        max_retries=0,
        exclusive=bool(lease.exclusive),
        code_key=lease.code_key,
        is_sensitive=policy is None or policy.sensitive,  # in doubt
        retry=None if policy is None else policy.retry,
    )
