-- What is submitted without a schedule. Batches, locks and the clock as in beat.sql.

-- part: add_one_offs
INSERT INTO Jobs (
    Id, Namespace, JobName, OneOff, CodeKey, TaskName, Schedule, Args, Kwargs, Options, Policies,
    RetryAt, RetryRunId, LockedBy, LockedAt, ClaimedAt, LeaseEndsAt, Fence, RunId, ClaimId, CreatedAt, UpdatedAt
)
SELECT
    p.run_id, :namespace, CAST(p.run_id AS text), 1, 'one_off', p.task_name, 'once', p.args, p.kwargs, p.options,
    p.policies, later(:now, coalesce(p.due_at, :now)), p.run_id,
    CASE WHEN p.claim_id IS NOT NULL THEN :submitter END,
    CASE WHEN p.claim_id IS NOT NULL THEN :now END,
    CASE WHEN p.claim_id IS NOT NULL THEN :now END,
    CASE WHEN p.claim_id IS NOT NULL THEN after(:now, :dispatch_seconds) END,
    s.Epoch * 1000000000 + CASE WHEN p.claim_id IS NULL THEN 0 ELSE 1 END,
    CASE WHEN p.claim_id IS NOT NULL THEN p.run_id END,
    p.claim_id, :now, :now
FROM p
CROSS JOIN StoreInfo AS s
WHERE NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
ON CONFLICT DO NOTHING

-- name: take_keys
-- rows: key_text, run_id, task_name, digest, ttl_seconds
-- Keys that nobody has, and those whose time is over, stand for these runs. Who asks for the same key waits here for
-- whoever was first.
WITH p AS (:rows)

INSERT INTO IdempotencyKeys (Namespace, KeyText, RunId, TaskName, Digest, CreatedAt, ExpiresAt)
SELECT :namespace, p.key_text, p.run_id, p.task_name, p.digest, :now, after(:now, p.ttl_seconds)
FROM p
WHERE true
ON CONFLICT (Namespace, KeyText) DO UPDATE SET
    RunId = excluded.RunId,
    TaskName = excluded.TaskName,
    Digest = excluded.Digest,
    CreatedAt = excluded.CreatedAt,
    ExpiresAt = excluded.ExpiresAt
WHERE IdempotencyKeys.ExpiresAt <= :now;

-- name: read_keys
-- rows: run_id, key_text
-- returns: run_id, RunId, TaskName, Digest, DueAt, IsOwn, Now
-- Which run each key stands for now. IsOwn: the asking run has it, or was submitted before with a key that has ended since.
WITH p AS (:rows)

SELECT
    p.run_id, k.RunId, k.TaskName, k.Digest, coalesce(r.ScheduledFor, k.CreatedAt) AS DueAt,
    CASE
        WHEN k.RunId = p.run_id OR EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id) THEN 1
        ELSE 0
    END AS IsOwn,
    :now AS Now
FROM p
LOOP JOIN IdempotencyKeys AS k ON k.Namespace = :namespace AND k.KeyText = key(p.key_text)
LEFT JOIN JobRuns AS r ON r.RunId = k.RunId;

-- name: add_one_offs
-- rows: run_id, task_name, args, kwargs, options, policies, due_at, claim_id
-- The rows that the leases of one-offs are taken on: slots that wait for their attempt, or are claimed by the submitter.
-- What is there already stays as it is; an id that another run has is not taken.
WITH p AS (:rows)

-- include: add_one_offs

-- name: add_one_off_runs
-- rows: run_id, lease_seconds, max_retries, max_runtime
-- Their history, in the transaction that added them. By their keys alone, as everywhere: what one-offs have in common tempts
-- the planner of PostgreSQL to read all of them for each row.
WITH p AS (:rows)

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
LOOP JOIN Jobs AS j ON j.Id = key(p.run_id) AND j.OneOff = 1
WHERE NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
ON CONFLICT DO NOTHING;

-- name: read_submitted
-- rows: run_id, claim_id
-- returns: run_id, Kind, DueAt, Fence, Now
-- Runs as they were submitted. A fence of zero: the submitter has no claim, or has it no more. A missing row: its id is that
-- of a row of another namespace.
WITH p AS (:rows)

SELECT
    p.run_id, r.Kind, r.ScheduledFor AS DueAt, CASE WHEN r.ClaimId = p.claim_id THEN r.Fence ELSE 0 END AS Fence, :now AS Now
FROM p
LOOP JOIN JobRuns AS r ON r.RunId = key(p.run_id)
WHERE r.Namespace = :namespace;

-- name: reopen_dead
-- rows: run_id
-- returns: RunId
-- A one-off that is replayed keeps its id: the same run waits in the outbox for its next attempt. A missing row: it is no
-- dead letter any more, or its job is gone.
WITH p AS (:rows)

UPDATE JobRuns SET
    State = 'scheduled',
    PriorState = 'dlq',
    Reason = NULL,
    Attempt = Attempt + 1,
    Failures = 0,
    LostLeases = 0,
    Advances = 0,
    ClaimId = NULL,
    FinishedAt = NULL,
    DueAt = :now,
    ResultsEndedAt = :now,
    Error = NULL,
    Traceback = NULL
WHERE
    Namespace = :namespace AND RunId IN (SELECT p.run_id FROM p) AND State = 'dlq'
    AND EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = JobRuns.JobId)
RETURNING RunId;

-- name: list_one_offs
-- returns: RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
--   ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
--   CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
-- Newest first, by the rows that their leases are taken on, whose names are their ids. With a state as list_runs_in.
WITH scanned AS MATERIALIZED (
    SELECT j.Id, j.JobName
    FROM Jobs AS j
    WHERE j.Namespace = :namespace AND j.OneOff = 1 AND j.JobName < :before_id
    ORDER BY j.JobName DESC
    LIMIT :scan_size
)

SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt, r.CancelBy,
    r.CancelReason, r.EffectsDone
FROM scanned AS s
LOOP JOIN JobRuns AS r ON r.RunId = key(s.Id)
WHERE :state = '' OR r.State = :state OR s.JobName = (SELECT min(e.JobName) FROM scanned AS e)
ORDER BY s.JobName DESC;

-- name: purge_keys
-- returns: Purged
-- Keys whose time is over. One that somebody takes over at this moment stays.
WITH ended AS MATERIALIZED (
    SELECT k.KeyText
    FROM IdempotencyKeys AS k INDEXED BY IdempotencyKeys_Ended
    WHERE k.Namespace = :namespace AND k.ExpiresAt <= :now
    ORDER BY k.ExpiresAt
    LIMIT :batch_size
    FOR UPDATE SKIP LOCKED
)

DELETE FROM IdempotencyKeys
WHERE Namespace = :namespace AND KeyText IN (SELECT ended.KeyText FROM ended) AND ExpiresAt <= :now
RETURNING CAST(1 AS bigint) AS Purged;
