-- Written by `make sql` from sql/source: change it there.
-- How somebody ends a run that others hold, or that waits. Batches, locks and the clock as in beat.sql.

-- name: read_cancellable
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id, JobId id, State text, Fence bigint, Exclusive flag, ClaimId id, DueAt instant, StartedAt instant,
--   HeldBy text, CancelAt instant, Reason text, JobFence bigint, LockedBy text, LeftRunId id, WaitingRunId id,
--   IsFollowed int, Now instant
-- LeftRunId and WaitingRunId: the run that holds the job, or did so, and the one that waits for its next attempt.
-- A missing row: there is no such run in this namespace.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT
    r.RunId, r.JobId, r.State, r.Fence, r.Exclusive, r.ClaimId, r.DueAt, r.StartedAt, r.HeldBy, r.CancelAt, r.Reason,
    j.Fence AS JobFence, j.LockedBy, j.RunId AS LeftRunId, j.RetryRunId AS WaitingRunId,
    CASE
        WHEN EXISTS (
            SELECT 1
            FROM dbo.JobRuns AS n
            WHERE n.JobId = r.JobId AND n.ScheduledFor = r.ScheduledFor AND n.Kind = r.Kind AND n.Attempt > r.Attempt
        ) THEN 1
        ELSE 0
    END AS IsFollowed,
    @now AS Now
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.JobRuns AS r ON r.RunId = p.run_id
LEFT JOIN dbo.Jobs AS j ON j.Id = r.JobId
WHERE r.Namespace = @namespace
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_asked
-- rows: run_id id
-- returns: RunId id, CancelBy text, CancelReason text, CancelAt instant
-- A missing row: nobody has asked to cancel it.
DECLARE @rows nvarchar(max) = ?;

SELECT r.RunId, r.CancelBy, r.CancelReason, r.CancelAt
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.JobRuns AS r ON r.RunId = p.run_id
WHERE r.CancelAt IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER);

-- name: ask_runs
-- rows: run_id id, state word(20), fence bigint, cancel_by text(200), cancel_reason text(400), reason text(400)
-- returns: RunId id
-- From here on these runs can only end as cancelled. A missing row: it is not as it was read, or was asked before.
DECLARE @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @asked TABLE (RunId uniqueidentifier NOT NULL);

UPDATE r
SET
    CancelAt = @now,
    CancelBy = p.cancel_by,
    CancelReason = p.cancel_reason,
    Reason = p.reason
OUTPUT inserted.RunId INTO @asked (RunId)
FROM OPENJSON(@rows) WITH (
    run_id uniqueidentifier '$[0]',
    state varchar(20) '$[1]',
    fence bigint '$[2]',
    cancel_by nvarchar(200) '$[3]',
    cancel_reason nvarchar(400) '$[4]',
    reason nvarchar(400) '$[5]'
) AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.State = p.state AND r.Fence = p.fence AND r.CancelAt IS NULL
OPTION (LOOP JOIN, FORCE ORDER);

SELECT RunId FROM @asked;

-- name: pass_by_waiting
-- rows: job_id id, run_id id, fence bigint
-- returns: Id id
-- Jobs go on without a run that nobody holds: to their next slots, where it is the one that they wait for. Their fences
-- grow, so that nobody who has read them before claims it. A missing row: the job has changed since it was read.
DECLARE @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @passed TABLE (Id uniqueidentifier NOT NULL);

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
OUTPUT inserted.Id INTO @passed (Id)
FROM OPENJSON(@rows) WITH (
    job_id uniqueidentifier '$[0]',
    run_id uniqueidentifier '$[1]',
    fence bigint '$[2]'
) AS p
INNER JOIN dbo.JobRuns AS r ON r.RunId = p.run_id
INNER JOIN dbo.Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
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
                        CASE WHEN r.ScheduledFor > @now THEN r.ScheduledFor ELSE @now END
                    )
                )
            )
        END AS NextSlot
) AS n
WHERE j.Fence = p.fence
OPTION (LOOP JOIN, FORCE ORDER);

SELECT Id FROM @passed;

-- name: cancel_runs
-- rows: run_id id, state word(20), fence bigint, cancel_by text(200), cancel_reason text(400), reason text(400)
-- returns: RunId id
-- Ends runs that nobody holds. A missing row: it is not as it was read.
DECLARE @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cancelled TABLE (RunId uniqueidentifier NOT NULL);

UPDATE r
SET
    State = 'cancelled',
    PriorState = r.State,
    Reason = p.reason,
    DueAt = NULL,
    FinishedAt = @now,
    HeldBy = NULL,
    LeaseEndsAt = NULL,
    CancelAt = @now,
    CancelBy = p.cancel_by,
    CancelReason = p.cancel_reason
OUTPUT inserted.RunId INTO @cancelled (RunId)
FROM OPENJSON(@rows) WITH (
    run_id uniqueidentifier '$[0]',
    state varchar(20) '$[1]',
    fence bigint '$[2]',
    cancel_by nvarchar(200) '$[3]',
    cancel_reason nvarchar(400) '$[4]',
    reason nvarchar(400) '$[5]'
) AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.State = p.state AND r.Fence = p.fence
OPTION (LOOP JOIN, FORCE ORDER);

SELECT RunId FROM @cancelled;
