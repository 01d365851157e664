-- Written by `make sql` from sql/source: change it there.
-- What ends a run, whoever does it: first the job's row, then the run's. Batches, locks and the clock as in beat.sql.

-- name: read_endings
-- rows: run_id id, claim_id id, fence bigint, state word(20)
-- returns: run_id id
-- After a commit without an answer: a row means that this ending did commit.
DECLARE @rows nvarchar(max) = ?;

SELECT p.run_id
FROM OPENJSON(@rows) WITH (
    run_id uniqueidentifier '$[0]',
    claim_id uniqueidentifier '$[1]',
    fence bigint '$[2]',
    state varchar(20) '$[3]'
) AS p
INNER JOIN dbo.JobRuns AS r ON r.RunId = p.run_id AND r.ClaimId = p.claim_id AND r.Fence = p.fence
WHERE r.State = p.state OR (r.State = 'cancelled' AND r.CancelAt IS NOT NULL)
OPTION (LOOP JOIN, FORCE ORDER);

-- name: lock_claims
-- rows: job_id id, run_id id
-- returns: RunId id
-- What a beat may release without waiting for anybody, whose rows are locked then until the transaction ends. A missing
-- row: somebody keeps the job's row or the run's locked, and it is passed by; or its history is gone. A locked job is
-- told from a deleted one by the key of the primary index, which nobody locks who changes the row.
DECLARE @rows nvarchar(max) = ?;
DECLARE @free TABLE (RunId uniqueidentifier NOT NULL, JobClaimId uniqueidentifier NULL, ClaimId uniqueidentifier NULL);

-- ClaimId is in no index, so that the rows themselves are locked.
INSERT INTO @free (RunId, JobClaimId, ClaimId)
SELECT p.run_id, j.ClaimId, r.ClaimId
FROM OPENJSON(@rows) WITH (job_id uniqueidentifier '$[0]', run_id uniqueidentifier '$[1]') AS p
LEFT OUTER JOIN dbo.Jobs AS k WITH (INDEX (Jobs_Key), READPAST, ROWLOCK, READCOMMITTEDLOCK) ON k.Id = p.job_id
LEFT OUTER JOIN dbo.Jobs AS j WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
INNER JOIN dbo.JobRuns AS r WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.RunId = p.run_id
WHERE j.Id IS NOT NULL OR k.Id IS NULL
OPTION (LOOP JOIN, FORCE ORDER);

SELECT RunId FROM @free;

-- name: release_jobs
-- parameters: only_unstarted flag, only_replaceable flag, only_ended flag
-- rows: job_id id, run_id id, claim_id id, fence bigint, started_retry int, state word(20), retry_seconds seconds
-- returns: Id id, Unforeseen int
-- A missing row: the claim was taken over, or (only_unstarted) a worker has started it meanwhile,
-- or (only_ended) its lease was extended, or (only_replaceable) its next slot has not come, or the job is paused;
-- or (started_retry) a later retry of Celery's has begun.
-- Unforeseen: due at another instant than the claim planned, or due already, or to be deleted now that it is free; then
-- the other beats must be told.
DECLARE @only_unstarted bit = ?, @only_replaceable bit = ?, @only_ended bit = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = @now;
DECLARE @ending TABLE (
    JobId uniqueidentifier NOT NULL,
    RunId uniqueidentifier NOT NULL,
    ClaimId uniqueidentifier NULL,
    Fence bigint NOT NULL,
    StartedRetry int NULL,
    State varchar(20) NOT NULL,
    Exclusive bit NOT NULL,
    Advances bit NOT NULL,
    SeenNextRunTime datetime2(6) NULL,
    RetrySeconds float(53) NULL,
    NextSlot datetime2(6) NULL
);
DECLARE @released TABLE (
    Id uniqueidentifier NOT NULL,
    RetryAt datetime2(6) NULL,
    NextRunTime datetime2(6) NULL,
    PlannedAt datetime2(6) NULL,
    DeleteRequested bit NOT NULL,
    OneOff bit NOT NULL
);

INSERT INTO @ending (JobId, RunId, ClaimId, Fence, StartedRetry, State, Exclusive, Advances, SeenNextRunTime, RetrySeconds, NextSlot)
SELECT
    p.job_id, p.run_id, p.claim_id, p.fence, p.started_retry, p.state, r.Exclusive, r.Advances, r.SeenNextRunTime,
    -- An overlapping run that has begun goes on by itself, whatever becomes of it: its job takes the next slot.
    -- Its start does not lock the job, so its own row is locked here, before the job's.
    CASE
        WHEN r.Exclusive = 1 THEN p.retry_seconds
        WHEN (SELECT b.State FROM dbo.JobRuns AS b WITH (UPDLOCK, ROWLOCK) WHERE b.RunId = p.run_id) <> 'running'
            THEN p.retry_seconds
    END,
    -- An interval may be a century, so its days are added first.
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
    END
FROM OPENJSON(@rows) WITH (
    job_id uniqueidentifier '$[0]',
    run_id uniqueidentifier '$[1]',
    claim_id uniqueidentifier '$[2]',
    fence bigint '$[3]',
    started_retry int '$[4]',
    state varchar(20) '$[5]',
    retry_seconds float(53) '$[6]'
) AS p
INNER JOIN dbo.JobRuns AS r ON r.RunId = p.run_id
OPTION (LOOP JOIN, FORCE ORDER);

-- Nothing follows what somebody asks to cancel at this moment: both rows are locked before it is looked at. ClaimId is in
-- no index, so that the job's row itself is locked.
UPDATE e
SET RetrySeconds = CASE WHEN c.CancelAt IS NULL THEN e.RetrySeconds END
FROM @ending AS e
INNER JOIN dbo.Jobs AS k WITH (UPDLOCK, ROWLOCK) ON k.Id = e.JobId AND k.ClaimId = e.ClaimId
INNER JOIN dbo.JobRuns AS c WITH (UPDLOCK, ROWLOCK) ON c.RunId = e.RunId
WHERE e.RetrySeconds IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER);

UPDATE j
SET
    LockedBy = NULL,
    LockedAt = NULL,
    ClaimedAt = NULL,
    LeaseEndsAt = NULL,
    PublishedAt = NULL,
    StartedRetry = NULL,
    Republishes = 0,
    RunId = NULL,
    ClaimId = NULL,
    Fence = j.Fence + 1,
    LastRunTime = CASE WHEN e.State IN ('success', 'dispatched') THEN @now ELSE j.LastRunTime END,
    -- Slots that came due until then came due while it ran.
    RanUntil = CASE WHEN e.RetrySeconds IS NULL AND j.StartedRetry IS NOT NULL THEN @now ELSE j.RanUntil END,
    ReplaceAt = NULL,
    RetryAt = CASE
        WHEN e.Advances = 0 THEN j.RetryAt
        ELSE DATEADD(
            MICROSECOND, ROUND(1000000 * (e.RetrySeconds - FLOOR(e.RetrySeconds)), 0),
            DATEADD(SECOND, FLOOR(e.RetrySeconds), @now)
        )
    END,
    RetryRunId = CASE
        WHEN e.Advances = 0 THEN j.RetryRunId
        WHEN e.RetrySeconds IS NOT NULL THEN e.RunId
    END,
    -- Another NextRunTime than the claim saw is an operator's, and wins. Both may be NULL.
    NextRunTime = CASE
        WHEN
            e.Advances = 1 AND e.RetrySeconds IS NULL
            AND (j.NextRunTime = e.SeenNextRunTime OR (j.NextRunTime IS NULL AND e.SeenNextRunTime IS NULL))
            THEN e.NextSlot
        ELSE j.NextRunTime
    END,
    Enabled = CASE
        WHEN
            e.Advances = 1 AND e.RetrySeconds IS NULL AND e.NextSlot IS NULL
            AND (j.NextRunTime = e.SeenNextRunTime OR (j.NextRunTime IS NULL AND e.SeenNextRunTime IS NULL))
            THEN 0
        ELSE j.Enabled
    END,
    DisabledReason = CASE
        WHEN
            e.Advances = 1 AND e.RetrySeconds IS NULL AND e.NextSlot IS NULL
            AND (j.NextRunTime = e.SeenNextRunTime OR (j.NextRunTime IS NULL AND e.SeenNextRunTime IS NULL))
            THEN N'finished'
        ELSE j.DisabledReason
    END
OUTPUT inserted.Id, inserted.RetryAt, inserted.NextRunTime, inserted.PlannedAt, inserted.DeleteRequested,
    inserted.OneOff
INTO @released (Id, RetryAt, NextRunTime, PlannedAt, DeleteRequested, OneOff)
FROM @ending AS e
INNER JOIN dbo.Jobs AS j WITH (ROWLOCK) ON j.Id = e.JobId
WHERE
    j.RunId = e.RunId AND j.ClaimId = e.ClaimId AND j.Fence = e.Fence
    AND j.LockedBy IS NOT NULL
    AND (@only_unstarted = 0 OR j.StartedRetry IS NULL)
    AND (e.StartedRetry IS NULL OR e.Exclusive = 0 OR j.StartedRetry = e.StartedRetry)
    AND (@only_replaceable = 0 OR (j.Enabled = 1 AND j.ReplaceAt <= @now))
    AND (
        @only_ended = 0
        -- Who found the lease ended before the run began cannot know that it began and ended again.
        OR (j.LeaseEndsAt <= @cutoff AND (j.StartedRetry IS NULL OR e.State IN ('retry', 'dlq')))
        -- An overlapping run that began was dispatched: where it is lost before its beat said so, its job is free.
        OR (e.Exclusive = 0 AND e.State IN ('retry', 'dlq'))
    )
OPTION (LOOP JOIN, FORCE ORDER);

SELECT
    Id,
    CASE
        -- Whoever waits for a one-off finds it by its instant.
        WHEN OneOff = 1 THEN 0
        WHEN RetryAt IS NULL AND NextRunTime = PlannedAt AND NextRunTime > @now AND DeleteRequested = 0 THEN 0
        ELSE 1
    END AS Unforeseen
FROM @released;

-- name: close_runs
-- parameters: only_unstarted flag, only_ended flag
-- rows: run_id id, claim_id id, fence bigint, started_retry int, released flag, state word(20), via word(20),
--   reason text(400), retry_seconds seconds, failures int, lost_leases int, error text, traceback text
-- returns: RunId id, Doomed int
-- A missing row: the run is not in these hands, or its outcome is written already, or a later retry of Celery's began.
-- Doomed: it overlapped others, and its job is to be deleted once the last of them has ended; or it is a one-off that waits
-- in the outbox. The beats must be told.
DECLARE @only_unstarted bit = ?, @only_ended bit = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = @now;
DECLARE @closed TABLE (
    RunId uniqueidentifier NOT NULL,
    JobId uniqueidentifier NOT NULL,
    Exclusive bit NOT NULL,
    Doomed bit NOT NULL
);

UPDATE r
SET
    -- What somebody has asked to cancel ends as that, whoever ends it and however.
    State = CASE WHEN r.CancelAt IS NULL THEN p.state ELSE 'cancelled' END,
    PriorState = COALESCE(p.via, r.State),
    Reason = CASE WHEN r.CancelAt IS NULL THEN p.reason ELSE r.Reason END,
    PublishedAt = CASE WHEN p.state = 'dispatched' THEN COALESCE(r.PublishedAt, @now) ELSE r.PublishedAt END,
    FinishedAt = CASE WHEN p.state <> 'scheduled' OR r.CancelAt IS NOT NULL THEN @now END,
    DueAt = CASE
        WHEN
            p.retry_seconds IS NOT NULL AND r.CancelAt IS NULL
            AND (r.Advances = 0 OR (r.Exclusive = 0 AND r.State = 'running'))
            THEN DATEADD(
                MICROSECOND, ROUND(1000000 * (p.retry_seconds - FLOOR(p.retry_seconds)), 0),
                DATEADD(SECOND, FLOOR(p.retry_seconds), @now)
            )
    END,
    Advances = CASE
        WHEN p.state = 'dispatched' OR (r.Exclusive = 0 AND r.State = 'running') THEN 0
        ELSE r.Advances
    END,
    Failures = r.Failures + p.failures,
    LostLeases = r.LostLeases + p.lost_leases,
    HeldBy = NULL,
    LeaseEndsAt = NULL,
    Error = p.error,
    Traceback = p.traceback
OUTPUT
    inserted.RunId, inserted.JobId, inserted.Exclusive,
    CASE WHEN inserted.Kind = 'one_off' AND inserted.DueAt IS NOT NULL THEN 1 ELSE 0 END
INTO @closed (RunId, JobId, Exclusive, Doomed)
FROM OPENJSON(@rows) WITH (
    run_id uniqueidentifier '$[0]',
    claim_id uniqueidentifier '$[1]',
    fence bigint '$[2]',
    started_retry int '$[3]',
    released bit '$[4]',
    state varchar(20) '$[5]',
    via varchar(20) '$[6]',
    reason nvarchar(400) '$[7]',
    retry_seconds float(53) '$[8]',
    failures int '$[9]',
    lost_leases int '$[10]',
    error nvarchar(max) '$[11]',
    traceback nvarchar(max) '$[12]'
) AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE
    r.ClaimId = p.claim_id AND r.Fence = p.fence
    AND (p.started_retry IS NULL OR r.StartedRetry = p.started_retry)
    AND (p.released = 1 OR (r.Exclusive = 0 AND r.State = 'running'))
    AND (
        (r.State = 'claimed' AND p.state IN ('scheduled', 'dispatched', 'skipped', 'cancelled'))
        -- What can never be published: only the beat that holds the claim knows that.
        OR (@only_unstarted = 1 AND r.State = 'claimed' AND p.state IN ('retry', 'dlq'))
        OR (
            r.State = 'running'
            -- Only its own worker may hand a run over that it has begun.
            AND (p.state <> 'dispatched' OR (@only_unstarted = 0 AND @only_ended = 0))
        )
    )
    -- A beat ends an overlapping run that has begun only where that run's own lease has ended.
    AND (
        (@only_unstarted = 0 AND @only_ended = 0) OR r.Exclusive = 1 OR r.State = 'claimed'
        OR (@only_ended = 1 AND p.state IN ('retry', 'dlq') AND r.LeaseEndsAt <= @cutoff)
    )
OPTION (LOOP JOIN, FORCE ORDER);

-- READUNCOMMITTED: the end of a run that overlapped others waits for nobody who keeps the job's row locked.
UPDATE c
SET Doomed = 1
FROM @closed AS c
INNER JOIN dbo.Jobs AS d WITH (READUNCOMMITTED) ON d.Id = c.JobId
WHERE c.Exclusive = 0 AND d.DeleteRequested = 1
OPTION (LOOP JOIN);

SELECT RunId, Doomed FROM @closed;

-- name: finish_at_once
-- parameters: only_unstarted flag, only_replaceable flag, only_ended flag, namespace text(100)
-- rows: job_id id, run_id id, claim_id id, fence bigint, started_retry int, state word(20), via word(20),
--   reason text(400), retry_seconds seconds, failures int, lost_leases int, error text, traceback text
-- returns: RunId id, Doomed int
-- Ends runs and frees their jobs in one statement, and tells the other beats of what they cannot foresee: a job that is due
-- at another instant than the claim planned, or already, or to be deleted now that it is free.
-- A missing row: the run is not in these hands, its outcome is written already, or a later retry of Celery's has begun.
-- It commits before it answers, so that a client that does not read the answer keeps no locks.
DECLARE @only_unstarted bit = ?, @only_replaceable bit = ?, @only_ended bit = ?, @namespace nvarchar(100) = ?,
    @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = @now;
DECLARE @ending TABLE (
    JobId uniqueidentifier NOT NULL,
    RunId uniqueidentifier NOT NULL,
    ClaimId uniqueidentifier NULL,
    Fence bigint NOT NULL,
    StartedRetry int NULL,
    State varchar(20) NOT NULL,
    Exclusive bit NOT NULL,
    Advances bit NOT NULL,
    SeenNextRunTime datetime2(6) NULL,
    RetrySeconds float(53) NULL,
    NextSlot datetime2(6) NULL
);
DECLARE @released TABLE (
    Id uniqueidentifier NOT NULL,
    RetryAt datetime2(6) NULL,
    NextRunTime datetime2(6) NULL,
    PlannedAt datetime2(6) NULL,
    DeleteRequested bit NOT NULL,
    OneOff bit NOT NULL
);
DECLARE @closed TABLE (
    RunId uniqueidentifier NOT NULL,
    JobId uniqueidentifier NOT NULL,
    Exclusive bit NOT NULL,
    Doomed bit NOT NULL
);

BEGIN TRANSACTION;

INSERT INTO @ending (JobId, RunId, ClaimId, Fence, StartedRetry, State, Exclusive, Advances, SeenNextRunTime, RetrySeconds, NextSlot)
SELECT
    p.job_id, p.run_id, p.claim_id, p.fence, p.started_retry, p.state, r.Exclusive, r.Advances, r.SeenNextRunTime,
    -- An overlapping run that has begun goes on by itself, whatever becomes of it: its job takes the next slot.
    -- Its start does not lock the job, so its own row is locked here, before the job's.
    CASE
        WHEN r.Exclusive = 1 THEN p.retry_seconds
        WHEN (SELECT b.State FROM dbo.JobRuns AS b WITH (UPDLOCK, ROWLOCK) WHERE b.RunId = p.run_id) <> 'running'
            THEN p.retry_seconds
    END,
    -- An interval may be a century, so its days are added first.
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
    END
FROM OPENJSON(@rows) WITH (
    job_id uniqueidentifier '$[0]',
    run_id uniqueidentifier '$[1]',
    claim_id uniqueidentifier '$[2]',
    fence bigint '$[3]',
    started_retry int '$[4]',
    state varchar(20) '$[5]',
    via varchar(20) '$[6]',
    reason nvarchar(400) '$[7]',
    retry_seconds float(53) '$[8]',
    failures int '$[9]',
    lost_leases int '$[10]',
    error nvarchar(max) '$[11]',
    traceback nvarchar(max) '$[12]'
) AS p
INNER JOIN dbo.JobRuns AS r ON r.RunId = p.run_id
OPTION (LOOP JOIN, FORCE ORDER);

-- Nothing follows what somebody asks to cancel at this moment: both rows are locked before it is looked at. ClaimId is in
-- no index, so that the job's row itself is locked.
UPDATE e
SET RetrySeconds = CASE WHEN c.CancelAt IS NULL THEN e.RetrySeconds END
FROM @ending AS e
INNER JOIN dbo.Jobs AS k WITH (UPDLOCK, ROWLOCK) ON k.Id = e.JobId AND k.ClaimId = e.ClaimId
INNER JOIN dbo.JobRuns AS c WITH (UPDLOCK, ROWLOCK) ON c.RunId = e.RunId
WHERE e.RetrySeconds IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER);

UPDATE j
SET
    LockedBy = NULL,
    LockedAt = NULL,
    ClaimedAt = NULL,
    LeaseEndsAt = NULL,
    PublishedAt = NULL,
    StartedRetry = NULL,
    Republishes = 0,
    RunId = NULL,
    ClaimId = NULL,
    Fence = j.Fence + 1,
    LastRunTime = CASE WHEN e.State IN ('success', 'dispatched') THEN @now ELSE j.LastRunTime END,
    -- Slots that came due until then came due while it ran.
    RanUntil = CASE WHEN e.RetrySeconds IS NULL AND j.StartedRetry IS NOT NULL THEN @now ELSE j.RanUntil END,
    ReplaceAt = NULL,
    RetryAt = CASE
        WHEN e.Advances = 0 THEN j.RetryAt
        ELSE DATEADD(
            MICROSECOND, ROUND(1000000 * (e.RetrySeconds - FLOOR(e.RetrySeconds)), 0),
            DATEADD(SECOND, FLOOR(e.RetrySeconds), @now)
        )
    END,
    RetryRunId = CASE
        WHEN e.Advances = 0 THEN j.RetryRunId
        WHEN e.RetrySeconds IS NOT NULL THEN e.RunId
    END,
    -- Another NextRunTime than the claim saw is an operator's, and wins. Both may be NULL.
    NextRunTime = CASE
        WHEN
            e.Advances = 1 AND e.RetrySeconds IS NULL
            AND (j.NextRunTime = e.SeenNextRunTime OR (j.NextRunTime IS NULL AND e.SeenNextRunTime IS NULL))
            THEN e.NextSlot
        ELSE j.NextRunTime
    END,
    Enabled = CASE
        WHEN
            e.Advances = 1 AND e.RetrySeconds IS NULL AND e.NextSlot IS NULL
            AND (j.NextRunTime = e.SeenNextRunTime OR (j.NextRunTime IS NULL AND e.SeenNextRunTime IS NULL))
            THEN 0
        ELSE j.Enabled
    END,
    DisabledReason = CASE
        WHEN
            e.Advances = 1 AND e.RetrySeconds IS NULL AND e.NextSlot IS NULL
            AND (j.NextRunTime = e.SeenNextRunTime OR (j.NextRunTime IS NULL AND e.SeenNextRunTime IS NULL))
            THEN N'finished'
        ELSE j.DisabledReason
    END
OUTPUT inserted.Id, inserted.RetryAt, inserted.NextRunTime, inserted.PlannedAt, inserted.DeleteRequested,
    inserted.OneOff
INTO @released (Id, RetryAt, NextRunTime, PlannedAt, DeleteRequested, OneOff)
FROM @ending AS e
INNER JOIN dbo.Jobs AS j WITH (ROWLOCK) ON j.Id = e.JobId
WHERE
    j.RunId = e.RunId AND j.ClaimId = e.ClaimId AND j.Fence = e.Fence
    AND j.LockedBy IS NOT NULL
    AND (@only_unstarted = 0 OR j.StartedRetry IS NULL)
    AND (e.StartedRetry IS NULL OR e.Exclusive = 0 OR j.StartedRetry = e.StartedRetry)
    AND (@only_replaceable = 0 OR (j.Enabled = 1 AND j.ReplaceAt <= @now))
    AND (
        @only_ended = 0
        -- Who found the lease ended before the run began cannot know that it began and ended again.
        OR (j.LeaseEndsAt <= @cutoff AND (j.StartedRetry IS NULL OR e.State IN ('retry', 'dlq')))
        -- An overlapping run that began was dispatched: where it is lost before its beat said so, its job is free.
        OR (e.Exclusive = 0 AND e.State IN ('retry', 'dlq'))
    )
OPTION (LOOP JOIN, FORCE ORDER);

UPDATE r
SET
    -- What somebody has asked to cancel ends as that, whoever ends it and however.
    State = CASE WHEN r.CancelAt IS NULL THEN p.state ELSE 'cancelled' END,
    PriorState = COALESCE(p.via, r.State),
    Reason = CASE WHEN r.CancelAt IS NULL THEN p.reason ELSE r.Reason END,
    PublishedAt = CASE WHEN p.state = 'dispatched' THEN COALESCE(r.PublishedAt, @now) ELSE r.PublishedAt END,
    FinishedAt = CASE WHEN p.state <> 'scheduled' OR r.CancelAt IS NOT NULL THEN @now END,
    DueAt = CASE
        WHEN
            p.retry_seconds IS NOT NULL AND r.CancelAt IS NULL
            AND (r.Advances = 0 OR (r.Exclusive = 0 AND r.State = 'running'))
            THEN DATEADD(
                MICROSECOND, ROUND(1000000 * (p.retry_seconds - FLOOR(p.retry_seconds)), 0),
                DATEADD(SECOND, FLOOR(p.retry_seconds), @now)
            )
    END,
    Advances = CASE
        WHEN p.state = 'dispatched' OR (r.Exclusive = 0 AND r.State = 'running') THEN 0
        ELSE r.Advances
    END,
    Failures = r.Failures + p.failures,
    LostLeases = r.LostLeases + p.lost_leases,
    HeldBy = NULL,
    LeaseEndsAt = NULL,
    Error = p.error,
    Traceback = p.traceback
OUTPUT
    inserted.RunId, inserted.JobId, inserted.Exclusive,
    CASE WHEN inserted.Kind = 'one_off' AND inserted.DueAt IS NOT NULL THEN 1 ELSE 0 END
INTO @closed (RunId, JobId, Exclusive, Doomed)
FROM (
    SELECT
        g.run_id, g.claim_id, g.fence, g.started_retry, g.state, g.via, g.reason, g.retry_seconds, g.failures,
        g.lost_leases, g.error, g.traceback, CASE WHEN f.Id IS NULL THEN 0 ELSE 1 END AS released
    FROM OPENJSON(@rows) WITH (
        job_id uniqueidentifier '$[0]',
        run_id uniqueidentifier '$[1]',
        claim_id uniqueidentifier '$[2]',
        fence bigint '$[3]',
        started_retry int '$[4]',
        state varchar(20) '$[5]',
        via varchar(20) '$[6]',
        reason nvarchar(400) '$[7]',
        retry_seconds float(53) '$[8]',
        failures int '$[9]',
        lost_leases int '$[10]',
        error nvarchar(max) '$[11]',
        traceback nvarchar(max) '$[12]'
    ) AS g
    LEFT OUTER JOIN @released AS f ON f.Id = g.job_id
) AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE
    r.ClaimId = p.claim_id AND r.Fence = p.fence
    AND (p.started_retry IS NULL OR r.StartedRetry = p.started_retry)
    AND (p.released = 1 OR (r.Exclusive = 0 AND r.State = 'running'))
    AND (
        (r.State = 'claimed' AND p.state IN ('scheduled', 'dispatched', 'skipped', 'cancelled'))
        -- What can never be published: only the beat that holds the claim knows that.
        OR (@only_unstarted = 1 AND r.State = 'claimed' AND p.state IN ('retry', 'dlq'))
        OR (
            r.State = 'running'
            -- Only its own worker may hand a run over that it has begun.
            AND (p.state <> 'dispatched' OR (@only_unstarted = 0 AND @only_ended = 0))
        )
    )
    -- A beat ends an overlapping run that has begun only where that run's own lease has ended.
    AND (
        (@only_unstarted = 0 AND @only_ended = 0) OR r.Exclusive = 1 OR r.State = 'claimed'
        OR (@only_ended = 1 AND p.state IN ('retry', 'dlq') AND r.LeaseEndsAt <= @cutoff)
    )
OPTION (LOOP JOIN, FORCE ORDER);

-- READUNCOMMITTED: the end of a run that overlapped others waits for nobody who keeps the job's row locked.
UPDATE c
SET Doomed = 1
FROM @closed AS c
INNER JOIN dbo.Jobs AS d WITH (READUNCOMMITTED) ON d.Id = c.JobId
WHERE c.Exclusive = 0 AND d.DeleteRequested = 1
OPTION (LOOP JOIN);

IF
    EXISTS (
        SELECT 1
        FROM (
            SELECT
                Id,
                CASE
                    -- Whoever waits for a one-off finds it by its instant.
                    WHEN OneOff = 1 THEN 0
                    WHEN RetryAt IS NULL AND NextRunTime = PlannedAt AND NextRunTime > @now AND DeleteRequested = 0 THEN 0
                    ELSE 1
                END AS Unforeseen
            FROM @released
        ) AS u
        WHERE u.Unforeseen = 1
    )
    OR EXISTS (SELECT 1 FROM @closed AS e WHERE e.Doomed = 1)
BEGIN
    BEGIN TRANSACTION;

    UPDATE dbo.Changes WITH (UPDLOCK, SERIALIZABLE) SET Counter = Counter + 1 WHERE Namespace = @namespace;

    IF @@ROWCOUNT = 0
        INSERT INTO dbo.Changes (Namespace, Counter) VALUES (@namespace, 1);

    COMMIT TRANSACTION;
END;

COMMIT TRANSACTION;

SELECT RunId, Doomed FROM @closed;
