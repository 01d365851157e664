"""The planted bugs of tests/simulation/mutants.py in the texts of the other databases.

Where a database runs the common text, the same patch plants the bug. Where it has a block of its
own, the same condition is taken out of that block. `SAME` stands for the patches of mutants.py.
"""

from collections.abc import Mapping

from tests.contract.planted_mssql import MSSQL, NO_OTHER_CLOCK, SAME
from tests.simulation.mutants import MUTANTS, RUNS_SQL, Mutant, Patch

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")

_PG_BEAT, _PG_WORKER = "sql/source/postgresql/beat.sql", "sql/source/postgresql/worker.sql"
_MY_BEAT, _MY_WORKER = "sql/source/mysql/beat.sql", "sql/source/mysql/worker.sql"
_MY_RUNS = "sql/source/mysql/runs.sql"
_PG_TRIGGERS = "sql/postgresql/migrations/0002_foreign_shops.sql"
_MY_TRIGGERS = "sql/mysql/migrations/0002_foreign_shops.sql"

_PG_DUE = (
    "j.Namespace = :namespace AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Leased = 0 AND j.Quarantine IS NULL\n"
)
_PG_DUE_AT = "    AND coalesce(j.RetryAt, j.NextRunTime) <= :now\n"
_MY_DUE = "j.Namespace = :namespace AND j.ClaimableAt <= :now\n"
_AS_READ = "j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL AND j.Quarantine IS NULL\n"
_NOT_PAUSED = "    AND (j.Enabled = 1 OR j.DisabledReason = 'finished')\n    AND same("
_OWN_NEXT = "same(Jobs.NextRunTime, r.SeenNextRunTime) THEN r.NextSlot\n"
_MY_MOVES_ON = "CASE WHEN r.Advances = 1 AND r.retry_seconds IS NULL AND j.NextRunTime <=> r.SeenNextRunTime THEN 1"
_MY_NEXT = "j.Id, r.run_id, r.state, r.Advances, r.retry_seconds, r.NextSlot,\n"


def _later(expression: str) -> str:
    """Return MySQL's next slot, moved on by a time since the claim."""
    moved = f"r.NextSlot + INTERVAL timestampdiff(MICROSECOND, j.ClaimedAt, {expression}) MICROSECOND"
    return _MY_NEXT.replace("r.NextSlot", moved)


POSTGRESQL: Mapping[str, tuple[Patch, ...] | str] = {
    "heartbeat without the fence": (
        Patch(
            _PG_WORKER,
            "AND j.Fence = p.fence AND j.LockedBy IS NOT NULL\n    FOR NO KEY UPDATE OF j SKIP LOCKED\n)\n\n"
            "UPDATE Jobs SET\n    LockedAt = :now,",
            "AND j.LockedBy IS NOT NULL\n    FOR NO KEY UPDATE OF j SKIP LOCKED\n)\n\n"
            "UPDATE Jobs SET\n    LockedAt = :now,",
        ),
        Patch(
            _PG_WORKER,
            "    AND Jobs.Fence = mine.fence AND Jobs.LockedBy IS NOT NULL\nRETURNING",
            "    AND Jobs.LockedBy IS NOT NULL\nRETURNING",
        ),
    ),
    "a deadline that a worker moves back": (
        Patch(_PG_WORKER, "later(Jobs.LeaseEndsAt, after(:now, mine.LeaseSeconds))", "after(:now, mine.LeaseSeconds)"),
    ),
    "outcome without the fence": SAME,
    "a job that is defined again begins with its first fence": (
        Patch(
            _PG_TRIGGERS,
            "SELECT Namespace, JobName, Fence FROM gone WHERE Fence > 0",
            "SELECT Namespace, JobName, Fence FROM gone WHERE Fence < 0",
        ),
    ),
    "outcome without the claim id": SAME,
    "start not one-time": (
        Patch(
            _PG_WORKER, "OR (Jobs.StartedRetry < r.celery_retries AND", "OR (Jobs.StartedRetry <= r.celery_retries AND"
        ),
    ),
    "start although another run holds the job": (
        Patch(
            _PG_WORKER,
            "r.State = 'dispatched' AND Jobs.LockedBy IS NULL AND Jobs.RunId IS NULL AND Jobs.Fence = r.SeenFence\n",
            "r.State = 'dispatched'\n",
        ),
    ),
    "start of a run whose job is deleted": (
        Patch(
            _PG_WORKER,
            "AND (p.job_fence IS NOT NULL OR t.RunId IS NOT NULL)",
            "AND (p.job_fence IS NOT NULL OR p.run_id IN (SELECT free.RunId FROM free))",
        ),
    ),
    "claim ignores LockedBy": (
        Patch(_PG_BEAT, _PG_DUE, _PG_DUE.replace(" AND j.LockedBy IS NULL AND j.Leased = 0", "")),
        Patch(_PG_BEAT, _AS_READ, _AS_READ.replace(" AND j.LockedBy IS NULL", "")),
        Patch(
            _PG_BEAT,
            "AND Jobs.Fence = free.fence AND Jobs.LockedBy IS NULL\nRETURNING Jobs.Id;\n\n-- name: advance_jobs",
            "AND Jobs.Fence = free.fence\nRETURNING Jobs.Id;\n\n-- name: advance_jobs",
        ),
    ),
    "claim ignores RetryAt": (Patch(_PG_BEAT, _PG_DUE_AT, "    AND j.NextRunTime <= :now\n"),),
    "claim ignores Enabled": (
        Patch(_PG_BEAT, _PG_DUE, _PG_DUE.replace(" AND j.Enabled = 1", "")),
        Patch(_PG_BEAT, _NOT_PAUSED, "    AND same("),
    ),
    "reclaim without the ended-lease test": (
        Patch(RUNS_SQL, "Jobs.LeaseEndsAt <= :now\n            AND", "1 = 1\n            AND"),
        Patch(_PG_BEAT, "AND j.Leased = 1\n    AND j.LeaseEndsAt <= :now\n", "AND j.Leased = 1\n"),
    ),
    "mark-published moves a run backwards": (
        Patch(
            _PG_BEAT,
            "        AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL\n    FOR",
            "        AND j.LockedBy IS NOT NULL\n    FOR",
        ),
        Patch(
            _PG_BEAT,
            "    AND Jobs.Fence = mine.fence AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL\n",
            "    AND Jobs.Fence = mine.fence AND Jobs.LockedBy IS NOT NULL\n",
        ),
    ),
    "give-back although started": SAME,
    "fence not raised on reclaim": SAME,
    "next slot from the heartbeat instead of the claim": (
        Patch(RUNS_SQL, _OWN_NEXT, _OWN_NEXT.replace("r.NextSlot", "r.NextSlot + (Jobs.LockedAt - Jobs.ClaimedAt)")),
    ),
    "next slot from the end of the run under from_start": (
        Patch(RUNS_SQL, _OWN_NEXT, _OWN_NEXT.replace("r.NextSlot", "r.NextSlot + (:now - Jobs.ClaimedAt)")),
    ),
    "failure advances NextRunTime": SAME,
    "host clock instead of server clock": NO_OTHER_CLOCK,
    "claim by what was read, whatever an operator has changed since": (
        Patch(_PG_BEAT, _AS_READ, _AS_READ.replace(" AND j.Version = p.version", "")),
        Patch(_PG_BEAT, "    AND same(j.NextRunTime, p.next_run_time) AND", "    AND"),
    ),
    "claim an attempt in whatever state it is now": SAME,
    "slot record and claim in two transactions": SAME,
    "a skipped gap not recorded": SAME,
    "retry message of self.retry() treated as a duplicate": (
        Patch(_PG_WORKER, "                    OR (Jobs.StartedRetry < r.celery_retries AND r.CancelAt IS NULL)\n", ""),
    ),
    "an ended slot may start": (
        Patch(_PG_WORKER, "r.State = 'dispatched' AND r.StartedAt IS NULL\n", "r.State IN ('dispatched', 'success')\n"),
        Patch(
            _PG_WORKER,
            "THEN JobRuns.PriorState ELSE JobRuns.State END",
            "THEN JobRuns.PriorState ELSE 'dispatched' END",
        ),
    ),
    "a forged message starts a run": (
        Patch(_PG_WORKER, "            r.ClaimId = p.claim_id AND r.Namespace", "            r.Namespace"),
        Patch(
            _PG_WORKER,
            "AND Jobs.RunId = r.run_id AND Jobs.ClaimId = r.claim_id\n                AND Jobs.Fence",
            "AND Jobs.RunId = r.run_id\n                AND Jobs.Fence",
        ),
        Patch(_PG_WORKER, "p.job_fence IS NULL AND r.ClaimId = p.claim_id AND", "p.job_fence IS NULL AND"),
        Patch(
            _PG_WORKER,
            "JobRuns.RunId = key(p.run_id) AND JobRuns.ClaimId = p.claim_id AND JobRuns.Namespace",
            "JobRuns.RunId = key(p.run_id) AND JobRuns.Namespace",
        ),
    ),
    "a lock is taken for a stray although its run is there": (
        Patch(_PG_BEAT, "        AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = j.RunId)\n", ""),
    ),
    "an operator's next run is overwritten": SAME,
    "a job is deleted while it runs": (
        Patch(_PG_BEAT, "WHERE j.DeleteRequested = 1 AND j.LockedBy IS NULL\n", "WHERE j.DeleteRequested = 1\n"),
        Patch(_PG_BEAT, "AND DeleteRequested = 1 AND LockedBy IS NULL\n", "AND DeleteRequested = 1\n"),
    ),
    "what can never be published is closed as if it ran": SAME,
}

MYSQL: Mapping[str, tuple[Patch, ...] | str] = {
    "heartbeat without the fence": (
        Patch(
            _MY_WORKER,
            "WHERE j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence AND j.LockedBy IS NOT NULL\n",
            "WHERE j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.LockedBy IS NOT NULL\n",
        ),
    ),
    "a deadline that a worker moves back": (
        Patch(_MY_WORKER, "greatest(j.LeaseEndsAt, after(:now, w.LeaseSeconds))", "after(:now, w.LeaseSeconds)"),
    ),
    "outcome without the fence": (
        Patch(_MY_RUNS, "j.ClaimId = r.claim_id AND j.Fence = r.fence AND", "j.ClaimId = r.claim_id AND"),
    ),
    "a job that is defined again begins with its first fence": (
        Patch(_MY_TRIGGERS, "FROM DUAL\nWHERE OLD.Fence > 0\n", "FROM DUAL\nWHERE OLD.Fence < 0\n"),
    ),
    "outcome without the claim id": (
        Patch(_MY_RUNS, "j.ClaimId = r.claim_id AND j.Fence = r.fence AND", "j.Fence = r.fence AND"),
    ),
    "start not one-time": (
        Patch(_MY_WORKER, "OR (j.StartedRetry < r.celery_retries AND", "OR (j.StartedRetry <= r.celery_retries AND"),
    ),
    "start although another run holds the job": (
        Patch(
            _MY_WORKER,
            "r.State = 'dispatched' AND j.LockedBy IS NULL AND j.RunId IS NULL AND j.Fence = r.SeenFence\n",
            "r.State = 'dispatched'\n",
        ),
    ),
    "start of a run whose job is deleted": (
        Patch(
            _MY_WORKER,
            "STRAIGHT_JOIN Jobs AS j ON j.Id = f.JobId\nWHERE f.State = 'running' OR j.DeleteRequested = 0\n",
            "LEFT JOIN Jobs AS j ON j.Id = f.JobId\n",
        ),
    ),
    "claim ignores LockedBy": (
        Patch(
            _MY_BEAT,
            _MY_DUE,
            "j.Namespace = :namespace AND coalesce(j.RetryAt, j.NextRunTime) <= :now AND j.Enabled = 1\n"
            "    AND j.Quarantine IS NULL\n",
        ),
        Patch(_MY_BEAT, _AS_READ, _AS_READ.replace(" AND j.LockedBy IS NULL", "")),
    ),
    "claim ignores RetryAt": (
        Patch(_MY_BEAT, _MY_DUE, _MY_DUE.replace("<= :now\n", "IS NOT NULL AND j.NextRunTime <= :now\n")),
    ),
    "claim ignores Enabled": (
        Patch(
            _MY_BEAT,
            _MY_DUE,
            "j.Namespace = :namespace AND coalesce(j.RetryAt, j.NextRunTime) <= :now AND j.LockedBy IS NULL\n"
            "    AND j.Quarantine IS NULL\n",
        ),
        Patch(_MY_BEAT, _NOT_PAUSED, "    AND same("),
    ),
    "reclaim without the ended-lease test": (
        Patch(_MY_RUNS, "j.LeaseEndsAt <= :now\n            AND", "1 = 1\n            AND"),
        Patch(_MY_BEAT, "AND j.Leased = 1\n    AND j.LeaseEndsAt <= :now\n", "AND j.Leased = 1\n"),
    ),
    "mark-published moves a run backwards": (
        Patch(
            _MY_BEAT,
            "    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL\nFOR",
            "    AND j.LockedBy IS NOT NULL\nFOR",
        ),
    ),
    "give-back although started": (Patch(_MY_RUNS, "    AND (:only_unstarted = 0 OR j.StartedRetry IS NULL)\n", ""),),
    "fence not raised on reclaim": (Patch(_MY_RUNS, "j.Fence = j.Fence + 1", "j.Fence = j.Fence + 0"),),
    "next slot from the heartbeat instead of the claim": (Patch(_MY_RUNS, _MY_NEXT, _later("j.LockedAt")),),
    "next slot from the end of the run under from_start": (Patch(_MY_RUNS, _MY_NEXT, _later(":now")),),
    "failure advances NextRunTime": (
        Patch(_MY_RUNS, _MY_MOVES_ON, _MY_MOVES_ON.replace(" AND r.retry_seconds IS NULL", "")),
    ),
    "host clock instead of server clock": NO_OTHER_CLOCK,
    "claim by what was read, whatever an operator has changed since": (
        Patch(_MY_BEAT, _AS_READ, _AS_READ.replace(" AND j.Version = p.version", "")),
        Patch(_MY_BEAT, "    AND same(j.NextRunTime, p.next_run_time) AND", "    AND"),
    ),
    "claim an attempt in whatever state it is now": SAME,
    "slot record and claim in two transactions": SAME,
    "a skipped gap not recorded": SAME,
    "retry message of self.retry() treated as a duplicate": (
        Patch(_MY_WORKER, "            OR (j.StartedRetry < r.celery_retries AND r.CancelAt IS NULL)\n", ""),
    ),
    "an ended slot may start": (
        Patch(
            _MY_WORKER,
            "r.State = 'dispatched' AND r.StartedAt IS NULL\n            AND",
            "r.State IN ('dispatched', 'success')\n            AND",
        ),
        Patch(_MY_WORKER, "THEN r.PriorState ELSE r.State END", "THEN r.PriorState ELSE 'dispatched' END"),
    ),
    "a forged message starts a run": (
        Patch(
            _MY_WORKER,
            "        r.ClaimId = p.claim_id AND r.Namespace = :namespace AND r.Exclusive = 1\n",
            "        r.Namespace = :namespace AND r.Exclusive = 1\n",
        ),
        Patch(
            _MY_WORKER,
            "AND j.RunId = r.run_id AND j.ClaimId = r.claim_id\n        AND j.Fence",
            "AND j.RunId = r.run_id\n        AND j.Fence",
        ),
        Patch(_MY_WORKER, "p.job_fence IS NULL AND r.ClaimId = p.claim_id AND", "p.job_fence IS NULL AND"),
        Patch(
            _MY_WORKER,
            "after(:now, r.LeaseSeconds) END\nWHERE\n    r.ClaimId = p.claim_id AND r.Namespace",
            "after(:now, r.LeaseSeconds) END\nWHERE\n    r.Namespace",
        ),
        Patch(
            _MY_WORKER,
            "STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id\nWHERE\n    r.ClaimId = p.claim_id AND r.Namespace",
            "STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id\nWHERE\n    r.Namespace",
        ),
    ),
    "a lock is taken for a stray although its run is there": (
        Patch(_MY_BEAT, "    AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = j.RunId)\n", ""),
    ),
    "an operator's next run is overwritten": (
        Patch(_MY_RUNS, _MY_MOVES_ON, _MY_MOVES_ON.replace(" AND j.NextRunTime <=> r.SeenNextRunTime", "")),
    ),
    "a job is deleted while it runs": (
        Patch(_MY_BEAT, "    j.DeleteRequested = 1 AND j.LockedBy IS NULL\n", "    j.DeleteRequested = 1\n"),
    ),
    "what can never be published is closed as if it ran": (
        Patch(_MY_RUNS, "OR (:only_unstarted = 1 AND r.State = 'claimed' AND p.state IN ('retry', 'dlq'))", ""),
    ),
}


PLANTED = {"postgresql": POSTGRESQL, "mysql": MYSQL, "mssql": MSSQL}


def is_of_a_store(mutant: Mutant) -> bool:
    """Whether a bug stands in what a store does; any other is in code that all databases share."""
    return any(patch.file.startswith(("sql/", "celery_sqlbeat/store/")) for patch in mutant.patches)


def planted(mutant: Mutant, database: str) -> tuple[Patch, ...] | str:
    """Return the patches that plant a bug for a database, or why it means nothing there."""
    if database == "sqlite":
        return mutant.patches
    patches = PLANTED[database][mutant.name]
    return mutant.patches if patches == SAME else patches


OF_A_STORE = tuple(filter(is_of_a_store, MUTANTS))
