-- name: take_keys
-- The range locks keep others out between the look and the insert.
UPDATE k
SET
    RunId = p.run_id,
    TaskName = p.task_name,
    Digest = p.digest,
    CreatedAt = :now,
    ExpiresAt = after(:now, p.ttl_seconds)
FROM p
INNER JOIN IdempotencyKeys AS k WITH (INDEX (IdempotencyKeys_Key), UPDLOCK, HOLDLOCK, ROWLOCK)
    ON k.Namespace = :namespace AND k.KeyText = p.key_text COLLATE Latin1_General_BIN2
WHERE k.ExpiresAt <= :now
OPTION (LOOP JOIN, FORCE ORDER);

INSERT INTO IdempotencyKeys (Namespace, KeyText, RunId, TaskName, Digest, CreatedAt, ExpiresAt)
SELECT :namespace, p.key_text, p.run_id, p.task_name, p.digest, :now, after(:now, p.ttl_seconds)
FROM p
WHERE NOT EXISTS (
    SELECT 1 FROM IdempotencyKeys AS k WITH (INDEX (IdempotencyKeys_Key), UPDLOCK, HOLDLOCK, ROWLOCK)
    WHERE k.Namespace = :namespace AND k.KeyText = p.key_text COLLATE Latin1_General_BIN2
)
OPTION (LOOP JOIN);

-- name: read_keys
SELECT
    p.run_id, k.RunId, k.TaskName, k.Digest, COALESCE(r.ScheduledFor, k.CreatedAt) AS DueAt,
    CASE WHEN k.RunId = p.run_id OR o.RunId IS NOT NULL THEN 1 ELSE 0 END AS IsOwn,
    :now AS Now
FROM p
INNER JOIN IdempotencyKeys AS k ON k.Namespace = :namespace AND k.KeyText = p.key_text COLLATE Latin1_General_BIN2
LEFT OUTER JOIN JobRuns AS r ON r.RunId = k.RunId
LEFT OUTER JOIN JobRuns AS o ON o.RunId = p.run_id
OPTION (LOOP JOIN, FORCE ORDER);

-- name: add_one_offs
DECLARE @ends_at datetime2(6) = after(:now, :dispatch_seconds);

INSERT INTO Jobs (
    Id, Namespace, JobName, OneOff, CodeKey, TaskName, Schedule, Args, Kwargs, Options, Policies,
    RetryAt, RetryRunId, LockedBy, LockedAt, ClaimedAt, LeaseEndsAt, Fence, RunId, ClaimId, CreatedAt, UpdatedAt
)
SELECT
    p.run_id, :namespace, LOWER(CONVERT(char(36), p.run_id)), 1, N'one_off', p.task_name, N'once', p.args,
    p.kwargs, p.options, p.policies,
    CASE WHEN p.due_at > :now THEN p.due_at ELSE :now END, p.run_id,
    CASE WHEN p.claim_id IS NOT NULL THEN :submitter END,
    CASE WHEN p.claim_id IS NOT NULL THEN :now END,
    CASE WHEN p.claim_id IS NOT NULL THEN :now END,
    CASE WHEN p.claim_id IS NOT NULL THEN @ends_at END,
    s.Epoch * CAST(1000000000 AS bigint) + CASE WHEN p.claim_id IS NULL THEN 0 ELSE 1 END,
    CASE WHEN p.claim_id IS NOT NULL THEN p.run_id END,
    p.claim_id, :now, :now
FROM p
CROSS JOIN StoreInfo AS s
WHERE
    NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = p.run_id)
    AND NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
OPTION (LOOP JOIN, FORCE ORDER);

-- name: add_one_off_runs
INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, ClaimId, ClaimedBy,
    ClaimedAt, LeaseSeconds, MaxRetries, Advances, CreatedAt, MaxRuntimeSeconds, TaskName
)
SELECT
    j.Id, j.Namespace, j.Id, j.JobName, 'one_off', j.RetryAt, 1,
    CASE WHEN j.ClaimId IS NULL THEN 'scheduled' ELSE 'claimed' END,
    CASE WHEN j.ClaimId IS NULL THEN 'new' ELSE 'scheduled' END,
    j.Fence, j.ClaimId, j.LockedBy, j.ClaimedAt, p.lease_seconds, p.max_retries, 1, j.CreatedAt, p.max_runtime, j.TaskName
FROM p
INNER JOIN Jobs AS j ON j.Id = p.run_id AND j.OneOff = 1
WHERE NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
OPTION (LOOP JOIN, FORCE ORDER);

-- name: reopen_dead
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
    DueAt = :now,
    ResultsEndedAt = :now,
    Error = NULL,
    Traceback = NULL
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE
    r.Namespace = :namespace AND r.State = 'dlq'
    AND EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId)
OPTION (LOOP JOIN, FORCE ORDER);

-- name: list_one_offs
DECLARE @page_end nvarchar(200) = (
    SELECT MIN(p.JobName)
    FROM (
        SELECT TOP (:scan_size) s.JobName
        FROM Jobs AS s
        WHERE s.Namespace = :namespace AND s.OneOff = 1 AND s.JobName < :before_id COLLATE Latin1_General_BIN2
        ORDER BY s.JobName DESC
    ) AS p
);

SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt, r.CancelBy,
    r.CancelReason, r.EffectsDone
FROM Jobs AS j
INNER JOIN JobRuns AS r ON r.RunId = j.Id
WHERE
    j.Namespace = :namespace AND j.OneOff = 1 AND j.JobName < :before_id COLLATE Latin1_General_BIN2
    AND j.JobName >= @page_end COLLATE Latin1_General_BIN2
    AND (:state = '' OR r.State = :state OR j.JobName = @page_end COLLATE Latin1_General_BIN2)
ORDER BY j.JobName DESC
OPTION (LOOP JOIN, FORCE ORDER);

-- name: purge_keys
DECLARE @purged bigint;

WITH ended AS (
    SELECT TOP (:batch_size) k.KeyText
    FROM IdempotencyKeys AS k WITH (INDEX (IdempotencyKeys_Ended), UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE k.Namespace = :namespace AND k.ExpiresAt <= :now
    ORDER BY k.ExpiresAt
)

DELETE FROM ended
OPTION (LOOP JOIN);

SET @purged = @@ROWCOUNT;

SELECT @purged AS Purged;
