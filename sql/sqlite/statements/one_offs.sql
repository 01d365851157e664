-- Written by `make sql` from sql/source: change it there.
-- What is submitted without a schedule. Batches, locks and the clock as in beat.sql.

-- name: take_keys
-- parameters: ?1 namespace text(100), ?2 now instant
-- rows: key_text text(510), run_id id, task_name text(200), digest word(64), ttl_seconds seconds
-- Keys that nobody has, and those whose time is over, stand for these runs. Who asks for the same key waits here for
-- whoever was first.
WITH p (key_text, run_id, task_name, digest, ttl_seconds) AS (:rows)

INSERT INTO IdempotencyKeys (Namespace, KeyText, RunId, TaskName, Digest, CreatedAt, ExpiresAt)
SELECT ?1, p.key_text, p.run_id, p.task_name, p.digest, ?2, after(?2, p.ttl_seconds)
FROM p
WHERE true
ON CONFLICT (Namespace, KeyText) DO UPDATE SET
    RunId = excluded.RunId,
    TaskName = excluded.TaskName,
    Digest = excluded.Digest,
    CreatedAt = excluded.CreatedAt,
    ExpiresAt = excluded.ExpiresAt
WHERE IdempotencyKeys.ExpiresAt <= ?2;

-- name: read_keys
-- parameters: ?1 now instant, ?2 namespace text(100)
-- rows: run_id id, key_text text(510)
-- returns: run_id id, RunId id, TaskName text, Digest text, DueAt instant, IsOwn int, Now instant
-- Which run each key stands for now. IsOwn: the asking run has it, or was submitted before with a key that has ended since.
WITH p (run_id, key_text) AS (:rows)

SELECT
    p.run_id, k.RunId, k.TaskName, k.Digest, coalesce(r.ScheduledFor, k.CreatedAt) AS DueAt,
    CASE
        WHEN k.RunId = p.run_id OR EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id) THEN 1
        ELSE 0
    END AS IsOwn,
    ?1 AS Now
FROM p
CROSS JOIN IdempotencyKeys AS k ON k.Namespace = ?2 AND k.KeyText = p.key_text
LEFT JOIN JobRuns AS r ON r.RunId = k.RunId;

-- name: add_one_offs
-- parameters: ?1 namespace text(100), ?2 now instant, ?3 submitter text(200), ?4 dispatch_seconds seconds
-- rows: run_id id, task_name text(200), args text, kwargs text, options text, policies text, due_at instant,
--   claim_id id
-- The rows that the leases of one-offs are taken on: slots that wait for their attempt, or are claimed by the submitter.
-- What is there already stays as it is; an id that another run has is not taken.
WITH p (run_id, task_name, args, kwargs, options, policies, due_at, claim_id) AS (:rows)

INSERT INTO Jobs (
    Id, Namespace, JobName, OneOff, CodeKey, TaskName, Schedule, Args, Kwargs, Options, Policies,
    RetryAt, RetryRunId, LockedBy, LockedAt, ClaimedAt, LeaseEndsAt, Fence, RunId, ClaimId, CreatedAt, UpdatedAt
)
SELECT
    p.run_id, ?1, CAST(p.run_id AS text), 1, 'one_off', p.task_name, 'once', p.args, p.kwargs, p.options,
    p.policies, max(?2, coalesce(p.due_at, ?2)), p.run_id,
    CASE WHEN p.claim_id IS NOT NULL THEN ?3 END,
    CASE WHEN p.claim_id IS NOT NULL THEN ?2 END,
    CASE WHEN p.claim_id IS NOT NULL THEN ?2 END,
    CASE WHEN p.claim_id IS NOT NULL THEN after(?2, ?4) END,
    s.Epoch * 1000000000 + CASE WHEN p.claim_id IS NULL THEN 0 ELSE 1 END,
    CASE WHEN p.claim_id IS NOT NULL THEN p.run_id END,
    p.claim_id, ?2, ?2
FROM p
CROSS JOIN StoreInfo AS s
WHERE NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
ON CONFLICT DO NOTHING;

-- name: add_one_off_runs
-- rows: run_id id, lease_seconds seconds, max_retries int, max_runtime seconds
-- Their history, in the transaction that added them. By their keys alone, as everywhere: what one-offs have in common tempts
-- the planner of PostgreSQL to read all of them for each row.
WITH p (run_id, lease_seconds, max_retries, max_runtime) AS (:rows)

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
CROSS JOIN Jobs AS j ON j.Id = p.run_id AND j.OneOff = 1
WHERE NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
ON CONFLICT DO NOTHING;

-- name: read_submitted
-- parameters: ?1 now instant, ?2 namespace text(100)
-- rows: run_id id, claim_id id
-- returns: run_id id, Kind text, DueAt instant, Fence bigint, Now instant
-- Runs as they were submitted. A fence of zero: the submitter has no claim, or has it no more. A missing row: its id is that
-- of a row of another namespace.
WITH p (run_id, claim_id) AS (:rows)

SELECT
    p.run_id, r.Kind, r.ScheduledFor AS DueAt, CASE WHEN r.ClaimId = p.claim_id THEN r.Fence ELSE 0 END AS Fence, ?1 AS Now
FROM p
CROSS JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE r.Namespace = ?2;

-- name: reopen_dead
-- parameters: ?1 now instant, ?2 namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- A one-off that is replayed keeps its id: the same run waits in the outbox for its next attempt. A missing row: it is no
-- dead letter any more, or its job is gone.
WITH p (run_id) AS (:rows)

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
    DueAt = ?1,
    ResultsEndedAt = ?1,
    Error = NULL,
    Traceback = NULL
WHERE
    Namespace = ?2 AND RunId IN (SELECT p.run_id FROM p) AND State = 'dlq'
    AND EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = JobRuns.JobId)
RETURNING RunId;

-- name: list_one_offs
-- parameters: ?1 namespace text(100), ?2 before_id word(36), ?3 scan_size int, ?4 state word(20)
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- Newest first, by the rows that their leases are taken on, whose names are their ids. With a state as list_runs_in.
WITH scanned AS MATERIALIZED (
    SELECT j.Id, j.JobName
    FROM Jobs AS j
    WHERE j.Namespace = ?1 AND j.OneOff = 1 AND j.JobName < ?2
    ORDER BY j.JobName DESC
    LIMIT ?3
)

SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt, r.CancelBy,
    r.CancelReason, r.EffectsDone
FROM scanned AS s
CROSS JOIN JobRuns AS r ON r.RunId = s.Id
WHERE ?4 = '' OR r.State = ?4 OR s.JobName = (SELECT min(e.JobName) FROM scanned AS e)
ORDER BY s.JobName DESC;

-- name: purge_keys
-- parameters: ?1 namespace text(100), ?2 now instant, ?3 batch_size int
-- returns: Purged bigint
-- Keys whose time is over. One that somebody takes over at this moment stays.
WITH ended AS MATERIALIZED (
    SELECT k.KeyText
    FROM IdempotencyKeys AS k INDEXED BY IdempotencyKeys_Ended
    WHERE k.Namespace = ?1 AND k.ExpiresAt <= ?2
    ORDER BY k.ExpiresAt
    LIMIT ?3
)

DELETE FROM IdempotencyKeys
WHERE Namespace = ?1 AND KeyText IN (SELECT ended.KeyText FROM ended) AND ExpiresAt <= ?2
RETURNING CAST(1 AS bigint) AS Purged;
