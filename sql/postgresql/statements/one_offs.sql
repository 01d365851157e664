-- Written by `make sql` from sql/source: change it there.
-- What is submitted without a schedule. Batches, locks and the clock as in beat.sql.

-- name: take_keys
-- parameters: $6 namespace text(100)
-- rows: $1 key_text text(510), $2 run_id id, $3 task_name text(200), $4 digest word(64), $5 ttl_seconds seconds
-- Keys that nobody has, and those whose time is over, stand for these runs. Who asks for the same key waits here for
-- whoever was first.
WITH p (key_text, run_id, task_name, digest, ttl_seconds) AS (SELECT * FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::float8[]))

INSERT INTO IdempotencyKeys (Namespace, KeyText, RunId, TaskName, Digest, CreatedAt, ExpiresAt)
SELECT $6, p.key_text, p.run_id, p.task_name, p.digest, statement_timestamp(), statement_timestamp() + p.ttl_seconds * interval '1 second'
FROM p
WHERE true
ON CONFLICT (Namespace, KeyText) DO UPDATE SET
    RunId = excluded.RunId,
    TaskName = excluded.TaskName,
    Digest = excluded.Digest,
    CreatedAt = excluded.CreatedAt,
    ExpiresAt = excluded.ExpiresAt
WHERE IdempotencyKeys.ExpiresAt <= statement_timestamp();

-- name: read_keys
-- parameters: $3 namespace text(100)
-- rows: $1 run_id id, $2 key_text text(510)
-- returns: run_id id, RunId id, TaskName text, Digest text, DueAt instant, IsOwn int, Now instant
-- One key after the other: the planner would rather read all keys of the namespace for each of them.
WITH p (run_id, key_text) AS (SELECT * FROM unnest($1::uuid[], $2::text[]))

SELECT
    p.run_id, k.RunId, k.TaskName, k.Digest, coalesce(r.ScheduledFor, k.CreatedAt) AS DueAt,
    CASE
        WHEN k.RunId = p.run_id OR EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id) THEN 1
        ELSE 0
    END AS IsOwn,
    statement_timestamp() AS Now
FROM p
CROSS JOIN LATERAL (
    SELECT i.RunId, i.TaskName, i.Digest, i.CreatedAt
    FROM IdempotencyKeys AS i
    WHERE i.Namespace = $3 AND i.KeyText = p.key_text
    LIMIT 1
) AS k
LEFT JOIN JobRuns AS r ON r.RunId = k.RunId;

-- name: add_one_offs
-- parameters: $9 namespace text(100), $10 submitter text(200), $11 dispatch_seconds seconds
-- rows: $1 run_id id, $2 task_name text(200), $3 args text, $4 kwargs text, $5 options text, $6 policies text,
--   $7 due_at instant, $8 claim_id id
-- The rows that the leases of one-offs are taken on: slots that wait for their attempt, or are claimed by the submitter.
-- What is there already stays as it is; an id that another run has is not taken.
WITH p (run_id, task_name, args, kwargs, options, policies, due_at, claim_id) AS (SELECT * FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::uuid[]
))

INSERT INTO Jobs (
    Id, Namespace, JobName, OneOff, CodeKey, TaskName, Schedule, Args, Kwargs, Options, Policies,
    RetryAt, RetryRunId, LockedBy, LockedAt, ClaimedAt, LeaseEndsAt, Fence, RunId, ClaimId, CreatedAt, UpdatedAt
)
SELECT
    p.run_id, $9, CAST(p.run_id AS text), 1, 'one_off', p.task_name, 'once', p.args, p.kwargs, p.options,
    p.policies, greatest(statement_timestamp(), coalesce(p.due_at, statement_timestamp())), p.run_id,
    CASE WHEN p.claim_id IS NOT NULL THEN $10 END,
    CASE WHEN p.claim_id IS NOT NULL THEN statement_timestamp() END,
    CASE WHEN p.claim_id IS NOT NULL THEN statement_timestamp() END,
    CASE WHEN p.claim_id IS NOT NULL THEN statement_timestamp() + $11 * interval '1 second' END,
    s.Epoch * 1000000000 + CASE WHEN p.claim_id IS NULL THEN 0 ELSE 1 END,
    CASE WHEN p.claim_id IS NOT NULL THEN p.run_id END,
    p.claim_id, statement_timestamp(), statement_timestamp()
FROM p
CROSS JOIN StoreInfo AS s
WHERE NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
ON CONFLICT DO NOTHING;

-- name: add_one_off_runs
-- rows: $1 run_id id, $2 lease_seconds seconds, $3 max_retries int, $4 max_runtime seconds
-- Their history, in the transaction that added them. By their keys alone, as everywhere: what one-offs have in common tempts
-- the planner of PostgreSQL to read all of them for each row.
WITH p (run_id, lease_seconds, max_retries, max_runtime) AS (SELECT * FROM unnest($1::uuid[], $2::float8[], $3::integer[], $4::float8[]))

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
INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.run_id]) AND j.OneOff = 1
WHERE NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
ON CONFLICT DO NOTHING;

-- name: read_submitted
-- parameters: $3 namespace text(100)
-- rows: $1 run_id id, $2 claim_id id
-- returns: run_id id, Kind text, DueAt instant, Fence bigint, Now instant
-- Runs as they were submitted. A fence of zero: the submitter has no claim, or has it no more. A missing row: its id is that
-- of a row of another namespace.
WITH p (run_id, claim_id) AS (SELECT * FROM unnest($1::uuid[], $2::uuid[]))

SELECT
    p.run_id, r.Kind, r.ScheduledFor AS DueAt, CASE WHEN r.ClaimId = p.claim_id THEN r.Fence ELSE 0 END AS Fence, statement_timestamp() AS Now
FROM p
INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[p.run_id])
WHERE r.Namespace = $3;

-- name: reopen_dead
-- parameters: $2 namespace text(100)
-- rows: $1 run_id id
-- returns: RunId id
-- A one-off that is replayed keeps its id: the same run waits in the outbox for its next attempt. A missing row: it is no
-- dead letter any more, or its job is gone.
WITH p (run_id) AS (SELECT * FROM unnest($1::uuid[]))

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
    DueAt = statement_timestamp(),
    ResultsEndedAt = statement_timestamp(),
    Error = NULL,
    Traceback = NULL
WHERE
    Namespace = $2 AND RunId IN (SELECT p.run_id FROM p) AND State = 'dlq'
    AND EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = JobRuns.JobId)
RETURNING RunId;

-- name: list_one_offs
-- parameters: $1 namespace text(100), $2 before_id word(36), $3 scan_size int, $4 state word(20)
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- Newest first, by the rows that their leases are taken on, whose names are their ids. With a state as list_runs_in.
WITH scanned AS MATERIALIZED (
    SELECT j.Id, j.JobName
    FROM Jobs AS j
    WHERE j.Namespace = $1 AND j.OneOff = 1 AND j.JobName < $2
    ORDER BY j.JobName DESC
    LIMIT $3
)

SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt, r.CancelBy,
    r.CancelReason, r.EffectsDone
FROM scanned AS s
INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[s.Id])
WHERE $4 = '' OR r.State = $4 OR s.JobName = (SELECT min(e.JobName) FROM scanned AS e)
ORDER BY s.JobName DESC;

-- name: purge_keys
-- parameters: $1 namespace text(100), $2 batch_size int
-- returns: Purged bigint
-- Keys whose time is over. One that somebody takes over at this moment stays.
WITH ended AS MATERIALIZED (
    SELECT k.ctid AS Place
    FROM IdempotencyKeys AS k
    WHERE k.Namespace = $1 AND k.ExpiresAt <= statement_timestamp()
    ORDER BY k.ExpiresAt
    LIMIT $2
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
-- parameters: $12 namespace text(100), $13 submitter text(200), $14 dispatch_seconds seconds
-- rows: $1 run_id id, $2 task_name text(200), $3 args text, $4 kwargs text, $5 options text, $6 policies text,
--   $7 due_at instant, $8 claim_id id, $9 lease_seconds seconds, $10 max_retries int, $11 max_runtime seconds
-- returns: RunId id, DueAt instant, Fence bigint, Now instant
-- A one-off without a key in one round trip. A missing row: it is there already, or its id is that of another run.
WITH p (
    run_id, task_name, args, kwargs, options, policies, due_at, claim_id, lease_seconds, max_retries, max_runtime
) AS (SELECT * FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::uuid[], $9::float8[],
    $10::integer[], $11::float8[]
)),

added AS (
    INSERT INTO Jobs (
        Id, Namespace, JobName, OneOff, CodeKey, TaskName, Schedule, Args, Kwargs, Options, Policies,
        RetryAt, RetryRunId, LockedBy, LockedAt, ClaimedAt, LeaseEndsAt, Fence, RunId, ClaimId, CreatedAt, UpdatedAt
    )
    SELECT
        p.run_id, $12, CAST(p.run_id AS text), 1, 'one_off', p.task_name, 'once', p.args, p.kwargs, p.options,
        p.policies, greatest(statement_timestamp(), coalesce(p.due_at, statement_timestamp())), p.run_id,
        CASE WHEN p.claim_id IS NOT NULL THEN $13 END,
        CASE WHEN p.claim_id IS NOT NULL THEN statement_timestamp() END,
        CASE WHEN p.claim_id IS NOT NULL THEN statement_timestamp() END,
        CASE WHEN p.claim_id IS NOT NULL THEN statement_timestamp() + $14 * interval '1 second' END,
        s.Epoch * 1000000000 + CASE WHEN p.claim_id IS NULL THEN 0 ELSE 1 END,
        CASE WHEN p.claim_id IS NOT NULL THEN p.run_id END,
        p.claim_id, statement_timestamp(), statement_timestamp()
    FROM p
    CROSS JOIN StoreInfo AS s
    WHERE NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
    ON CONFLICT DO NOTHING
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
