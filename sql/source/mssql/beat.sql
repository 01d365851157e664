-- What a beat reads and writes. Each block is one batch with one result at most.
--
-- Parameters are variables, declared in front of the block with one type each: one plan per block, whatever the values.
-- A batch of rows is a JSON array of arrays in @rows, in the order in which its locks are to be taken. OPENJSON tells the
-- optimizer nothing about it, so LOOP JOIN and FORCE ORDER say what is always right here: take row after row, and find
-- its partner by key. Queues are read by the filtered index that they are, in its order, so that nothing else is locked.
-- READPAST never goes without READCOMMITTEDLOCK: where READ_COMMITTED_SNAPSHOT is on, as on Azure SQL by default, a read
-- would otherwise take no locks, and so pass by none.
--
-- @now is when the batch began: one instant for all of it, before any waiting for locks. Seconds are added in two
-- steps, since DATEADD counts in an int: up to 68 years, and exact to the microsecond.
-- OUTPUT goes into a table variable, because a trigger on the table would refuse a bare one (error 334).

-- name: read_due
DECLARE @keys TABLE (CodeKey nvarchar(400) COLLATE Latin1_General_BIN2 NOT NULL PRIMARY KEY);
DECLARE @others TABLE (JobName nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL PRIMARY KEY);
DECLARE @missed TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY);

INSERT INTO @keys (CodeKey) SELECT DISTINCT k.value COLLATE Latin1_General_BIN2 FROM OPENJSON(:code_keys) AS k;

INSERT INTO @others (JobName) SELECT DISTINCT o.value COLLATE Latin1_General_BIN2 FROM OPENJSON(:other_entries) AS o;

INSERT INTO @missed (Id) SELECT DISTINCT CAST(b.value AS uniqueidentifier) FROM OPENJSON(:besides) AS b;

SELECT TOP (:batch_size)
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, j.RetryRunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    0 AS Extra, :now AS Now, j.CodeOwner, j.Version,
    -- include: open_runs
FROM Jobs AS j WITH (INDEX (Jobs_Due), READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE
    j.Namespace = :namespace AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND j.DueAt <= :now
    AND (j.CodeKey IS NULL OR EXISTS (SELECT 1 FROM @keys AS k WHERE k.CodeKey = j.CodeKey))
    AND (
        j.CodeOwner IS NULL
        OR (
            :code_owner IN (N'', j.CodeOwner)
            AND NOT EXISTS (SELECT 1 FROM @others AS o WHERE o.JobName = j.JobName)
        )
    )
    AND (:share = '0123456789abcdef' OR CHARINDEX(LOWER(RIGHT(CONVERT(char(36), j.Id), 1)), :share) > 0)
    AND NOT EXISTS (SELECT 1 FROM @missed AS m WHERE m.Id = j.Id)
ORDER BY j.DueAt
OPTION (LOOP JOIN);

-- name: read_outbox
DECLARE @keys TABLE (CodeKey nvarchar(400) COLLATE Latin1_General_BIN2 NOT NULL PRIMARY KEY);
DECLARE @others TABLE (JobName nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL PRIMARY KEY);
DECLARE @missed TABLE (Id uniqueidentifier NOT NULL PRIMARY KEY);

INSERT INTO @keys (CodeKey) SELECT DISTINCT k.value COLLATE Latin1_General_BIN2 FROM OPENJSON(:code_keys) AS k;

INSERT INTO @others (JobName) SELECT DISTINCT o.value COLLATE Latin1_General_BIN2 FROM OPENJSON(:other_entries) AS o;

INSERT INTO @missed (Id) SELECT DISTINCT CAST(b.value AS uniqueidentifier) FROM OPENJSON(:besides) AS b;

SELECT TOP (:batch_size)
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, r.RunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    1 AS Extra, :now AS Now, j.CodeOwner, j.Version,
    -- include: open_runs
FROM JobRuns AS r WITH (INDEX (JobRuns_Outbox), READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN Jobs AS j WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = r.JobId
WHERE
    r.Namespace = :namespace AND r.DueAt IS NOT NULL AND r.DueAt <= :now
    AND (j.Enabled = 1 OR j.DisabledReason = N'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.CodeKey IS NULL OR EXISTS (SELECT 1 FROM @keys AS k WHERE k.CodeKey = j.CodeKey))
    AND (
        j.CodeOwner IS NULL
        OR (
            :code_owner IN (N'', j.CodeOwner)
            AND NOT EXISTS (SELECT 1 FROM @others AS o WHERE o.JobName = j.JobName)
        )
    )
    AND (:share = '0123456789abcdef' OR CHARINDEX(LOWER(RIGHT(CONVERT(char(36), j.Id), 1)), :share) > 0)
    AND NOT EXISTS (SELECT 1 FROM @missed AS m WHERE m.Id = j.Id)
ORDER BY r.DueAt
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_attempts
-- A missing row: its history was deleted, so the slot starts anew. A row of NULLs: somebody keeps that attempt locked.
-- A locked row is told from a deleted one by the key of the primary index, which nobody locks who changes the row.
SELECT
    k.RunId, r.JobId, r.Kind, r.ScheduledFor, r.Attempt, r.State, r.Failures, r.LostLeases, r.Advances, r.Reason,
    r.CreatedAt, r.SeenNextRunTime
FROM p
INNER JOIN JobRuns AS k WITH (INDEX (JobRuns_Key), READPAST, ROWLOCK, READCOMMITTEDLOCK) ON k.RunId = p.run_id
LEFT OUTER JOIN JobRuns AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.RunId = k.RunId
OPTION (LOOP JOIN, FORCE ORDER);

-- part: open_runs
(
    SELECT count(*) FROM JobRuns AS o WITH (INDEX (JobRuns_Beside))
    WHERE
        o.JobId = j.Id AND o.MaxParallel IS NOT NULL
        AND (
            o.State IN ('claimed', 'running')
            OR (
                o.State = 'dispatched' AND o.StartedAt IS NULL AND o.Reason IS NULL
                AND o.PublishedAt > long_before(:now, :queued_seconds)
            )
        )
) AS OpenRuns

-- part: where_as_read
WHERE
    j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.Enabled = 1 OR j.DisabledReason = N'finished')
    AND (j.NextRunTime = p.next_run_time OR (j.NextRunTime IS NULL AND p.next_run_time IS NULL))
    AND (j.RetryAt = p.retry_at OR (j.RetryAt IS NULL AND p.retry_at IS NULL))
    AND (
        p.waiting_id IS NULL
        OR EXISTS (
            SELECT 1 FROM JobRuns AS w WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
            WHERE w.RunId = p.waiting_id AND w.State = p.waiting_state
        )
    )
    AND (
        p.left_id IS NULL
        OR EXISTS (
            SELECT 1 FROM JobRuns AS l WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
            WHERE l.RunId = p.left_id AND l.State = p.left_state
        )
    )

-- name: claim_jobs
-- A missing row: the job, or an attempt that the next one continues, is not as it was read; or somebody keeps it locked.
-- Nobody waits for such a row. ClaimedAt is when the job was read: its next slot may count from there.
DECLARE @ends_at datetime2(6) = after(:now, :dispatch_seconds);

WITH free AS (
    SELECT
        j.Id, j.LockedBy, j.LockedAt, j.ClaimedAt, j.LeaseEndsAt, j.PublishedAt, j.PlannedAt, j.ReplaceAt, j.StartedRetry,
        j.Republishes, j.Fence, j.RunId, j.ClaimId,
        p.run_id, p.claim_id, p.planned_at, p.replace_at, p.claimed_at
    FROM p
    INNER JOIN Jobs AS j WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
    -- include: where_as_read
)

UPDATE free
SET
    LockedBy = :beat,
    LockedAt = :now,
    ClaimedAt = claimed_at,
    LeaseEndsAt = @ends_at,
    PublishedAt = NULL,
    PlannedAt = planned_at,
    ReplaceAt = replace_at,
    StartedRetry = NULL,
    Republishes = 0,
    Fence = Fence + 1,
    RunId = run_id,
    ClaimId = claim_id
OUTPUT inserted.:returns INTO @taken
OPTION (LOOP JOIN, FORCE ORDER);

-- name: reopen_runs
UPDATE r
SET
    State = 'claimed',
    PriorState = 'scheduled',
    Reason = NULL,
    Fence = j.Fence,
    ClaimId = p.claim_id,
    ClaimedBy = :beat,
    ClaimedAt = j.ClaimedAt,
    PublishedAt = NULL,
    StartedBy = NULL,
    StartId = NULL,
    StartedAt = NULL,
    StartedRetry = NULL,
    PlannedAt = j.PlannedAt,
    DelaySeconds = p.delay_seconds,
    LeaseSeconds = p.lease_seconds,
    MaxRetries = p.max_retries,
    MaxRuntimeSeconds = p.max_runtime,
    Exclusive = p.exclusive,
    MaxParallel = p.max_parallel,
    Attempt = p.attempt,
    Failures = p.failures,
    LostLeases = p.lost_leases,
    FinishedAt = NULL,
    ResultsEndedAt = CASE WHEN r.Kind = 'one_off' THEN :now ELSE r.ResultsEndedAt END,
    Error = NULL,
    Traceback = NULL,
    DueAt = NULL
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
INNER JOIN Jobs AS j ON j.Id = r.JobId AND j.RunId = p.run_id AND j.ClaimId = p.claim_id
OPTION (LOOP JOIN, FORCE ORDER);

-- name: note_check_ins
UPDATE r
SET CheckIn = p.check_in
OUTPUT inserted.:returns INTO @noted
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.ClaimId = p.claim_id
OPTION (LOOP JOIN, FORCE ORDER);

-- name: leave_attempts
UPDATE r
SET
    DueAt = CASE WHEN p.again = 1 THEN :now END,
    State = CASE WHEN p.again = 2 THEN 'cancelled' WHEN r.State = 'claimed' THEN 'scheduled' ELSE 'retry' END,
    PriorState = CASE WHEN p.again <> 2 AND r.State = 'retry' THEN r.PriorState ELSE r.State END,
    Reason = CASE
        WHEN p.again = 2 THEN N'replaced'
        WHEN r.State = 'retry' THEN r.Reason
        ELSE N'unlocked by hand'
    END,
    FinishedAt = CASE WHEN r.State <> 'claimed' THEN COALESCE(r.FinishedAt, :now) END,
    HeldBy = NULL,
    LeaseEndsAt = NULL
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.State IN ('retry', 'running', 'claimed')
OPTION (LOOP JOIN, FORCE ORDER);

-- name: advance_jobs
WITH free AS (
    SELECT j.Id, j.NextRunTime, j.Enabled, j.DisabledReason, p.next_slot
    FROM p
    INNER JOIN Jobs AS j WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
    -- include: where_as_read
)

UPDATE free
SET
    NextRunTime = next_slot,
    Enabled = CASE WHEN next_slot IS NULL THEN 0 ELSE Enabled END,
    DisabledReason = CASE WHEN next_slot IS NULL THEN N'finished' ELSE DisabledReason END
OUTPUT inserted.:returns INTO @advanced
OPTION (LOOP JOIN, FORCE ORDER);

-- name: quarantine_jobs
-- A missing row: the job was claimed or changed meanwhile; or somebody keeps its row locked.
UPDATE j
SET Quarantine = p.reason
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Jobs AS j WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
WHERE j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL
OPTION (LOOP JOIN, FORCE ORDER);

-- name: mark_published
-- A missing row: a worker has started it, or the claim was lost, and neither is moved backwards; or somebody keeps the
-- job's row locked, as read_unmarked tells. Nobody waits for such a row.
UPDATE j
SET
    PublishedAt = :now,
    LeaseEndsAt = after(:now, p.queued_seconds)
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Jobs AS j WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_unmarked
-- Of claims that a mark or a release missed. A row: it is still the beat's to record, or locked.
-- A missing row: a worker has started it, the claim was lost, or it is recorded. A locked row is told from a deleted
-- one by the key of the primary index, which nobody locks who changes the row.
SELECT p.run_id
FROM p
INNER JOIN Jobs AS k WITH (INDEX (Jobs_Key), READPAST, ROWLOCK, READCOMMITTEDLOCK) ON k.Id = p.job_id
LEFT OUTER JOIN Jobs AS j WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
WHERE
    j.Id IS NULL
    OR (
        j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
        AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL AND j.PublishedAt IS NULL
    )
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_ended
-- Zero rows: no lease has ended. A row that is locked is being changed at this moment and is left for the next look.
DECLARE @cutoff datetime2(6) = :now;

SELECT TOP (:batch_size)
    j.Id, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    j.ClaimedAt, j.PublishedAt, j.LockedAt,
    CASE WHEN j.StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    j.Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    j.TaskName, j.Args, j.Kwargs, j.Options, j.CodeKey, j.CodeOwner, :now AS Now, j.Policies
FROM Jobs AS j WITH (INDEX (Jobs_Leased), READPAST, READCOMMITTEDLOCK)
INNER JOIN JobRuns AS r WITH (READPAST, READCOMMITTEDLOCK) ON r.RunId = j.RunId
WHERE j.Namespace = :namespace AND j.LockedBy IS NOT NULL AND j.LeaseEndsAt <= @cutoff
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_ended_held
DECLARE @cutoff datetime2(6) = :now;

SELECT TOP (:batch_size)
    r.JobId, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    r.ClaimedAt, r.PublishedAt, r.ClaimedAt AS LockedAt,
    1 AS Started, 0 AS Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    NULL AS TaskName, NULL AS Args, NULL AS Kwargs, NULL AS Options, NULL AS CodeKey, NULL AS CodeOwner,
    :now AS Now, NULL AS Policies
FROM JobRuns AS r WITH (INDEX (JobRuns_Held), READPAST, READCOMMITTEDLOCK)
WHERE r.Namespace = :namespace AND r.HeldBy IS NOT NULL AND r.LeaseEndsAt <= @cutoff;

-- name: postpone_start_deadline
-- A missing row: a worker started it, another beat took it over or extended it first, or somebody keeps it locked.
UPDATE j
SET
    LockedBy = :beat,
    LockedAt = :now,
    Republishes = j.Republishes + 1,
    LeaseEndsAt = after(:now, p.queued_seconds)
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Jobs AS j WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL AND j.Republishes = p.republishes AND j.LeaseEndsAt <= :now
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_replaceable
-- Zero rows: no run is to make room for the next slot of its job. A row that is locked is left for the next look.
SELECT TOP (:batch_size)
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.RunId, j.ClaimId, j.Fence, j.ReplaceAt,
    CASE WHEN j.StartedRetry IS NULL THEN 0 ELSE 1 END AS Started, :now AS Now
FROM Jobs AS j WITH (INDEX (Jobs_Leased), READPAST, READCOMMITTEDLOCK)
WHERE
    j.Namespace = :namespace AND j.LockedBy IS NOT NULL AND j.RunId IS NOT NULL
    AND j.Enabled = 1 AND j.Quarantine IS NULL AND j.ReplaceAt <= :now
    AND (j.CodeOwner IS NULL OR :code_owner IN (N'', j.CodeOwner));

-- name: postpone_replacing
UPDATE j
SET ReplaceAt = p.replace_at
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence AND j.LockedBy IS NOT NULL
    AND j.ReplaceAt <= :now
OPTION (LOOP JOIN, FORCE ORDER);

-- name: release_orphan_locks
-- Locks that stand for no run: written by hand, or their history is gone. One without an instant gets one first.
-- The age of a lock is counted in seconds: added to an instant, a large number written by hand could leave the calendar.
DECLARE @changed TABLE (Id uniqueidentifier NOT NULL, JobName nvarchar(200) NOT NULL, LockedBy nvarchar(200) NULL);

UPDATE j
SET
    LockedBy = CASE WHEN j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL THEN j.LockedBy END,
    LockedAt = CASE WHEN j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL THEN :now END,
    LeaseEndsAt = NULL,
    RunId = NULL,
    ClaimId = NULL,
    StartedRetry = NULL,
    Fence = j.Fence + 1
OUTPUT inserted.Id, inserted.JobName, inserted.LockedBy INTO @changed (Id, JobName, LockedBy)
FROM Jobs AS j WITH (INDEX (Jobs_Leased), UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE
    j.Namespace = :namespace AND j.LockedBy IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = j.RunId)
    AND (
        (j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL)
        OR j.LeaseEndsAt <= :now
        OR (
            j.LeaseEndsAt IS NULL
            AND DATEDIFF_BIG(MICROSECOND, j.LockedAt, :now)
            >= 1000000 * COALESCE(60E0 * j.LockTimeoutMinutes, :lock_seconds)
        )
    )
OPTION (LOOP JOIN);

SELECT Id, JobName, LockedBy FROM @changed;

-- name: read_next
-- Always one row: the earliest instants of each kind at which some beat has something to do, and the change counter.
-- What waits is read before and after what is leased: a row that moves from one to the other meanwhile is seen.
-- READUNCOMMITTED: a row that somebody keeps locked must neither be waited for nor overlooked. This says only when to
-- look again; what is not committed is found out by the claim, and a claim that is undone ends in its dispatch time.
DECLARE @due_at datetime2(6), @due_at_again datetime2(6), @outbox_at datetime2(6), @outbox_at_again datetime2(6);
DECLARE @ends_at datetime2(6), @planned_at datetime2(6), @held_ends_at datetime2(6), @replace_at datetime2(6);
DECLARE @locked bigint;
DECLARE @keys TABLE (CodeKey nvarchar(400) COLLATE Latin1_General_BIN2 NOT NULL PRIMARY KEY);
DECLARE @others TABLE (JobName nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL PRIMARY KEY);

INSERT INTO @keys (CodeKey) SELECT DISTINCT k.value COLLATE Latin1_General_BIN2 FROM OPENJSON(:code_keys) AS k;

INSERT INTO @others (JobName) SELECT DISTINCT o.value COLLATE Latin1_General_BIN2 FROM OPENJSON(:other_entries) AS o;

SELECT TOP (1) @due_at = j.DueAt
FROM Jobs AS j WITH (INDEX (Jobs_Due), READUNCOMMITTED)
WHERE
    j.Namespace = :namespace AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND j.DueAt IS NOT NULL
    AND (j.CodeKey IS NULL OR EXISTS (SELECT 1 FROM @keys AS k WHERE k.CodeKey = j.CodeKey))
    AND (
        j.CodeOwner IS NULL
        OR (
            :code_owner IN (N'', j.CodeOwner)
            AND NOT EXISTS (SELECT 1 FROM @others AS o WHERE o.JobName = j.JobName)
        )
    )
ORDER BY j.DueAt
OPTION (LOOP JOIN);

SELECT TOP (1) @outbox_at = r.DueAt
FROM JobRuns AS r WITH (INDEX (JobRuns_Outbox), READUNCOMMITTED)
INNER JOIN Jobs AS j WITH (READUNCOMMITTED) ON j.Id = r.JobId
WHERE
    r.Namespace = :namespace AND r.DueAt IS NOT NULL
    AND (j.Enabled = 1 OR j.DisabledReason = N'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.CodeKey IS NULL OR EXISTS (SELECT 1 FROM @keys AS k WHERE k.CodeKey = j.CodeKey))
    AND (
        j.CodeOwner IS NULL
        OR (
            :code_owner IN (N'', j.CodeOwner)
            AND NOT EXISTS (SELECT 1 FROM @others AS o WHERE o.JobName = j.JobName)
        )
    )
ORDER BY r.DueAt
OPTION (LOOP JOIN, FORCE ORDER);

SELECT
    @locked = COUNT_BIG(*),
    @ends_at = MIN(j.LeaseEndsAt),
    @planned_at = MIN(CASE WHEN j.PlannedAt > :now THEN j.PlannedAt END),
    @replace_at = MIN(
        CASE
            WHEN
                j.Enabled = 1 AND j.Quarantine IS NULL AND (j.CodeOwner IS NULL OR :code_owner IN (N'', j.CodeOwner))
                THEN j.ReplaceAt
        END
    )
FROM Jobs AS j WITH (INDEX (Jobs_Leased), READUNCOMMITTED)
WHERE j.Namespace = :namespace AND j.LockedBy IS NOT NULL;

SELECT @held_ends_at = MIN(r.LeaseEndsAt)
FROM JobRuns AS r WITH (INDEX (JobRuns_Held), READUNCOMMITTED)
WHERE r.Namespace = :namespace AND r.HeldBy IS NOT NULL;

SELECT TOP (1) @due_at_again = j.DueAt
FROM Jobs AS j WITH (INDEX (Jobs_Due), READUNCOMMITTED)
WHERE
    j.Namespace = :namespace AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND j.DueAt IS NOT NULL
    AND (j.CodeKey IS NULL OR EXISTS (SELECT 1 FROM @keys AS k WHERE k.CodeKey = j.CodeKey))
    AND (
        j.CodeOwner IS NULL
        OR (
            :code_owner IN (N'', j.CodeOwner)
            AND NOT EXISTS (SELECT 1 FROM @others AS o WHERE o.JobName = j.JobName)
        )
    )
ORDER BY j.DueAt
OPTION (LOOP JOIN);

SELECT TOP (1) @outbox_at_again = r.DueAt
FROM JobRuns AS r WITH (INDEX (JobRuns_Outbox), READUNCOMMITTED)
INNER JOIN Jobs AS j WITH (READUNCOMMITTED) ON j.Id = r.JobId
WHERE
    r.Namespace = :namespace AND r.DueAt IS NOT NULL
    AND (j.Enabled = 1 OR j.DisabledReason = N'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.CodeKey IS NULL OR EXISTS (SELECT 1 FROM @keys AS k WHERE k.CodeKey = j.CodeKey))
    AND (
        j.CodeOwner IS NULL
        OR (
            :code_owner IN (N'', j.CodeOwner)
            AND NOT EXISTS (SELECT 1 FROM @others AS o WHERE o.JobName = j.JobName)
        )
    )
ORDER BY r.DueAt
OPTION (LOOP JOIN, FORCE ORDER);

SELECT
    :now AS Now,
    CASE WHEN @due_at_again < @due_at OR @due_at IS NULL THEN @due_at_again ELSE @due_at END AS DueAt,
    @ends_at AS EndsAt,
    @planned_at AS PlannedAt,
    @held_ends_at AS HeldEndsAt,
    CASE WHEN @outbox_at_again < @outbox_at OR @outbox_at IS NULL THEN @outbox_at_again ELSE @outbox_at END AS OutboxAt,
    COALESCE((SELECT Counter FROM Changes WHERE Namespace = :namespace), 0) AS Changes,
    @replace_at AS ReplaceAt,
    @locked AS Locked;

-- name: read_later
-- Always one row: the earliest instants later than this one at which there is something to claim. Passes by what is locked.
DECLARE @due_at datetime2(6), @outbox_at datetime2(6);
DECLARE @keys TABLE (CodeKey nvarchar(400) COLLATE Latin1_General_BIN2 NOT NULL PRIMARY KEY);
DECLARE @others TABLE (JobName nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL PRIMARY KEY);

INSERT INTO @keys (CodeKey) SELECT DISTINCT k.value COLLATE Latin1_General_BIN2 FROM OPENJSON(:code_keys) AS k;

INSERT INTO @others (JobName) SELECT DISTINCT o.value COLLATE Latin1_General_BIN2 FROM OPENJSON(:other_entries) AS o;

SELECT TOP (1) @due_at = j.DueAt
FROM Jobs AS j WITH (INDEX (Jobs_Due), READPAST, READCOMMITTEDLOCK)
WHERE
    j.Namespace = :namespace AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND j.DueAt > :after
    AND (j.CodeKey IS NULL OR EXISTS (SELECT 1 FROM @keys AS k WHERE k.CodeKey = j.CodeKey))
    AND (
        j.CodeOwner IS NULL
        OR (
            :code_owner IN (N'', j.CodeOwner)
            AND NOT EXISTS (SELECT 1 FROM @others AS o WHERE o.JobName = j.JobName)
        )
    )
ORDER BY j.DueAt
OPTION (LOOP JOIN);

SELECT TOP (1) @outbox_at = r.DueAt
FROM JobRuns AS r WITH (INDEX (JobRuns_Outbox), READPAST, READCOMMITTEDLOCK)
INNER JOIN Jobs AS j WITH (READPAST, READCOMMITTEDLOCK) ON j.Id = r.JobId
WHERE
    r.Namespace = :namespace AND r.DueAt IS NOT NULL AND r.DueAt > :after
    AND (j.Enabled = 1 OR j.DisabledReason = N'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.CodeKey IS NULL OR EXISTS (SELECT 1 FROM @keys AS k WHERE k.CodeKey = j.CodeKey))
    AND (
        j.CodeOwner IS NULL
        OR (
            :code_owner IN (N'', j.CodeOwner)
            AND NOT EXISTS (SELECT 1 FROM @others AS o WHERE o.JobName = j.JobName)
        )
    )
ORDER BY r.DueAt
OPTION (LOOP JOIN, FORCE ORDER);

SELECT :now AS Now, @due_at AS DueAt, @outbox_at AS OutboxAt;

-- name: read_rows_needing_repair
-- Zero rows: every row is in order. By the text of the id, as the caller compares it.
SELECT TOP (:page_size)
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.Enabled, j.DisabledReason, j.StartAt, j.NextRunTime, j.LastRunTime, j.RetryAt, j.LockedBy,
    j.LockedAt, j.LeaseEndsAt, j.Fence, j.RunId, j.Quarantine, j.CodeKey, j.DeleteRequested, j.Version, j.CodeOwner,
    j.ClaimedAt, j.PublishedAt, j.StartedRetry, j.Republishes, :now AS Now
FROM (
    SELECT q.Id
    FROM Jobs AS q WITH (INDEX (Jobs_Quarantined), READPAST, READCOMMITTEDLOCK)
    WHERE q.Namespace = :namespace AND q.Quarantine IS NOT NULL
    UNION
    SELECT d.Id
    FROM Jobs AS d WITH (INDEX (Jobs_ToDelete), READPAST, READCOMMITTEDLOCK)
    WHERE d.Namespace = :namespace AND d.DeleteRequested = 1
    UNION
    SELECT u.Id
    FROM Jobs AS u WITH (INDEX (Jobs_Unplanned), READPAST, READCOMMITTEDLOCK)
    WHERE u.Namespace = :namespace AND u.Enabled = 1 AND u.NextRunTime IS NULL AND u.RetryAt IS NULL
) AS loose
INNER JOIN Jobs AS j WITH (READPAST, READCOMMITTEDLOCK) ON j.Id = loose.Id
WHERE
    j.LockedBy IS NULL AND CONVERT(char(36), j.Id) COLLATE Latin1_General_BIN2 > UPPER(:after_id)
    AND (j.CodeOwner IS NULL OR j.DeleteRequested = 1 OR :code_owner IN (N'', j.CodeOwner))
ORDER BY CONVERT(char(36), j.Id) COLLATE Latin1_General_BIN2;

-- name: repair_rows
-- Fills in the instants of rows that read_rows_needing_repair found, and ends their quarantine. Passes locked rows by.
UPDATE j
SET
    NextRunTime = p.next_run_time,
    RetryAt = p.retry_at,
    Quarantine = NULL
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Jobs AS j WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
WHERE j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL
OPTION (LOOP JOIN, FORCE ORDER);

-- name: delete_requested
-- A missing row: a run holds the job or, overlapping others, goes on by itself; or its deletion was not asked for; or
-- somebody keeps its row locked.
DECLARE @deleted TABLE (Id uniqueidentifier NOT NULL, RunId uniqueidentifier NULL, RetryRunId uniqueidentifier NULL);

DELETE j
OUTPUT deleted.Id, deleted.RunId, deleted.RetryRunId INTO @deleted (Id, RunId, RetryRunId)
FROM p
INNER JOIN Jobs AS j WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
WHERE
    j.DeleteRequested = 1 AND j.LockedBy IS NULL
    AND NOT EXISTS (
        SELECT 1
        FROM JobRuns AS r WITH (INDEX (JobRuns_Held))
        WHERE r.Namespace = j.Namespace AND r.HeldBy IS NOT NULL AND r.JobId = j.Id
    )
OPTION (LOOP JOIN, FORCE ORDER);

SELECT Id, RunId, RetryRunId FROM @deleted;
