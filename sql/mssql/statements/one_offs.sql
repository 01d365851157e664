-- Written by `make sql` from sql/source: change it there.
-- What is submitted without a schedule. Batches, locks and the clock as in beat.sql.

-- name: take_keys
-- parameters: namespace text(100)
-- rows: key_text text(510), run_id id, task_name text(200), digest word(64), ttl_seconds seconds
-- The range locks keep others out between the look and the insert.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

UPDATE k
SET
    RunId = p.run_id,
    TaskName = p.task_name,
    Digest = p.digest,
    CreatedAt = @now,
    ExpiresAt = DATEADD(
        MICROSECOND, ROUND(1000000 * (p.ttl_seconds - FLOOR(p.ttl_seconds)), 0),
        DATEADD(SECOND, FLOOR(p.ttl_seconds), @now)
    )
FROM OPENJSON(@rows) WITH (
    key_text nvarchar(510) '$[0]',
    run_id uniqueidentifier '$[1]',
    task_name nvarchar(200) '$[2]',
    digest varchar(64) '$[3]',
    ttl_seconds float(53) '$[4]'
) AS p
INNER JOIN dbo.IdempotencyKeys AS k WITH (INDEX (IdempotencyKeys_Key), UPDLOCK, HOLDLOCK, ROWLOCK)
    ON k.Namespace = @namespace AND k.KeyText = p.key_text COLLATE Latin1_General_BIN2
WHERE k.ExpiresAt <= @now
OPTION (LOOP JOIN, FORCE ORDER);

INSERT INTO dbo.IdempotencyKeys (Namespace, KeyText, RunId, TaskName, Digest, CreatedAt, ExpiresAt)
SELECT @namespace, p.key_text, p.run_id, p.task_name, p.digest, @now, DATEADD(
    MICROSECOND, ROUND(1000000 * (p.ttl_seconds - FLOOR(p.ttl_seconds)), 0),
    DATEADD(SECOND, FLOOR(p.ttl_seconds), @now)
)
FROM OPENJSON(@rows) WITH (
    key_text nvarchar(510) '$[0]',
    run_id uniqueidentifier '$[1]',
    task_name nvarchar(200) '$[2]',
    digest varchar(64) '$[3]',
    ttl_seconds float(53) '$[4]'
) AS p
WHERE NOT EXISTS (
    SELECT 1 FROM dbo.IdempotencyKeys AS k WITH (INDEX (IdempotencyKeys_Key), UPDLOCK, HOLDLOCK, ROWLOCK)
    WHERE k.Namespace = @namespace AND k.KeyText = p.key_text COLLATE Latin1_General_BIN2
)
OPTION (LOOP JOIN);

-- name: read_keys
-- parameters: namespace text(100)
-- rows: run_id id, key_text text(510)
-- returns: run_id id, RunId id, TaskName text, Digest text, DueAt instant, IsOwn int, Now instant
-- Which run each key stands for now. IsOwn: the asking run has it, or was submitted before with a key that has ended since.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT
    p.run_id, k.RunId, k.TaskName, k.Digest, COALESCE(r.ScheduledFor, k.CreatedAt) AS DueAt,
    CASE WHEN k.RunId = p.run_id OR o.RunId IS NOT NULL THEN 1 ELSE 0 END AS IsOwn,
    @now AS Now
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]', key_text nvarchar(510) '$[1]') AS p
INNER JOIN dbo.IdempotencyKeys AS k ON k.Namespace = @namespace AND k.KeyText = p.key_text COLLATE Latin1_General_BIN2
LEFT OUTER JOIN dbo.JobRuns AS r ON r.RunId = k.RunId
LEFT OUTER JOIN dbo.JobRuns AS o ON o.RunId = p.run_id
OPTION (LOOP JOIN, FORCE ORDER);

-- name: add_one_offs
-- parameters: dispatch_seconds seconds, namespace text(100), submitter text(200)
-- rows: run_id id, task_name text(200), args text, kwargs text, options text, policies text, due_at instant,
--   claim_id id
-- The rows that the leases of one-offs are taken on: slots that wait for their attempt, or are claimed by the submitter.
-- What is there already stays as it is; an id that another run has is not taken.
DECLARE @dispatch_seconds float(53) = ?, @namespace nvarchar(100) = ?, @submitter nvarchar(200) = ?,
    @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @ends_at datetime2(6) = DATEADD(
    MICROSECOND, ROUND(1000000 * (@dispatch_seconds - FLOOR(@dispatch_seconds)), 0),
    DATEADD(SECOND, FLOOR(@dispatch_seconds), @now)
);

INSERT INTO dbo.Jobs (
    Id, Namespace, JobName, OneOff, CodeKey, TaskName, Schedule, Args, Kwargs, Options, Policies,
    RetryAt, RetryRunId, LockedBy, LockedAt, ClaimedAt, LeaseEndsAt, Fence, RunId, ClaimId, CreatedAt, UpdatedAt
)
SELECT
    p.run_id, @namespace, LOWER(CONVERT(char(36), p.run_id)), 1, N'one_off', p.task_name, N'once', p.args,
    p.kwargs, p.options, p.policies,
    CASE WHEN p.due_at > @now THEN p.due_at ELSE @now END, p.run_id,
    CASE WHEN p.claim_id IS NOT NULL THEN @submitter END,
    CASE WHEN p.claim_id IS NOT NULL THEN @now END,
    CASE WHEN p.claim_id IS NOT NULL THEN @now END,
    CASE WHEN p.claim_id IS NOT NULL THEN @ends_at END,
    s.Epoch * CAST(1000000000 AS bigint) + CASE WHEN p.claim_id IS NULL THEN 0 ELSE 1 END,
    CASE WHEN p.claim_id IS NOT NULL THEN p.run_id END,
    p.claim_id, @now, @now
FROM OPENJSON(@rows) WITH (
    run_id uniqueidentifier '$[0]',
    task_name nvarchar(200) '$[1]',
    args nvarchar(max) '$[2]',
    kwargs nvarchar(max) '$[3]',
    options nvarchar(max) '$[4]',
    policies nvarchar(max) '$[5]',
    due_at datetime2(6) '$[6]',
    claim_id uniqueidentifier '$[7]'
) AS p
CROSS JOIN dbo.StoreInfo AS s
WHERE
    NOT EXISTS (SELECT 1 FROM dbo.Jobs AS j WHERE j.Id = p.run_id)
    AND NOT EXISTS (SELECT 1 FROM dbo.JobRuns AS o WHERE o.RunId = p.run_id)
OPTION (LOOP JOIN, FORCE ORDER);

-- name: add_one_off_runs
-- rows: run_id id, lease_seconds seconds, max_retries int, max_runtime seconds
-- Their history, in the transaction that added them. By their keys alone, as everywhere: what one-offs have in common tempts
-- the planner of PostgreSQL to read all of them for each row.
DECLARE @rows nvarchar(max) = ?;

INSERT INTO dbo.JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, ClaimId, ClaimedBy,
    ClaimedAt, LeaseSeconds, MaxRetries, Advances, CreatedAt, MaxRuntimeSeconds, TaskName
)
SELECT
    j.Id, j.Namespace, j.Id, j.JobName, 'one_off', j.RetryAt, 1,
    CASE WHEN j.ClaimId IS NULL THEN 'scheduled' ELSE 'claimed' END,
    CASE WHEN j.ClaimId IS NULL THEN 'new' ELSE 'scheduled' END,
    j.Fence, j.ClaimId, j.LockedBy, j.ClaimedAt, p.lease_seconds, p.max_retries, 1, j.CreatedAt, p.max_runtime, j.TaskName
FROM OPENJSON(@rows) WITH (
    run_id uniqueidentifier '$[0]',
    lease_seconds float(53) '$[1]',
    max_retries int '$[2]',
    max_runtime float(53) '$[3]'
) AS p
INNER JOIN dbo.Jobs AS j ON j.Id = p.run_id AND j.OneOff = 1
WHERE NOT EXISTS (SELECT 1 FROM dbo.JobRuns AS o WHERE o.RunId = p.run_id)
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_submitted
-- parameters: namespace text(100)
-- rows: run_id id, claim_id id
-- returns: run_id id, Kind text, DueAt instant, Fence bigint, Now instant
-- Runs as they were submitted. A fence of zero: the submitter has no claim, or has it no more. A missing row: its id is that
-- of a row of another namespace.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT
    p.run_id, r.Kind, r.ScheduledFor AS DueAt, CASE WHEN r.ClaimId = p.claim_id THEN r.Fence ELSE 0 END AS Fence, @now AS Now
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]', claim_id uniqueidentifier '$[1]') AS p
INNER JOIN dbo.JobRuns AS r ON r.RunId = p.run_id
WHERE r.Namespace = @namespace
OPTION (LOOP JOIN, FORCE ORDER);

-- name: reopen_dead
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- A one-off that is replayed keeps its id: the same run waits in the outbox for its next attempt. A missing row: it is no
-- dead letter any more, or its job is gone.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @changed TABLE (RunId uniqueidentifier NOT NULL);

UPDATE r
SET
    State = 'scheduled',
    PriorState = 'dlq',
    Reason = NULL,
    Attempt = r.Attempt + 1,
    Failures = 0,
    LostLeases = 0,
    Advances = 0,
    ClaimId = NULL,
    FinishedAt = NULL,
    DueAt = @now,
    ResultsEndedAt = @now,
    Error = NULL,
    Traceback = NULL
OUTPUT inserted.RunId INTO @changed (RunId)
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE
    r.Namespace = @namespace AND r.State = 'dlq'
    AND EXISTS (SELECT 1 FROM dbo.Jobs AS j WHERE j.Id = r.JobId)
OPTION (LOOP JOIN, FORCE ORDER);

SELECT RunId FROM @changed;

-- name: list_one_offs
-- parameters: scan_size int, namespace text(100), before_id word(36), state word(20)
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- Newest first, by the rows that their leases are taken on, whose names are their ids. With a state as list_runs_in.
DECLARE @scan_size int = ?, @namespace nvarchar(100) = ?, @before_id varchar(36) = ?, @state varchar(20) = ?;
DECLARE @page_end nvarchar(200) = (
    SELECT MIN(p.JobName)
    FROM (
        SELECT TOP (@scan_size) s.JobName
        FROM dbo.Jobs AS s
        WHERE s.Namespace = @namespace AND s.OneOff = 1 AND s.JobName < @before_id COLLATE Latin1_General_BIN2
        ORDER BY s.JobName DESC
    ) AS p
);

SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt, r.CancelBy,
    r.CancelReason, r.EffectsDone
FROM dbo.Jobs AS j
INNER JOIN dbo.JobRuns AS r ON r.RunId = j.Id
WHERE
    j.Namespace = @namespace AND j.OneOff = 1 AND j.JobName < @before_id COLLATE Latin1_General_BIN2
    AND j.JobName >= @page_end COLLATE Latin1_General_BIN2
    AND (@state = '' OR r.State = @state OR j.JobName = @page_end COLLATE Latin1_General_BIN2)
ORDER BY j.JobName DESC
OPTION (LOOP JOIN, FORCE ORDER);

-- name: purge_keys
-- parameters: batch_size int, namespace text(100)
-- returns: Purged bigint
-- Keys whose time is over. One that somebody takes over at this moment stays.
DECLARE @batch_size int = ?, @namespace nvarchar(100) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @purged bigint;

WITH ended AS (
    SELECT TOP (@batch_size) k.KeyText
    FROM dbo.IdempotencyKeys AS k WITH (INDEX (IdempotencyKeys_Ended), UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE k.Namespace = @namespace AND k.ExpiresAt <= @now
    ORDER BY k.ExpiresAt
)

DELETE FROM ended
OPTION (LOOP JOIN);

SET @purged = @@ROWCOUNT;

SELECT @purged AS Purged;
