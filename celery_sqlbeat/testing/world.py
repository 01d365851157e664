"""Short words for the steps of a fire in a namespace under test."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from celery_sqlbeat.model import (
    Claim,
    Claimable,
    GapRecord,
    HeldLease,
    Quarantine,
    RefusedStart,
    StartedRun,
    StartRequest,
)
from celery_sqlbeat.model.lifecycle import (
    DISPATCHED,
    LONGEST_QUEUED_SECONDS,
    MAX_REPUBLISHES,
    RETRY,
    Ending,
    ExpiredLease,
    Republish,
    after_ended_lease,
    after_success,
    released,
    why_refused,
)
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.records import ALL_JOBS, Guard, Recorded, Release
from celery_sqlbeat.testing.namespace import HOUR, LEASE, MINUTE, OVERLAP, SECOND, Namespace

__all__ = ["DISPATCH", "HOUR", "LEASE", "MINUTE", "OVERLAP", "SECOND", "Fired", "World", "outcome", "outcomes"]

DISPATCH = 15.0  # seconds
MAX_LOST = 5
BEAT, WORKER = "beat-1", "worker-1"


class Fired(NamedTuple):
    """What came of one batch of due jobs."""

    claims: list[Claim]
    gaps: list[GapRecord]
    quarantines: list[Quarantine]
    missed: set[str]
    jobs_read: int


class World(Namespace):
    """What beats and workers do in one namespace."""

    # Claims

    def claim(
        self,
        beat: str = BEAT,
        planner: Planner | None = None,
        batch: int = 500,
        claimable: Claimable = ALL_JOBS,
        store: Store | None = None,
    ) -> Fired:
        """Claim what is due, as a beat does: read, plan, write."""
        store = store or self.store
        due = store.due(batch, claimable)
        claimed = store.claim(due, (planner or self.planner)(due), beat, DISPATCH)
        return Fired(claimed.claims, claimed.gaps, claimed.quarantines, claimed.missed, len(due.jobs))

    def claim_one(self, planner: Planner | None = None) -> Claim:
        """Claim the only job that is due."""
        (claim,) = self.claim(planner=planner).claims
        return claim

    def publish(self, *claims: Claim) -> set[str]:
        """Record that the broker has these messages; each waits for as long as its lease."""
        return self.store.mark_published([(claim, claim.lease_seconds) for claim in claims]).done

    def release(self, claims: Iterable[Claim], ending: Ending) -> Recorded:
        """Record what became of claims that no worker has begun."""
        releases = [Release(c.job_id, c.run_id, c.claim_id, c.fence, ending) for c in claims]
        return self.store.finish(releases, Guard.UNSTARTED)

    def dispatch(self, *claims: Claim, reason: str | None = None) -> set[str]:
        """Record slots that were fired and forgotten."""
        return self.release(claims, Ending(DISPATCHED, reason)).done

    def give_back(self, claim: Claim, reason: str = "no broker", seconds: float = 0.0) -> set[str]:
        """Give back a claim that was not published for certain."""
        return self.release([claim], released(reason, seconds)).done

    def forgotten(self) -> Claim:
        """Fire and forget the only job that is due."""
        claim = self.claim_one()
        assert self.dispatch(claim) == {claim.run_id}
        return claim

    def never_started(self) -> Claim:
        """Publish the only due job with a lease, and let its message outlast its last deadline."""
        claim = self.claim_one()
        self.publish(claim)
        for _ in range(1 + MAX_REPUBLISHES):
            self.later(LONGEST_QUEUED_SECONDS)
            self.sweep(can_republish=False)
        return claim

    # Runs

    def request(self, claim: Claim, celery_retries: int = 0) -> StartRequest:
        """Return the question of a worker that took the claim's message."""
        return StartRequest(claim.run_id, claim.claim_id, claim.fence, self.ids.random_id(), celery_retries)

    def ask(self, *requests: StartRequest, worker: str = WORKER, store: Store | None = None) -> dict[str, StartedRun]:
        """Ask for starts; return what may begin, by run id."""
        answers = (store or self.store).start(requests, worker)
        return {run_id: answer for run_id, answer in answers.items() if isinstance(answer, StartedRun)}

    def start(self, claim: Claim, celery_retries: int = 0, worker: str = WORKER) -> StartedRun | None:
        """Start a claim's run."""
        return self.ask(self.request(claim, celery_retries), worker=worker).get(claim.run_id)

    def begin(self, claim: Claim, celery_retries: int = 0, worker: str = WORKER) -> StartedRun:
        """Start a claim's run, which may begin."""
        run = self.start(claim, celery_retries, worker)
        assert run is not None
        return run

    def running(self, planner: Planner | None = None) -> StartedRun:
        """Claim, publish and start the only job that is due."""
        claim = self.claim_one(planner)
        self.publish(claim)
        return self.begin(claim)

    def overlapping(self) -> StartedRun:
        """Fire and forget the only due job, and start its run."""
        return self.begin(self.forgotten())

    def refused(self, claim: Claim) -> str | None:
        """Return why a message of this claim may not begin."""
        answer = self.store.start([self.request(claim)], WORKER).get(claim.run_id)
        assert answer is None or isinstance(answer, RefusedStart)
        return why_refused(answer)

    def extend(self, *runs: StartedRun, seconds: float = LEASE) -> set[str]:
        """Extend leases; return the ids of the runs that have lost theirs."""
        extended = self.store.extend([(run, seconds) for run in runs])
        assert extended.busy == set()
        return extended.lost

    def finish(self, run: StartedRun, ending: Ending | None = None, store: Store | None = None) -> bool:
        """End a run, as its worker does; return whether that was written."""
        return run.run_id in (store or self.store).finish([outcome(run, ending or after_success())]).done

    def failure(self, seconds: float, error: str | None = None) -> Ending:
        """Return a failure that is tried again after so many seconds."""
        return Ending(RETRY, "failed", seconds, 1, 0, error)

    # Leases that ended

    def leases(self, most: int = 500) -> list[HeldLease]:
        """Return the leases that have ended."""
        return self.store.expired(most).leases

    def ended_one(self) -> HeldLease:
        """Return the only lease that has ended."""
        (lease,) = self.leases()
        return lease

    def reclaim(self, ending: Ending, *leases: HeldLease, store: Store | None = None) -> set[str]:
        """Take ended leases from their holders; return the ids of the runs."""
        releases = [Release(lease.job_id, lease.run_id, lease.claim_id, lease.fence, ending) for lease in leases]
        return (store or self.store).finish(releases, Guard.EXPIRED).done

    def decided(self, lease: HeldLease, can_republish: bool = True, **facts: Any) -> Ending | Republish:
        """Return what a beat decides about a lease that it found ended."""
        return after_ended_lease(ExpiredLease.of(lease), MAX_LOST, can_republish, **facts)

    def sweep(self, beat: str = BEAT, can_republish: bool = True, **facts: Any) -> set[str]:
        """Do what a beat does about all ended leases; return the run ids to publish again."""
        waiting: list[tuple[HeldLease, float]] = []
        for lease in self.leases():
            decision = self.decided(lease, can_republish, **facts)
            if isinstance(decision, Republish):
                waiting.append((lease, decision.queued_seconds))
            else:
                self.reclaim(decision, lease)
        return self.store.postpone(waiting, beat)


def outcome(run: StartedRun, ending: Ending) -> Release:
    """Return what a worker writes at the end of a run."""
    return Release(run.job_id, run.run_id, run.claim_id, run.fence, ending, run.celery_retries)


def outcomes(runs: Sequence[StartedRun]) -> list[Release]:
    """Return the successes of runs."""
    return [outcome(run, after_success()) for run in runs]
