"""Claim due jobs, record what became of the claims, and keep what waits from being taken over."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from celery_sqlbeat.errors import TransientError
from celery_sqlbeat.model import Claim, Claimed, DueBatch, HeldLease, Plan, Unbegun
from celery_sqlbeat.model.lifecycle import CLAIMED, RUNNING, released
from celery_sqlbeat.store.keyvalue.claim_rows import PlannedJob, parts_of, write_part
from celery_sqlbeat.store.keyvalue.rows import Key, Place, Row, Scan
from celery_sqlbeat.store.keyvalue.tables import JOB, LEASES, RUN, after, kept
from celery_sqlbeat.store.keyvalue.units import Busy, View, carry_out
from celery_sqlbeat.store.records import KeptRun, Recorded, Release

Finish = Callable[[Sequence[Release]], Recorded]


class Claims:
    """What beats write to one place."""

    def __init__(self, place: Place, finish: Finish) -> None:
        """Write to a place. `finish` ends claims that no worker has begun."""
        self._place = place
        self._finish = finish
        self._unanswered: list[Claim] = []
        """Claims that may stand although nobody was told so."""

    def claim(self, due: DueBatch, plan: Plan, beat: str, dispatch_seconds: float) -> Claimed:
        """Write what was planned of due jobs, where they are as they were read."""
        planned = parts_of(due, plan)
        write = partial(write_part, beat=beat, dispatch_seconds=dispatch_seconds)
        try:
            answers = carry_out(self._place, planned, PlannedJob.keys, write)
        except TransientError:
            self._unanswered += plan.claims
            raise
        claimed = Claimed([], [], [], set())
        advanced = 0
        for part, moved in zip(planned, answers, strict=True):
            if isinstance(moved, Busy) and part.claim is not None:
                self._unanswered.append(part.claim)
            if isinstance(moved, Busy) or moved is None:
                claimed.missed.add(part.job.job_id)
                continue
            claimed.claims.extend([moved.claim] if moved.claim else [])
            claimed.quarantines.extend([moved.quarantine] if moved.quarantine else [])
            claimed.gaps.extend(moved.gaps)
            advanced += moved.is_advanced
        return claimed._replace(advanced=advanced)

    def release_unanswered(self) -> None:
        """Release claims that may stand: none of them was published, and none need wait."""
        claims, self._unanswered = self._unanswered, []
        if claims:
            ending = released("the answer to the claim was lost")
            try:
                self._finish([Release(c.job_id, c.run_id, c.claim_id, c.fence, ending) for c in claims])
            except TransientError:
                self._unanswered = claims
                raise

    def mark_published(self, published: Iterable[tuple[Claim, float]]) -> Recorded:
        """Record what the broker confirmed, with the seconds that each may stay queued."""
        queued = list(published)

        def mark(view: View, item: tuple[Claim, float]) -> bool:
            job = _held(view, item[0])
            if job is None or job.get("started_retry") is not None:
                return False
            job |= {"published_at": view.now, "lease_ends_at": after(view.now, item[1])}
            return True

        answers = carry_out(self._place, queued, lambda item: [(JOB, item[0].job_id)], mark)
        return recorded([claim.run_id for claim, _ in queued], answers)

    def postpone(
        self, waiting: Sequence[tuple[HeldLease, float]] | Sequence[Unbegun] | Sequence[KeptRun], node: str = ""
    ) -> set[str]:
        """Give queued slots a later start deadline, or let runs hold their jobs for longer."""
        # Of two messages for one run the one with more of Celery's own retries counts.
        unbegun = sorted((row for row in waiting if isinstance(row, Unbegun)), key=attrgetter("celery_retries"))
        moved = self._postponed(
            {row.run_id: row for row in unbegun}.values(), lambda row: [(RUN, row.run_id)], _wait_on
        )
        keeping = [row for row in waiting if isinstance(row, KeptRun)]
        self._postponed(keeping, lambda row: [(JOB, row.run.job_id)], _keep)  # no start deadline is moved
        ended = [row for row in waiting if not isinstance(row, Unbegun | KeptRun)]
        return moved | self._postponed(ended, lambda row: [(JOB, row[0].job_id)], partial(_republish, node=node))

    def _postponed(
        self, items: Iterable[Any], keys: Callable[[Any], Iterable[Key]], decide: Callable[[View, Any], str | None]
    ) -> set[str]:
        answers = carry_out(self._place, list(items), keys, decide)
        return {run_id for run_id in answers if run_id is not None and not isinstance(run_id, Busy)}

    def release_orphan_locks(self, lock_seconds: float) -> list[str]:
        """Release locks that stand for no run; return the names of the jobs that are free again."""
        locked = self._place.read(scans=[Scan(LEASES, high=self._place.read().now)]).scanned[0].ids
        free = partial(_free_orphan, lock_seconds=lock_seconds)
        answers = carry_out(self._place, [job_id for job_id, _ in locked], lambda job_id: [(JOB, job_id)], free)
        return [name for name in answers if name is not None and not isinstance(name, Busy)]


def recorded(run_ids: Sequence[str], answers: Sequence[object]) -> Recorded:
    """Return which of these runs were written, and about which nobody knows."""
    result = Recorded(set(), set())
    for run_id, answer in zip(run_ids, answers, strict=True):
        if isinstance(answer, Busy):
            result.busy.add(run_id)
        elif answer:
            result.done.add(run_id)
    return Recorded(result.done, result.busy - result.done)


def _held(view: View, holder: Any) -> Row | None:
    """Return a job where this claim, under this fence, holds it."""
    job = view.row(JOB, holder.job_id)
    if job is None or job.get("locked_by") is None:
        return None
    mine = (holder.run_id, holder.claim_id, holder.fence)
    return job if (job.get("run_id"), job.get("claim_id"), job["fence"]) == mine else None


def _republish(view: View, item: tuple[HeldLease, float], node: str) -> str | None:
    """Take a queued run over from a beat, for as long as its next copy may wait."""
    lease, seconds = item
    job, now = _held(view, lease), view.now
    if job is None or job.get("started_retry") is not None or job.get("republishes", 0) != lease.republishes:
        return None
    if job.get("lease_ends_at") is None or job["lease_ends_at"] > now:
        return None
    job |= {
        "locked_by": node,
        "locked_at": now,
        "republishes": lease.republishes + 1,
        "lease_ends_at": after(now, seconds),
    }
    return lease.run_id


def _wait_on(view: View, message: Unbegun) -> str | None:
    """Move the deadline of a run on whose message waits in a worker; never back."""
    run = view.row(RUN, message.run_id)
    if run is None or (run.get("claim_id"), run["fence"]) != (message.claim_id, message.fence):
        return None
    job = view.row(JOB, run["job_id"])
    if run["state"] not in (CLAIMED, RUNNING) or job is None or job.get("locked_by") is None:
        return None
    if (job.get("run_id"), job.get("claim_id"), job["fence"]) != message[:3]:
        return None
    if job.get("started_retry") is not None and job["started_retry"] >= message.celery_retries:
        return None
    # What a worker holds was published, even where its beat has not said so yet.
    job["published_at"] = view.now if job.get("published_at") is None else job["published_at"]
    job["lease_ends_at"] = max(job.get("lease_ends_at") or 0, after(view.now, run["lease_seconds"]))
    return message.run_id


def _keep(view: View, kept_run: KeptRun) -> str | None:
    """Let a run hold its job until another slot comes."""
    job = _held(view, kept_run.run)
    if job is None or job.get("replace_at") is None or job["replace_at"] > view.now:
        return None
    job["replace_at"] = kept(kept_run.until)
    return kept_run.run.run_id


def _free_orphan(view: View, job_id: str, lock_seconds: float) -> str | None:
    """Release a lock that stands for no run, once its time is over."""
    job = view.row(JOB, job_id)
    if job is None or job.get("locked_by") is None or view.row(RUN, job.get("run_id")) is not None:
        return None
    locked_at, ends_at = job.get("locked_at"), job.get("lease_ends_at")
    is_undated = locked_at is None and ends_at is None
    if not is_undated:
        minutes = job.get("lock_timeout_minutes")
        until = (
            after(locked_at or 0, lock_seconds if minutes is None else 60.0 * minutes) if ends_at is None else ends_at
        )
        if until > view.now:
            return None
    job |= dict.fromkeys(("lease_ends_at", "run_id", "claim_id", "started_retry"))
    job |= {
        "locked_by": job["locked_by"] if is_undated else None,
        "locked_at": view.now if is_undated else None,
        "fence": job["fence"] + 1,
    }
    return None if is_undated else str(job["job_name"])
