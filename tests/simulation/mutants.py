"""Deliberate protocol bugs: each a small patch of one condition, in every place where that condition stands.

The simulation must catch each of them; `make mutants` applies one after the other to a copy of the package.
"""

from typing import NamedTuple

MIGRATION_SQL = "sql/sqlite/migrations/0002_foreign_shops.sql"
BEAT_SQL = "sql/sqlite/statements/beat.sql"
RUNS_SQL = "sql/sqlite/statements/runs.sql"
WORKER_SQL = "sql/sqlite/statements/worker.sql"
LIFECYCLE = "celery_sqlbeat/lifecycle.py"
KEEPER = "celery_sqlbeat/worker/keeper.py"
BEAT_STORE = "celery_sqlbeat/store/beat_store.py"

_NO_TRIGGER = "CREATE TRIGGER Jobs_Deleted AFTER DELETE ON Jobs\nWHEN OLD.Fence < 0"
_OWN_NEXT = "Jobs.NextRunTime IS r.SeenNextRunTime THEN r.NextSlot"


class Patch(NamedTuple):
    """One place. The old text stands there exactly once."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One bug."""

    name: str
    patches: tuple[Patch, ...]


def _mutant(name: str, *places: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tuple(Patch(*place) for place in places))


MUTANTS = (
    _mutant(
        "heartbeat without the fence",
        (
            WORKER_SQL,
            "Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence\n"
            "    AND Jobs.LockedBy IS NOT NULL\nRETURNING RunId;",
            "Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id\n"
            "    AND Jobs.LockedBy IS NOT NULL\nRETURNING RunId;",
        ),
    ),
    _mutant(
        "a deadline that a worker moves back",
        (WORKER_SQL, "max(Jobs.LeaseEndsAt, after(:now, r.LeaseSeconds))", "after(:now, r.LeaseSeconds)"),
    ),
    _mutant(
        "outcome without the fence",
        (RUNS_SQL, "Jobs.ClaimId = r.claim_id AND Jobs.Fence = r.fence", "Jobs.ClaimId = r.claim_id"),
    ),
    _mutant(
        "a job that is defined again begins with its first fence",
        (MIGRATION_SQL, "CREATE TRIGGER Jobs_Deleted AFTER DELETE ON Jobs\nWHEN OLD.Fence > 0", _NO_TRIGGER),
    ),
    _mutant(
        "outcome without the claim id",
        (RUNS_SQL, "Jobs.ClaimId = r.claim_id AND Jobs.Fence = r.fence", "Jobs.Fence = r.fence"),
    ),
    _mutant(
        "start not one-time",
        (WORKER_SQL, "OR Jobs.StartedRetry < r.celery_retries", "OR Jobs.StartedRetry <= r.celery_retries"),
    ),
    _mutant(
        "start although another run holds the job",
        (
            WORKER_SQL,
            "r.State = 'dispatched' AND Jobs.LockedBy IS NULL AND Jobs.RunId IS NULL\n",
            "r.State = 'dispatched'\n",
        ),
    ),
    _mutant(
        "start of a run whose job is deleted",
        (
            WORKER_SQL,
            "OR EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = JobRuns.JobId AND j.DeleteRequested = 0)",
            "OR 1 = 1",
        ),
    ),
    _mutant(
        "claim ignores LockedBy",
        (
            BEAT_SQL,
            "Namespace = :namespace AND Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL\n"
            "    AND coalesce(RetryAt, NextRunTime) <= :now",
            "Namespace = :namespace AND Enabled = 1 AND Quarantine IS NULL\n"
            "    AND coalesce(RetryAt, NextRunTime) <= :now",
        ),
        (
            BEAT_SQL,
            "Jobs.Fence = p.fence AND Jobs.LockedBy IS NULL\n    AND (Jobs.Enabled",
            "Jobs.Fence = p.fence\n    AND (Jobs.Enabled",
        ),
    ),
    _mutant(
        "claim ignores RetryAt",
        (BEAT_SQL, "    AND coalesce(RetryAt, NextRunTime) <= :now", "    AND NextRunTime <= :now"),
    ),
    _mutant(
        "claim ignores Enabled",
        (
            BEAT_SQL,
            "Namespace = :namespace AND Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL\n"
            "    AND coalesce(RetryAt, NextRunTime) <= :now",
            "Namespace = :namespace AND LockedBy IS NULL AND Quarantine IS NULL\n"
            "    AND coalesce(RetryAt, NextRunTime) <= :now",
        ),
        (BEAT_SQL, "    AND (Jobs.Enabled = 1 OR Jobs.DisabledReason = 'finished')\nRETURNING", "RETURNING"),
    ),
    _mutant(
        "reclaim without the ended-lease test",
        (RUNS_SQL, "Jobs.LeaseEndsAt <= after(:now, -:grace_seconds)\n            AND", "1 = 1\n            AND"),
        (BEAT_SQL, "    AND j.LeaseEndsAt <= after(:now, -:grace_seconds)\n", ""),
    ),
    _mutant(
        "mark-published moves a run backwards",
        (
            BEAT_SQL,
            "AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL\nRETURNING RunId;",
            "AND Jobs.LockedBy IS NOT NULL\nRETURNING RunId;",
        ),
    ),
    _mutant(
        "give-back although started",
        (RUNS_SQL, "    AND (:only_unstarted = 0 OR Jobs.StartedRetry IS NULL)\n", ""),
    ),
    _mutant("fence not raised on reclaim", (RUNS_SQL, "Fence = Jobs.Fence + 1", "Fence = Jobs.Fence + 0")),
    _mutant(
        "release at terminate instead of at the task's end",
        (
            KEEPER,
            "            call(callback)\n",
            "            call(callback)\n            self._end(one, _abandoned(one), 0.0, None)\n",
        ),
    ),
    _mutant(
        "next slot from the heartbeat instead of the claim",
        (
            RUNS_SQL,
            _OWN_NEXT,
            "Jobs.NextRunTime IS r.SeenNextRunTime "
            "THEN after(r.NextSlot, 86400.0 * (julianday(Jobs.LockedAt) - julianday(Jobs.ClaimedAt)))",
        ),
    ),
    _mutant(
        "next slot from the end of the run under from_start",
        (
            RUNS_SQL,
            _OWN_NEXT,
            "Jobs.NextRunTime IS r.SeenNextRunTime "
            "THEN after(r.NextSlot, 86400.0 * (julianday(:now) - julianday(Jobs.ClaimedAt)))",
        ),
    ),
    _mutant(
        "next slot not later than the ended one after the clock stepped back",
        (
            "celery_sqlbeat/schedule/series.py",
            "return self.after_skipped(now, slot), None",
            "return self.after_skipped(now, now), None",
        ),
    ),
    _mutant(
        "failure advances NextRunTime",
        (
            RUNS_SQL,
            "WHEN r.Advances = 1 AND r.retry_seconds IS NULL AND " + _OWN_NEXT,
            "WHEN r.Advances = 1 AND " + _OWN_NEXT,
        ),
    ),
    _mutant(
        "retries not bounded", (LIFECYCLE, "if failures <= max_retries else", "if failures <= max_retries + 1000 else")
    ),
    _mutant(
        "lost leases counted as failures",
        (LIFECYCLE, "return Ending(RETRY, reason, 0.0, 0, 1)", "return Ending(RETRY, reason, 0.0, 1, 0)"),
    ),
    _mutant(
        "republish under a new id",
        (
            "celery_sqlbeat/beat/reaping.py",
            "        lease.run_id,\n        lease.claim_id,\n        lease.fence,\n        slot,",
            "        lease.claim_id,\n        lease.claim_id,\n        lease.fence,\n        slot,",
        ),
    ),
    _mutant(
        "republish unbounded",
        (LIFECYCLE, "if run.republishes >= MAX_REPUBLISHES:", "if run.republishes >= 1000:"),
    ),
    _mutant(
        "lease end counted from the reply instead of the sending",
        (
            "celery_sqlbeat/worker/heartbeats.py",
            "one.extended(sent_at)",
            "one.extended(self._holdings.clock())",
        ),
    ),
    _mutant(
        "host clock instead of server clock",
        (BEAT_SQL, "    ClaimedAt = :now,\n    LeaseEndsAt", "    ClaimedAt = datetime('now'),\n    LeaseEndsAt"),
    ),
    _mutant(
        "reclaim at once after an outage",
        (
            "celery_sqlbeat/beat/sight.py",
            "return self._clock() >= self._lost_at + self._patience",
            "return True",
        ),
    ),
    _mutant(
        "take claims from their beats at once after the clock was set",
        (
            "celery_sqlbeat/beat/sight.py",
            "return self._clock() >= self._lost_at + self._claim_seconds",
            "return True",
        ),
    ),
    _mutant(
        "slot record and claim in two transactions",
        (
            BEAT_STORE,
            "        new = [_new_run(c) for c in claims if not c.slot.same_run]\n",
            "        session.commit()\n        session.begin()\n"
            "        new = [_new_run(c) for c in claims if not c.slot.same_run]\n",
        ),
    ),
    _mutant("a skipped gap not recorded", (BEAT_STORE, '("insert_gaps", gaps),', '("insert_gaps", []),')),
    _mutant(
        "retry message of self.retry() treated as a duplicate",
        (WORKER_SQL, "                OR Jobs.StartedRetry < r.celery_retries\n", ""),
    ),
    _mutant(
        "an ended slot may start",
        (
            WORKER_SQL,
            "JobRuns.State = 'dispatched' AND JobRuns.StartedAt IS NULL",
            "JobRuns.State IN ('dispatched', 'success')",
        ),
        (
            WORKER_SQL,
            "THEN JobRuns.PriorState ELSE JobRuns.State END",
            "THEN JobRuns.PriorState ELSE 'dispatched' END",
        ),
    ),
    # More than the protocol's own list.
    _mutant(
        "a body begins anew between two of Celery's own retries",
        (KEEPER, "    if holding.celery_retries:\n", "    if holding.celery_retries > 1000:\n"),
    ),
    _mutant(
        "a forged message starts a run",
        (WORKER_SQL, "        r.ClaimId = p.claim_id AND r.Namespace", "        r.Namespace"),
        (
            WORKER_SQL,
            "AND Jobs.RunId = r.run_id AND Jobs.ClaimId = r.claim_id\n            AND Jobs.Fence",
            "AND Jobs.RunId = r.run_id\n            AND Jobs.Fence",
        ),
        (
            WORKER_SQL,
            "JobRuns.RunId = p.run_id AND JobRuns.ClaimId = p.claim_id AND JobRuns.Namespace",
            "JobRuns.RunId = p.run_id AND JobRuns.Namespace",
        ),
    ),
    _mutant(
        "no task is stopped before its lease ends",
        (
            "celery_sqlbeat/worker/timing.py",
            "return min(abandoned, lease_seconds - stop_timeout(lease_seconds))",
            "return 2 * lease_seconds",
        ),
    ),
    _mutant(
        "an abandoned claim is extended again",
        (
            "celery_sqlbeat/worker/heartbeats.py",
            "held = [one for one in self._holdings.all() if one.is_extended]",
            "held = self._holdings.all()",
        ),
        (
            "celery_sqlbeat/worker/heartbeats.py",
            "due = [one for one in due if one.is_extended]",
            "due = list(due)",
        ),
        (
            "celery_sqlbeat/worker/heartbeats.py",
            "for one in held if one.is_extended)",
            "for one in held)",
        ),
    ),
    _mutant(
        "a lock is taken for a stray although its run is there",
        (BEAT_SQL, "    AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = Jobs.RunId)\n", ""),
    ),
    _mutant(
        "an operator's next run is overwritten",
        (
            RUNS_SQL,
            "WHEN r.Advances = 1 AND r.retry_seconds IS NULL AND " + _OWN_NEXT,
            "WHEN r.Advances = 1 AND r.retry_seconds IS NULL THEN r.NextSlot",
        ),
    ),
    _mutant(
        "a job is deleted while it runs",
        (BEAT_SQL, "AND DeleteRequested = 1 AND LockedBy IS NULL", "AND DeleteRequested = 1"),
    ),
    _mutant(
        "an attempt forgets the failures before it",
        (
            "celery_sqlbeat/planning.py",
            "        prior.failures,\n        prior.lost_leases,\n        planned_at,",
            "        0,\n        prior.lost_leases,\n        planned_at,",
        ),
    ),
    _mutant(
        "a slot that runs is skipped when its job is resumed",
        (
            "celery_sqlbeat/handle/rescheduling.py",
            "return row.run_id is not None or row.retry_at is not None",
            "return False",
        ),
    ),
    _mutant(
        "what can never be published is no failure",
        (LIFECYCLE, "        reason=CANNOT_BE_PUBLISHED\n", "        reason=CANNOT_BE_PUBLISHED, failures=0\n"),
    ),
    _mutant(
        "what can never be published is closed as if it ran",
        (RUNS_SQL, "OR (:only_unstarted = 1 AND JobRuns.State = 'claimed' AND p.state IN ('retry', 'dlq'))", ""),
    ),
    _mutant(
        "a job that skips runs what came due during its run",
        (
            "celery_sqlbeat/planning.py",
            "if definition.policy.overlap == SKIP and ran_until is not None",
            "if not definition and ran_until is not None",
        ),
    ),
    _mutant(
        "what waits in the queue is replaced",
        (
            "celery_sqlbeat/planning.py",
            "        if run.started:\n            return True, None",
            "        return True, None",
        ),
    ),
    _mutant(
        "a backoff without a bound",
        (LIFECYCLE, "return random() * min(bound, self.longest)", "return 2 * random() * bound"),
    ),
    _mutant(
        "a body may take longer than its max_runtime",
        (KEEPER, "elif one.phase is Phase.BEGUN and now >= one.overdue_at:", "elif now < 0:"),
    ),
)
