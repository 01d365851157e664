-- name: take_keys
-- ExpiresAt is set last: each assignment of MySQL sees those before it.
INSERT INTO IdempotencyKeys (Namespace, KeyText, RunId, TaskName, Digest, CreatedAt, ExpiresAt)
SELECT :namespace, p.key_text, p.run_id, p.task_name, p.digest, :now, after(:now, p.ttl_seconds)
FROM p
WHERE true
ON DUPLICATE KEY UPDATE
    RunId = CASE WHEN IdempotencyKeys.ExpiresAt <= :now THEN VALUES(RunId) ELSE IdempotencyKeys.RunId END,
    TaskName = CASE WHEN IdempotencyKeys.ExpiresAt <= :now THEN VALUES(TaskName) ELSE IdempotencyKeys.TaskName END,
    Digest = CASE WHEN IdempotencyKeys.ExpiresAt <= :now THEN VALUES(Digest) ELSE IdempotencyKeys.Digest END,
    CreatedAt = CASE WHEN IdempotencyKeys.ExpiresAt <= :now THEN VALUES(CreatedAt) ELSE IdempotencyKeys.CreatedAt END,
    ExpiresAt = CASE WHEN IdempotencyKeys.ExpiresAt <= :now THEN VALUES(ExpiresAt) ELSE IdempotencyKeys.ExpiresAt END;

-- name: read_keys
-- Which run each key stands for now: the locking read sees who was first, in a transaction that began before that.
SELECT
    p.run_id, k.RunId, k.TaskName, k.Digest,
    coalesce((SELECT r.ScheduledFor FROM JobRuns AS r WHERE r.RunId = k.RunId), k.CreatedAt) AS DueAt,
    CASE
        WHEN k.RunId = p.run_id OR EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id) THEN 1
        ELSE 0
    END AS IsOwn,
    :now AS Now
FROM p
STRAIGHT_JOIN IdempotencyKeys AS k ON k.Namespace = :namespace AND k.KeyText = p.key_text
FOR UPDATE;

-- name: add_one_offs
INSERT INTO Jobs (
    Id, Namespace, JobName, OneOff, CodeKey, TaskName, Schedule, Args, Kwargs, Options, Policies,
    RetryAt, RetryRunId, LockedBy, LockedAt, ClaimedAt, LeaseEndsAt, Fence, RunId, ClaimId, CreatedAt, UpdatedAt
)
SELECT
    p.run_id, :namespace, p.run_id, 1, 'one_off', p.task_name, 'once', p.args, p.kwargs, p.options, p.policies,
    later(:now, coalesce(p.due_at, :now)), p.run_id,
    CASE WHEN p.claim_id IS NOT NULL THEN :submitter END,
    CASE WHEN p.claim_id IS NOT NULL THEN :now END,
    CASE WHEN p.claim_id IS NOT NULL THEN :now END,
    CASE WHEN p.claim_id IS NOT NULL THEN after(:now, :dispatch_seconds) END,
    s.Epoch * 1000000000 + CASE WHEN p.claim_id IS NULL THEN 0 ELSE 1 END,
    CASE WHEN p.claim_id IS NOT NULL THEN p.run_id END,
    p.claim_id, :now, :now
FROM p
STRAIGHT_JOIN StoreInfo AS s
WHERE NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
ON DUPLICATE KEY UPDATE Version = Jobs.Version;

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
STRAIGHT_JOIN Jobs AS j ON j.Id = p.run_id AND j.OneOff = 1
LEFT JOIN JobRuns AS o ON o.RunId = p.run_id
WHERE o.RunId IS NULL;

-- name: reopen_dead
SELECT json_arrayagg(r.RunId)
INTO @won
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE
    r.Namespace = :namespace AND r.State = 'dlq'
    AND EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId)
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId
SET
    r.State = 'scheduled',
    r.PriorState = 'dlq',
    r.Reason = NULL,
    r.Attempt = r.Attempt + 1,
    r.Failures = 0,
    r.LostLeases = 0,
    r.Advances = 0,
    r.ClaimId = NULL,
    r.FinishedAt = NULL,
    r.DueAt = :now,
    r.ResultsEndedAt = :now,
    r.Error = NULL,
    r.Traceback = NULL;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w;

-- name: list_one_offs
SELECT min(s.JobName)
INTO @page_end
FROM (
    SELECT JobName
    FROM Jobs FORCE INDEX (Jobs_Listed)
    WHERE Namespace = :namespace AND OneOff = 1 AND JobName < :before_id
    ORDER BY JobName DESC
    LIMIT :scan_size
) AS s;

SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt, r.CancelBy,
    r.CancelReason, r.EffectsDone
FROM Jobs AS j FORCE INDEX (Jobs_Listed)
STRAIGHT_JOIN JobRuns AS r ON r.RunId = j.Id
WHERE
    j.Namespace = :namespace AND j.OneOff = 1 AND j.JobName < :before_id AND j.JobName >= @page_end
    AND (:state = '' OR r.State = :state OR j.JobName = @page_end)
ORDER BY j.JobName DESC;

-- name: purge_keys
DELETE FROM IdempotencyKeys
WHERE Namespace = :namespace AND ExpiresAt <= :now
ORDER BY ExpiresAt
LIMIT :batch_size;

SELECT row_count() AS Purged;
