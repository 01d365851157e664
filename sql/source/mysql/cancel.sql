-- How somebody ends a run that others hold, or that waits. The clock as in beat.sql.

-- name: ask_runs
SELECT json_arrayagg(json_array(r.RunId, p.cancel_by, p.cancel_reason, p.reason))
INTO @won
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE r.State = p.state AND r.Fence = p.fence AND r.CancelAt IS NULL
FOR UPDATE;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            RunId char(36) PATH '$[0]', CancelBy varchar(200) PATH '$[1]', CancelReason varchar(400) PATH '$[2]',
            Reason varchar(400) PATH '$[3]'
        )
    ) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId
SET r.CancelAt = :now, r.CancelBy = w.CancelBy, r.CancelReason = w.CancelReason, r.Reason = w.Reason;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[0]')) AS w;

-- name: pass_by_waiting
SELECT
    json_arrayagg(
        json_array(
            j.Id, CASE WHEN j.RetryRunId = r.run_id THEN 1 ELSE 0 END,
            CASE WHEN j.LockedBy IS NULL AND j.RunId = r.run_id THEN 1 ELSE 0 END,
            r.NextSlot,
            -- Another NextRunTime than the claim saw is an operator's, and wins.
            CASE
                WHEN
                    (j.RetryRunId = r.run_id OR (j.LockedBy IS NULL AND j.RunId = r.run_id AND r.Advances = 1))
                    AND j.NextRunTime <=> r.SeenNextRunTime
                    THEN 1
                ELSE 0
            END
        )
    )
INTO @won
FROM (
    SELECT
        p.job_id, p.run_id, p.fence, r.Advances, r.SeenNextRunTime,
        CASE
            WHEN r.DelaySeconds IS NULL THEN r.PlannedAt
            ELSE greatest(:now, r.ScheduledFor) + INTERVAL r.DelaySeconds SECOND
        END AS NextSlot
    FROM p
    STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
) AS r
STRAIGHT_JOIN Jobs AS j ON j.Id = r.job_id
WHERE j.Fence = r.fence
FOR UPDATE;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            Id char(36) PATH '$[0]', Waited smallint PATH '$[1]', WasLeft smallint PATH '$[2]',
            NextSlot datetime(6) PATH '$[3]', MovesOn smallint PATH '$[4]'
        )
    ) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET
    -- Of a job that another run holds, the end of that one raises it.
    j.Fence = j.Fence + CASE WHEN j.LockedBy IS NULL THEN 1 ELSE 0 END,
    j.RunId = CASE WHEN w.WasLeft = 0 THEN j.RunId END,
    j.ClaimId = CASE WHEN w.WasLeft = 0 THEN j.ClaimId END,
    j.RetryAt = CASE WHEN w.Waited = 0 THEN j.RetryAt END,
    j.RetryRunId = CASE WHEN w.Waited = 0 THEN j.RetryRunId END,
    j.NextRunTime = CASE WHEN w.MovesOn = 1 THEN w.NextSlot ELSE j.NextRunTime END,
    j.Enabled = CASE WHEN w.MovesOn = 1 AND w.NextSlot IS NULL THEN 0 ELSE j.Enabled END,
    j.DisabledReason = CASE WHEN w.MovesOn = 1 AND w.NextSlot IS NULL THEN 'finished' ELSE j.DisabledReason END;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: cancel_runs
SELECT json_arrayagg(json_array(r.RunId, r.State, p.cancel_by, p.cancel_reason, p.reason))
INTO @won
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE r.State = p.state AND r.Fence = p.fence
FOR UPDATE;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            RunId char(36) PATH '$[0]', State varchar(20) PATH '$[1]', CancelBy varchar(200) PATH '$[2]',
            CancelReason varchar(400) PATH '$[3]', Reason varchar(400) PATH '$[4]'
        )
    ) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId
SET
    r.State = 'cancelled',
    r.PriorState = w.State,
    r.Reason = w.Reason,
    r.DueAt = NULL,
    r.FinishedAt = :now,
    r.HeldBy = NULL,
    r.LeaseEndsAt = NULL,
    r.CancelAt = :now,
    r.CancelBy = w.CancelBy,
    r.CancelReason = w.CancelReason;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[0]')) AS w;
