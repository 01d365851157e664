-- name: read_keys
-- One key after the other: the planner would rather read all keys of the namespace for each of them.
WITH p AS (:rows)

SELECT
    p.run_id, k.RunId, k.TaskName, k.Digest, coalesce(r.ScheduledFor, k.CreatedAt) AS DueAt,
    CASE
        WHEN k.RunId = p.run_id OR EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id) THEN 1
        ELSE 0
    END AS IsOwn,
    :now AS Now
FROM p
CROSS JOIN LATERAL (
    SELECT i.RunId, i.TaskName, i.Digest, i.CreatedAt
    FROM IdempotencyKeys AS i
    WHERE i.Namespace = :namespace AND i.KeyText = p.key_text
    LIMIT 1
) AS k
LEFT JOIN JobRuns AS r ON r.RunId = k.RunId;

-- name: purge_keys
WITH ended AS MATERIALIZED (
    SELECT k.ctid AS Place
    FROM IdempotencyKeys AS k
    WHERE k.Namespace = :namespace AND k.ExpiresAt <= :now
    ORDER BY k.ExpiresAt
    LIMIT :batch_size
    FOR UPDATE SKIP LOCKED
),

-- By its place, which stays the same as long as the row is locked.
purged AS (
    DELETE FROM IdempotencyKeys
    WHERE ctid = ANY(ARRAY(SELECT ended.Place FROM ended))
    RETURNING 1
)

SELECT count(*) AS Purged FROM purged;

-- name: submit_at_once
-- rows: run_id, task_name, args, kwargs, options, policies, due_at, claim_id, lease_seconds, max_retries, max_runtime
-- returns: RunId, DueAt, Fence, Now
-- A one-off without a key in one round trip. A missing row: it is there already, or its id is that of another run.
WITH p AS (:rows),

added AS (
    -- include: add_one_offs
    RETURNING Id, Namespace, JobName, RetryAt, Fence, ClaimId, LockedBy, ClaimedAt, CreatedAt, TaskName
)

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
INNER JOIN added AS j ON j.Id = p.run_id
RETURNING RunId, ScheduledFor AS DueAt, CASE WHEN ClaimId IS NULL THEN 0 ELSE Fence END AS Fence, CreatedAt AS Now;
