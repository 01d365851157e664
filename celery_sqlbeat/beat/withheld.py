"""Withhold claims: for a pause after a failed publish, and where no worker knows the task."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from celery_sqlbeat import environment, events
from celery_sqlbeat.beat.membership import BeatMembership
from celery_sqlbeat.beat.republish_evidence import RepublishEvidence
from celery_sqlbeat.errors import TransientError
from celery_sqlbeat.model import Claim
from celery_sqlbeat.model.lifecycle import SKIPPED, UNKNOWN_TASK, Ending, released_unknown
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import Guard, Release

KEY = "refused"  # in what a beat tells of itself
TIMES = 3  # failures in a row from which on a job is told: fewer may be an outage
TOLD_SECONDS = 600.0  # for which a job is told after its last failure: it may not be tried any more
_MOST_TOLD = 20  # jobs
_LONGEST_ERROR = 300  # characters
# Seconds until a slot that the broker did not take is due again: it must not keep beat busy.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
_UNKNOWN_PAUSE = 10.0  # seconds until a slot of an unknown task is due again
_ASK_SECONDS = 2.0  # about as long as it takes to find out who else consumes the queue
_SLOTS_A_SECOND = 50  # of unknown tasks that are due again, so that thousands do not keep beats busy
# Of the timeout, for which this beat itself must have known a slot. It may be old for another
# reason: its workers were away, and the first to come back is not the one that knows its task.
_SHARE_SEEN = 0.1
_MOST_SEEN = 10_000  # runs, most of them long ended
_REMEDY = "give all workers of a queue the same tasks: deploy them, or correct the task's name or its queue"


class _PublishFailure(NamedTuple):
    job_name: str
    times: int
    error: str
    at: float


class PublishFailures:
    """Knows the jobs that one beat failed to send last time, for their pauses and for `health`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.jobs: dict[str, _PublishFailure] = {}
        """By job id."""
        self.is_news = False
        """Whether a job has begun to be worth telling since this was last reset."""

    def came(self, claim: Claim, error: str) -> None:
        """Count a failure of this claim's job."""
        before = self.jobs.get(claim.job_id)
        if len(self.jobs) >= _MOST_SEEN:  # of one-offs, each of which has an id of its own
            self.jobs.clear()
        times = 1 if before is None else before.times + 1
        self.jobs[claim.job_id] = _PublishFailure(claim.job_name, times, error, self._clock())
        self.is_news = self.is_news or times == TIMES

    def over(self, claim: Claim) -> None:
        """Forget the failures of this claim's job: the broker took its message."""
        self.jobs.pop(claim.job_id, None)

    def pause(self, claim: Claim) -> float:
        """Return how many seconds, at most, until the slot is tried again: ever longer."""
        before = self.jobs.get(claim.job_id)
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(0 if before is None else before.times, 10))

    def told(self) -> dict[str, Any]:
        """Return what others should know, by job name: how often, why, how many seconds ago."""
        now = self._clock()
        failures = list(self.jobs.values())
        recent = [failure for failure in failures if failure.times >= TIMES and now - failure.at < TOLD_SECONDS]
        return {
            failure.job_name: {
                "times": failure.times,
                "error": failure.error[:_LONGEST_ERROR],
                "seconds_ago": round(now - failure.at, 3),
            }
            for failure in recent[:_MOST_TOLD]
        }


def publish_failed(claim: Claim, reason: str, kind: str, retry_seconds: float | None) -> None:
    """Emit that a message was not published."""
    events.publish_failed(
        job_name=claim.job_name,
        run_id=claim.run_id,
        fence=claim.fence,
        slot=claim.slot.scheduled_for,
        reason=reason,
        kind=kind,
        retry_seconds=retry_seconds,
    )


class UnknownTasks:
    """Withholds claims whose task no worker of their queue knows; they count as no failure.

    Only where it is certain: each living worker of the queue has this package and has told its
    tasks. A message is sent as ever where workers are away, or where a plain one might know the
    task. No slot ends while a living worker knows its task.
    """

    def __init__(
        self,
        store: Store,
        membership: BeatMembership,
        queue_of: Callable[[Claim], str | None],
        timeout: float,
        evidence: RepublishEvidence | None = None,
        clock: Callable[[], float] = environment.monotonic,
        rnd: Callable[[], float] = environment.chance,
    ) -> None:
        self._store = store
        self._membership = membership
        self._queue_of = queue_of
        self._timeout = timeout
        self._evidence = evidence
        self._clock = clock
        self._random = rnd
        self._seen: dict[str, float] = {}
        self._warned_unknown: set[tuple[str | None, str]] = set()
        self._warned_known: set[tuple[str | None, str]] = set()

    def sift(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims to send; release the others for a while, or skip overdue ones."""
        sent, withheld, over = list[Claim](), list[Claim](), list[Claim]()
        longest = min(_UNKNOWN_PAUSE, self._timeout / 4)
        try:
            for claim in claims:
                if self._is_over(claim):
                    if self._somebody_knows(claim):
                        sent.append(claim)
                    else:
                        over.append(claim)
                elif (seconds := self._seconds_withheld(claim)) is None:
                    sent.append(claim)
                else:
                    withheld.append(claim)
                    longest = min(longest, seconds)
        except TransientError:  # the workers are not known just now
            return list(claims)
        if not withheld and not over:
            return sent
        try:
            self._release(withheld, max(longest, len(withheld) / _SLOTS_A_SECOND))
            self._skip(over)
        except TransientError as error:  # a beat that finds them unpublished releases them
            events.step_failed(step="release slots whose task no worker knows", error=error)
        return sent

    def _is_over(self, claim: Claim) -> bool:
        """Return whether the slot has waited for as long as it may."""
        waited = claim.slot.unknown_seconds
        if waited is None:
            self._seen.pop(claim.run_id, None)
            return False
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        seen_at = self._seen.setdefault(claim.run_id, self._clock())
        return waited >= self._timeout and self._clock() - seen_at >= _SHARE_SEEN * self._timeout

    def _somebody_knows(self, claim: Claim) -> bool:
        """Return whether a living worker knows the task: it may be busy, so the slot is sent on."""
        queue = self._queue_of(claim)
        if not self._membership.somebody_knows(queue, claim.task_name):
            return False
        if (queue, claim.task_name) not in self._warned_known:
            self._warned_known.add((queue, claim.task_name))
            self._tell(claim, f"in {self._timeout:g} s its slot met no worker that does; it is sent until one takes it")
        return True

    def _seconds_withheld(self, claim: Claim) -> float | None:
        """Return for how many seconds nothing is sent; None where it is sent."""
        if not self._membership.lacks(claim.task_name):
            return None
        queue = self._queue_of(claim)
        if not self._membership.nobody_knows(queue, claim.task_name):
            if (queue, claim.task_name) in self._warned_unknown:
                self._warned_unknown.discard((queue, claim.task_name))
                events.noted(topic="task", text=f"a worker of queue {queue} may now know task {claim.task_name}")
            return None
        others = self._evidence.consume(queue) if self._evidence is not None else False
        if others is None:
            return _ASK_SECONDS
        return None if others else _UNKNOWN_PAUSE

    def _release(self, claims: Sequence[Claim], longest: float) -> None:
        if not claims:
            return
        given = self._end(claims, released_unknown(longest * (0.8 + 0.2 * self._random())))
        for claim in claims:
            queue = self._queue_of(claim)
            if claim.run_id in given and (queue, claim.task_name) not in self._warned_unknown:
                self._warned_unknown.add((queue, claim.task_name))
                self._tell(claim, f"none does: its slots wait for one, each for at most {self._timeout:g} s")

    def _end(self, claims: Sequence[Claim], ending: Ending) -> set[str]:
        releases = [Release.of(claim, ending) for claim in claims]
        return self._store.finish(releases, Guard.UNSTARTED).done

    def _skip(self, claims: Sequence[Claim]) -> None:
        skipped = self._end(claims, Ending(SKIPPED, UNKNOWN_TASK)) if claims else set()
        for claim in claims:
            self._seen.pop(claim.run_id, None)
            if claim.run_id in skipped:
                self._tell(claim, f"no worker that does came within {self._timeout:g} s, a slot is skipped")
                slot = claim.slot.scheduled_for
                events.slot_skipped(job_name=claim.job_name, reason=UNKNOWN_TASK, slots=1, first=slot, last=slot)

    def _tell(self, claim: Claim, effect: str) -> None:
        queue = self._queue_of(claim)
        events.task_unknown(
            task_name=claim.task_name, queue=queue, job_name=claim.job_name, effect=effect, remedy=_REMEDY
        )
