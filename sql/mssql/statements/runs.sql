-- What ends a run, whoever does it: first the job's row, then the run's. Batches, locks and the clock as in beat.sql.

-- name: release_jobs
-- rows: job_id uniqueidentifier, run_id uniqueidentifier, claim_id uniqueidentifier, fence bigint, state varchar(20), retry_seconds float(53)
-- A missing row: the claim was taken over, or (only_unstarted) a worker has started it meanwhile,
-- or (only_ended) its lease was extended.
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = DATEADD(
    MICROSECOND, ROUND(1000000 * (-@grace_seconds - FLOOR(-@grace_seconds)), 0),
    DATEADD(SECOND, FLOOR(-@grace_seconds), @now)
);
DECLARE @released TABLE (Id uniqueidentifier NOT NULL);

UPDATE j
SET
    LockedBy = NULL,
    LockedAt = NULL,
    ClaimedAt = NULL,
    LeaseEndsAt = NULL,
    PublishedAt = NULL,
    PlannedAt = NULL,
    StartedRetry = NULL,
    Republishes = 0,
    RunId = NULL,
    ClaimId = NULL,
    Fence = j.Fence + 1,
    LastRunTime = CASE WHEN r.state IN ('success', 'dispatched') THEN @now ELSE j.LastRunTime END,
    RetryAt = CASE WHEN r.Advances = 0 THEN j.RetryAt ELSE r.RetrySlot END,
    RetryRunId = CASE
        WHEN r.Advances = 0 THEN j.RetryRunId
        WHEN r.RetrySlot IS NOT NULL THEN r.run_id
    END,
    -- Another NextRunTime than the claim saw is an operator's, and wins. Both may be NULL.
    NextRunTime = CASE
        WHEN
            r.Advances = 1 AND r.RetrySlot IS NULL
            AND (
                j.NextRunTime = r.SeenNextRunTime
                OR (j.NextRunTime IS NULL AND r.SeenNextRunTime IS NULL)
            )
            THEN r.NextSlot
        ELSE j.NextRunTime
    END,
    Enabled = CASE
        WHEN
            r.Advances = 1 AND r.RetrySlot IS NULL AND r.NextSlot IS NULL
            AND (
                j.NextRunTime = r.SeenNextRunTime
                OR (j.NextRunTime IS NULL AND r.SeenNextRunTime IS NULL)
            )
            THEN 0
        ELSE j.Enabled
    END,
    DisabledReason = CASE
        WHEN
            r.Advances = 1 AND r.RetrySlot IS NULL AND r.NextSlot IS NULL
            AND (
                j.NextRunTime = r.SeenNextRunTime
                OR (j.NextRunTime IS NULL AND r.SeenNextRunTime IS NULL)
            )
            THEN N'finished'
        ELSE j.DisabledReason
    END
OUTPUT inserted.Id INTO @released (Id)
FROM (
    SELECT
        p.job_id, p.run_id, p.claim_id, p.fence, p.state, s.Advances, s.SeenNextRunTime,
        DATEADD(
            MICROSECOND, ROUND(1000000 * (p.retry_seconds - FLOOR(p.retry_seconds)), 0),
            DATEADD(SECOND, FLOOR(p.retry_seconds), @now)
        ) AS RetrySlot,
        -- An interval may be a century, so its days are added first.
        CASE
            WHEN s.DelaySeconds IS NULL THEN s.PlannedAt
            ELSE DATEADD(
                MICROSECOND, ROUND(1000000 * (s.DelaySeconds - FLOOR(s.DelaySeconds)), 0),
                DATEADD(
                    SECOND, FLOOR(s.DelaySeconds) - 86400 * FLOOR(s.DelaySeconds / 86400),
                    DATEADD(
                        DAY, FLOOR(s.DelaySeconds / 86400),
                        CASE WHEN s.ScheduledFor > @now THEN s.ScheduledFor ELSE @now END
                    )
                )
            )
        END AS NextSlot
    FROM OPENJSON(@rows) WITH (
        job_id uniqueidentifier '$[0]',
        run_id uniqueidentifier '$[1]',
        claim_id uniqueidentifier '$[2]',
        fence bigint '$[3]',
        state varchar(20) '$[4]',
        retry_seconds float(53) '$[5]'
    ) AS p
    INNER JOIN dbo.JobRuns AS s ON s.RunId = p.run_id
) AS r
INNER JOIN dbo.Jobs AS j WITH (ROWLOCK) ON j.Id = r.job_id
WHERE
    j.RunId = r.run_id AND j.ClaimId = r.claim_id AND j.Fence = r.fence
    AND j.LockedBy IS NOT NULL
    AND (@only_unstarted = 0 OR j.StartedRetry IS NULL)
    AND (@only_ended = 0 OR j.LeaseEndsAt <= @cutoff)
OPTION (LOOP JOIN, FORCE ORDER);

SELECT Id FROM @released;

-- name: close_runs
-- rows: run_id uniqueidentifier, claim_id uniqueidentifier, fence bigint, released bit, state varchar(20), via varchar(20), reason nvarchar(400), retry_seconds float(53), failures int, lost_leases int, error nvarchar(max), traceback nvarchar(max)
-- A missing row: the run is not in these hands, or its outcome is written already.
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = DATEADD(
    MICROSECOND, ROUND(1000000 * (-@grace_seconds - FLOOR(-@grace_seconds)), 0),
    DATEADD(SECOND, FLOOR(-@grace_seconds), @now)
);
DECLARE @closed TABLE (RunId uniqueidentifier NOT NULL);

UPDATE r
SET
    State = p.state,
    PriorState = COALESCE(p.via, r.State),
    Reason = p.reason,
    PublishedAt = CASE WHEN p.state = 'dispatched' THEN COALESCE(r.PublishedAt, @now) ELSE r.PublishedAt END,
    FinishedAt = CASE WHEN p.state <> 'scheduled' THEN @now END,
    DueAt = CASE
        WHEN p.retry_seconds IS NOT NULL AND (r.Exclusive = 0 OR r.Advances = 0)
            THEN DATEADD(
                MICROSECOND, ROUND(1000000 * (p.retry_seconds - FLOOR(p.retry_seconds)), 0),
                DATEADD(SECOND, FLOOR(p.retry_seconds), @now)
            )
    END,
    Advances = CASE WHEN p.state = 'dispatched' THEN 0 ELSE r.Advances END,
    Failures = r.Failures + p.failures,
    LostLeases = r.LostLeases + p.lost_leases,
    HeldBy = NULL,
    LeaseEndsAt = NULL,
    Error = p.error,
    Traceback = p.traceback
OUTPUT inserted.RunId INTO @closed (RunId)
FROM OPENJSON(@rows) WITH (
    run_id uniqueidentifier '$[0]',
    claim_id uniqueidentifier '$[1]',
    fence bigint '$[2]',
    released bit '$[3]',
    state varchar(20) '$[4]',
    via varchar(20) '$[5]',
    reason nvarchar(400) '$[6]',
    retry_seconds float(53) '$[7]',
    failures int '$[8]',
    lost_leases int '$[9]',
    error nvarchar(max) '$[10]',
    traceback nvarchar(max) '$[11]'
) AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE
    r.ClaimId = p.claim_id AND r.Fence = p.fence
    AND (p.released = 1 OR (r.Exclusive = 0 AND p.state <> 'dispatched'))
    AND (
        (r.State = 'claimed' AND p.state IN ('scheduled', 'dispatched', 'skipped', 'cancelled'))
        OR (r.State = 'running' AND p.state <> 'dispatched')
    )
    AND (@only_ended = 0 OR p.released = 1 OR (r.HeldBy IS NOT NULL AND r.LeaseEndsAt <= @cutoff))
OPTION (LOOP JOIN, FORCE ORDER);

SELECT RunId FROM @closed;

-- name: read_endings
-- rows: run_id uniqueidentifier, claim_id uniqueidentifier, fence bigint, state varchar(20)
-- After a commit without an answer: a row means that this ending did commit.
SELECT r.RunId
FROM OPENJSON(@rows) WITH (
    run_id uniqueidentifier '$[0]',
    claim_id uniqueidentifier '$[1]',
    fence bigint '$[2]',
    state varchar(20) '$[3]'
) AS p
INNER JOIN dbo.JobRuns AS r ON r.RunId = p.run_id AND r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.State = p.state
OPTION (LOOP JOIN, FORCE ORDER);
