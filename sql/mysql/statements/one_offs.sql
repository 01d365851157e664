-- Written by `make sql` from sql/source: change it there.
-- What is submitted without a schedule. Batches, locks and the clock as in beat.sql.

-- name: take_keys
-- parameters: namespace text(100)
-- rows: key_text text(510), run_id id, task_name text(200), digest word(64), ttl_seconds seconds
-- ExpiresAt is set last: each assignment of MySQL sees those before it.
SET @now = utc_timestamp(6), @rows = %(rows)s;
INSERT INTO IdempotencyKeys (Namespace, KeyText, RunId, TaskName, Digest, CreatedAt, ExpiresAt)
SELECT %(namespace)s, p.key_text, p.run_id, p.task_name, p.digest, CAST(@now AS datetime(6)), CAST(@now AS datetime(6)) + INTERVAL p.ttl_seconds SECOND
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        key_text mediumtext PATH '$[0]' ERROR ON ERROR,
        run_id char(36) PATH '$[1]' ERROR ON ERROR,
        task_name mediumtext PATH '$[2]' ERROR ON ERROR,
        digest mediumtext PATH '$[3]' ERROR ON ERROR,
        ttl_seconds double PATH '$[4]' ERROR ON ERROR
    )
) AS p
WHERE true
ON DUPLICATE KEY UPDATE
    RunId = CASE WHEN IdempotencyKeys.ExpiresAt <= CAST(@now AS datetime(6)) THEN VALUES(RunId) ELSE IdempotencyKeys.RunId END,
    TaskName = CASE WHEN IdempotencyKeys.ExpiresAt <= CAST(@now AS datetime(6)) THEN VALUES(TaskName) ELSE IdempotencyKeys.TaskName END,
    Digest = CASE WHEN IdempotencyKeys.ExpiresAt <= CAST(@now AS datetime(6)) THEN VALUES(Digest) ELSE IdempotencyKeys.Digest END,
    CreatedAt = CASE WHEN IdempotencyKeys.ExpiresAt <= CAST(@now AS datetime(6)) THEN VALUES(CreatedAt) ELSE IdempotencyKeys.CreatedAt END,
    ExpiresAt = CASE WHEN IdempotencyKeys.ExpiresAt <= CAST(@now AS datetime(6)) THEN VALUES(ExpiresAt) ELSE IdempotencyKeys.ExpiresAt END;

-- name: read_keys
-- parameters: namespace text(100)
-- rows: run_id id, key_text text(510)
-- returns: run_id id, RunId id, TaskName text, Digest text, DueAt instant, IsOwn int, Now instant
-- Which run each key stands for now: the locking read sees who was first, in a transaction that began before that.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT
    p.run_id, k.RunId, k.TaskName, k.Digest,
    coalesce((SELECT r.ScheduledFor FROM JobRuns AS r WHERE r.RunId = k.RunId), k.CreatedAt) AS DueAt,
    CASE
        WHEN k.RunId = p.run_id OR EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id) THEN 1
        ELSE 0
    END AS IsOwn,
    CAST(@now AS datetime(6)) AS Now
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        key_text mediumtext PATH '$[1]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN IdempotencyKeys AS k ON k.Namespace = %(namespace)s AND k.KeyText = p.key_text
FOR UPDATE;

-- name: add_one_offs
-- parameters: namespace text(100), submitter text(200), dispatch_seconds seconds
-- rows: run_id id, task_name text(200), args text, kwargs text, options text, policies text, due_at instant,
--   claim_id id
-- The rows that the leases of one-offs are taken on: slots that wait for their attempt, or are claimed by the submitter.
-- What is there already stays as it is; an id that another run has is not taken.
SET @now = utc_timestamp(6), @rows = %(rows)s;
INSERT INTO Jobs (
    Id, Namespace, JobName, OneOff, CodeKey, TaskName, Schedule, Args, Kwargs, Options, Policies,
    RetryAt, RetryRunId, LockedBy, LockedAt, ClaimedAt, LeaseEndsAt, Fence, RunId, ClaimId, CreatedAt, UpdatedAt
)
SELECT
    p.run_id, %(namespace)s, p.run_id, 1, 'one_off', p.task_name, 'once', p.args, p.kwargs, p.options, p.policies,
    greatest(CAST(@now AS datetime(6)), coalesce(p.due_at, CAST(@now AS datetime(6)))), p.run_id,
    CASE WHEN p.claim_id IS NOT NULL THEN %(submitter)s END,
    CASE WHEN p.claim_id IS NOT NULL THEN CAST(@now AS datetime(6)) END,
    CASE WHEN p.claim_id IS NOT NULL THEN CAST(@now AS datetime(6)) END,
    CASE WHEN p.claim_id IS NOT NULL THEN CAST(@now AS datetime(6)) + INTERVAL %(dispatch_seconds)s SECOND END,
    s.Epoch * 1000000000 + CASE WHEN p.claim_id IS NULL THEN 0 ELSE 1 END,
    CASE WHEN p.claim_id IS NOT NULL THEN p.run_id END,
    p.claim_id, CAST(@now AS datetime(6)), CAST(@now AS datetime(6))
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        task_name mediumtext PATH '$[1]' ERROR ON ERROR,
        args mediumtext PATH '$[2]' ERROR ON ERROR,
        kwargs mediumtext PATH '$[3]' ERROR ON ERROR,
        options mediumtext PATH '$[4]' ERROR ON ERROR,
        policies mediumtext PATH '$[5]' ERROR ON ERROR,
        due_at datetime(6) PATH '$[6]' ERROR ON ERROR,
        claim_id char(36) PATH '$[7]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN StoreInfo AS s
WHERE NOT EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id)
ON DUPLICATE KEY UPDATE Version = Jobs.Version;

-- name: add_one_off_runs
-- rows: run_id id, lease_seconds seconds, max_retries int, max_runtime seconds
-- Their history, in the transaction that added them. By their keys alone, as everywhere: what one-offs have in common tempts
-- the planner of PostgreSQL to read all of them for each row.
SET @rows = %(rows)s;
INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, ClaimId, ClaimedBy,
    ClaimedAt, LeaseSeconds, MaxRetries, Advances, CreatedAt, MaxRuntimeSeconds, TaskName
)
SELECT
    j.Id, j.Namespace, j.Id, j.JobName, 'one_off', j.RetryAt, 1,
    CASE WHEN j.ClaimId IS NULL THEN 'scheduled' ELSE 'claimed' END,
    CASE WHEN j.ClaimId IS NULL THEN 'new' ELSE 'scheduled' END,
    j.Fence, j.ClaimId, j.LockedBy, j.ClaimedAt, p.lease_seconds, p.max_retries, 1, j.CreatedAt, p.max_runtime, j.TaskName
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        lease_seconds double PATH '$[1]' ERROR ON ERROR,
        max_retries integer PATH '$[2]' ERROR ON ERROR,
        max_runtime double PATH '$[3]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.run_id AND j.OneOff = 1
LEFT JOIN JobRuns AS o ON o.RunId = p.run_id
WHERE o.RunId IS NULL;

-- name: read_submitted
-- parameters: namespace text(100)
-- rows: run_id id, claim_id id
-- returns: run_id id, Kind text, DueAt instant, Fence bigint, Now instant
-- Runs as they were submitted. A fence of zero: the submitter has no claim, or has it no more. A missing row: its id is that
-- of a row of another namespace.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT
    p.run_id, r.Kind, r.ScheduledFor AS DueAt, CASE WHEN r.ClaimId = p.claim_id THEN r.Fence ELSE 0 END AS Fence, CAST(@now AS datetime(6)) AS Now
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        claim_id char(36) PATH '$[1]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
WHERE r.Namespace = %(namespace)s;

-- name: reopen_dead
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- A one-off that is replayed keeps its id: the same run waits in the outbox for its next attempt. A missing row: it is no
-- dead letter any more, or its job is gone.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(r.RunId)
INTO @won
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (run_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
WHERE
    r.Namespace = %(namespace)s AND r.State = 'dlq'
    AND EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId)
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = w.RunId
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
    r.DueAt = CAST(@now AS datetime(6)),
    r.ResultsEndedAt = CAST(@now AS datetime(6)),
    r.Error = NULL,
    r.Traceback = NULL;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w;

-- name: list_one_offs
-- parameters: namespace text(100), before_id word(36), scan_size int, state word(20)
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- Newest first, by the rows that their leases are taken on, whose names are their ids. With a state as list_runs_in.
SELECT min(s.JobName)
INTO @page_end
FROM (
    SELECT JobName
    FROM Jobs FORCE INDEX (Jobs_Listed)
    WHERE Namespace = %(namespace)s AND OneOff = 1 AND JobName < %(before_id)s
    ORDER BY JobName DESC
    LIMIT %(scan_size)s
) AS s;

SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt, r.CancelBy,
    r.CancelReason, r.EffectsDone
FROM Jobs AS j FORCE INDEX (Jobs_Listed)
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = j.Id
WHERE
    j.Namespace = %(namespace)s AND j.OneOff = 1 AND j.JobName < %(before_id)s AND j.JobName >= @page_end
    AND (%(state)s = '' OR r.State = %(state)s OR j.JobName = @page_end)
ORDER BY j.JobName DESC;

-- name: purge_keys
-- parameters: namespace text(100), batch_size int
-- returns: Purged bigint
-- Keys whose time is over. One that somebody takes over at this moment stays.
SET @now = utc_timestamp(6);
DELETE FROM IdempotencyKeys
WHERE Namespace = %(namespace)s AND ExpiresAt <= CAST(@now AS datetime(6))
ORDER BY ExpiresAt
LIMIT %(batch_size)s;

SELECT row_count() AS Purged;
