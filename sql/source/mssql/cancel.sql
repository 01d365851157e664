-- How somebody ends a run that others hold, or that waits. Batches, locks and the clock as in beat.sql.

-- name: ask_runs
UPDATE r
SET
    CancelAt = :now,
    CancelBy = p.cancel_by,
    CancelReason = p.cancel_reason,
    Reason = p.reason
OUTPUT inserted.:returns INTO @asked
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.State = p.state AND r.Fence = p.fence AND r.CancelAt IS NULL
OPTION (LOOP JOIN, FORCE ORDER);

-- name: pass_by_waiting
UPDATE j
SET
    -- Of a job that another run holds, the end of that one raises it.
    Fence = j.Fence + CASE WHEN j.LockedBy IS NULL THEN 1 ELSE 0 END,
    RunId = CASE WHEN j.LockedBy IS NULL AND j.RunId = p.run_id THEN NULL ELSE j.RunId END,
    ClaimId = CASE WHEN j.LockedBy IS NULL AND j.RunId = p.run_id THEN NULL ELSE j.ClaimId END,
    RetryAt = CASE WHEN j.RetryRunId = p.run_id THEN NULL ELSE j.RetryAt END,
    RetryRunId = CASE WHEN j.RetryRunId = p.run_id THEN NULL ELSE j.RetryRunId END,
    -- Another NextRunTime than the claim saw is an operator's, and wins. Both may be NULL.
    NextRunTime = CASE WHEN m.MovesOn = 1 THEN n.NextSlot ELSE j.NextRunTime END,
    Enabled = CASE WHEN m.MovesOn = 1 AND n.NextSlot IS NULL THEN 0 ELSE j.Enabled END,
    DisabledReason = CASE WHEN m.MovesOn = 1 AND n.NextSlot IS NULL THEN N'finished' ELSE j.DisabledReason END
OUTPUT inserted.:returns INTO @passed
FROM p
INNER JOIN JobRuns AS r ON r.RunId = p.run_id
INNER JOIN Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
CROSS APPLY (
    SELECT
        CASE
            WHEN
                (j.RetryRunId = p.run_id OR (j.LockedBy IS NULL AND j.RunId = p.run_id AND r.Advances = 1))
                AND (j.NextRunTime = r.SeenNextRunTime OR (j.NextRunTime IS NULL AND r.SeenNextRunTime IS NULL))
                THEN 1
            ELSE 0
        END AS MovesOn
) AS m
CROSS APPLY (
    -- An interval may be a century, so its days are added first.
    SELECT
        CASE
            WHEN r.DelaySeconds IS NULL THEN r.PlannedAt
            ELSE DATEADD(
                MICROSECOND, ROUND(1000000 * (r.DelaySeconds - FLOOR(r.DelaySeconds)), 0),
                DATEADD(
                    SECOND, FLOOR(r.DelaySeconds) - 86400 * FLOOR(r.DelaySeconds / 86400),
                    DATEADD(
                        DAY, FLOOR(r.DelaySeconds / 86400),
                        CASE WHEN r.ScheduledFor > :now THEN r.ScheduledFor ELSE :now END
                    )
                )
            )
        END AS NextSlot
) AS n
WHERE j.Fence = p.fence
OPTION (LOOP JOIN, FORCE ORDER);

-- name: cancel_runs
UPDATE r
SET
    State = 'cancelled',
    PriorState = r.State,
    Reason = p.reason,
    DueAt = NULL,
    FinishedAt = :now,
    HeldBy = NULL,
    LeaseEndsAt = NULL,
    CancelAt = :now,
    CancelBy = p.cancel_by,
    CancelReason = p.cancel_reason
OUTPUT inserted.:returns INTO @cancelled
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.State = p.state AND r.Fence = p.fence
OPTION (LOOP JOIN, FORCE ORDER);
