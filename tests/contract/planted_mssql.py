"""The planted bugs in the texts of SQL Server, which has its own for all that it writes."""

from collections.abc import Mapping

from tests.simulation.mutants import Patch

SAME: tuple[Patch, ...] = ()
NO_OTHER_CLOCK = "a statement can ask for no other clock than the server's"

_BEAT, _RUNS, _WORKER = (f"sql/source/mssql/{name}.sql" for name in ("beat", "runs", "worker"))
_TRIGGERS = "sql/mssql/migrations/0002_foreign_shops.sql"
_FROM_DUE = "FROM Jobs AS j WITH (INDEX (Jobs_Due), READPAST, ROWLOCK, READCOMMITTEDLOCK)\nWHERE\n    j.Namespace"
_DUE = f"{_FROM_DUE} = :namespace AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Quarantine IS NULL\n"
_ANY_INDEX = ("INDEX (Jobs_Due), ", "")  # that index has only rows that may be claimed
_AS_READ = "j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL AND j.Quarantine IS NULL\n"
_SAME_SLOT = "    AND (j.NextRunTime = p.next_run_time OR (j.NextRunTime IS NULL AND p.next_run_time IS NULL))\n"
_IS_SEEN = "(j.NextRunTime = e.SeenNextRunTime OR (j.NextRunTime IS NULL AND e.SeenNextRunTime IS NULL))"
_MOVES_ON = (
    f"            e.Advances = 1 AND e.RetrySeconds IS NULL\n            AND {_IS_SEEN}\n            THEN e.NextSlot\n"
)


def _later(expression: str) -> str:
    """Return the next slot, moved on by a time since the claim."""
    moved = f"DATEADD(MICROSECOND, DATEDIFF(MICROSECOND, j.ClaimedAt, {expression}), e.NextSlot)"
    return _MOVES_ON.replace("THEN e.NextSlot", f"THEN {moved}")


MSSQL: Mapping[str, tuple[Patch, ...] | str] = {
    "heartbeat without the fence": (
        Patch(
            _WORKER,
            "AND j.Fence = p.fence AND j.LockedBy IS NOT NULL\nOPTION (LOOP JOIN, FORCE ORDER);\n\n-- name: read_busy",
            "AND j.LockedBy IS NOT NULL\nOPTION (LOOP JOIN, FORCE ORDER);\n\n-- name: read_busy",
        ),
    ),
    "a deadline that a worker moves back": (
        Patch(_WORKER, "CASE WHEN j.LeaseEndsAt > d.EndsAt THEN j.LeaseEndsAt ELSE d.EndsAt END", "d.EndsAt"),
    ),
    "outcome without the fence": (
        Patch(_RUNS, "j.ClaimId = e.ClaimId AND j.Fence = e.Fence\n", "j.ClaimId = e.ClaimId\n"),
    ),
    "a job that is defined again begins with its first fence": (
        Patch(
            _TRIGGERS,
            "IF NOT EXISTS (SELECT 1 FROM deleted AS g WHERE g.Fence > 0)",
            "IF NOT EXISTS (SELECT 1 FROM deleted AS g WHERE g.Fence < 0)",
        ),
    ),
    "outcome without the claim id": (
        Patch(_RUNS, "j.ClaimId = e.ClaimId AND j.Fence = e.Fence\n", "j.Fence = e.Fence\n"),
    ),
    "start not one-time": (
        Patch(_WORKER, "OR (j.StartedRetry < p.celery_retries AND", "OR (j.StartedRetry <= p.celery_retries AND"),
    ),
    "start although another run holds the job": (
        Patch(
            _WORKER,
            "r.State = 'dispatched' AND j.LockedBy IS NULL AND j.RunId IS NULL AND j.Fence = d.SeenFence\n",
            "r.State = 'dispatched'\n",
        ),
    ),
    "start of a run whose job is deleted": (
        Patch(
            _WORKER,
            "OR EXISTS (\n"
            "                    SELECT 1\n"
            "                    FROM Jobs AS j WITH (REPEATABLEREAD, ROWLOCK)\n"
            "                    WHERE j.Id = r.JobId AND j.DeleteRequested = 0\n"
            "                )",
            "OR 1 = 1",
        ),
    ),
    "claim ignores LockedBy": (
        Patch(_BEAT, _DUE, _DUE.replace(" AND j.LockedBy IS NULL", "").replace(*_ANY_INDEX)),
        Patch(_BEAT, _AS_READ, _AS_READ.replace(" AND j.LockedBy IS NULL", "")),
    ),
    "claim ignores RetryAt": (
        Patch(_BEAT, f"{_DUE}    AND j.DueAt <= :now\n", f"{_DUE}    AND j.NextRunTime <= :now\n"),
    ),
    "claim ignores Enabled": (
        Patch(_BEAT, _DUE, _DUE.replace(" AND j.Enabled = 1", "").replace(*_ANY_INDEX)),
        Patch(_BEAT, "    AND (j.Enabled = 1 OR j.DisabledReason = N'finished')\n    AND (j.Next", "    AND (j.Next"),
    ),
    "reclaim without the ended-lease test": (
        Patch(_RUNS, "OR (j.LeaseEndsAt <= @cutoff AND (j.Started", "OR (1 = 1 AND (j.Started"),
        Patch(_BEAT, "j.LockedBy IS NOT NULL AND j.LeaseEndsAt <= @cutoff\n", "j.LockedBy IS NOT NULL\n"),
    ),
    "mark-published moves a run backwards": (
        Patch(
            _BEAT,
            "    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL\nOPTION",
            "    AND j.LockedBy IS NOT NULL\nOPTION",
        ),
    ),
    "give-back although started": (Patch(_RUNS, "    AND (:only_unstarted = 0 OR j.StartedRetry IS NULL)\n", ""),),
    "fence not raised on reclaim": (Patch(_RUNS, "Fence = j.Fence + 1", "Fence = j.Fence + 0"),),
    "next slot from the heartbeat instead of the claim": (Patch(_RUNS, _MOVES_ON, _later("j.LockedAt")),),
    "next slot from the end of the run under from_start": (Patch(_RUNS, _MOVES_ON, _later(":now")),),
    "failure advances NextRunTime": (Patch(_RUNS, _MOVES_ON, _MOVES_ON.replace(" AND e.RetrySeconds IS NULL", "")),),
    "host clock instead of server clock": NO_OTHER_CLOCK,
    "claim by what was read, whatever an operator has changed since": (
        Patch(_BEAT, _AS_READ, _AS_READ.replace(" AND j.Version = p.version", "")),
        Patch(_BEAT, _SAME_SLOT, ""),
    ),
    "claim an attempt in whatever state it is now": SAME,
    "slot record and claim in two transactions": SAME,
    "a skipped gap not recorded": SAME,
    "retry message of self.retry() treated as a duplicate": (
        Patch(_WORKER, "                OR (j.StartedRetry < p.celery_retries AND r.CancelAt IS NULL)\n", ""),
    ),
    "an ended slot may start": (
        Patch(_WORKER, "r.State = 'dispatched' AND r.StartedAt IS NULL\n", "r.State IN ('dispatched', 'success')\n"),
        Patch(_WORKER, "THEN r.PriorState ELSE r.State END", "THEN r.PriorState ELSE 'dispatched' END"),
    ),
    "a forged message starts a run": (
        Patch(
            _WORKER,
            "    r.ClaimId = p.claim_id AND r.Namespace = :namespace AND r.Exclusive = 1\n",
            "    r.Namespace = :namespace AND r.Exclusive = 1\n",
        ),
        Patch(
            _WORKER,
            "AND j.RunId = p.run_id AND j.ClaimId = p.claim_id\n            AND j.Fence",
            "AND j.RunId = p.run_id\n            AND j.Fence",
        ),
        Patch(
            _WORKER,
            "    r.ClaimId = p.claim_id AND r.Namespace = :namespace\n    AND (",
            "    r.Namespace = :namespace\n    AND (",
        ),
    ),
    "a lock is taken for a stray although its run is there": (
        Patch(_BEAT, "    AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = j.RunId)\n", ""),
    ),
    "an operator's next run is overwritten": (
        Patch(_RUNS, _MOVES_ON, _MOVES_ON.replace(f"            AND {_IS_SEEN}\n", "")),
    ),
    "a job is deleted while it runs": (
        Patch(_BEAT, "    j.DeleteRequested = 1 AND j.LockedBy IS NULL\n", "    j.DeleteRequested = 1\n"),
    ),
    "what can never be published is closed as if it ran": (
        Patch(_RUNS, "OR (:only_unstarted = 1 AND r.State = 'claimed' AND p.state IN ('retry', 'dlq'))", ""),
    ),
}
