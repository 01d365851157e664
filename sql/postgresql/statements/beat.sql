-- Written by `make sql` from sql/source: change it there.
-- What a beat reads and writes. A batch is an array for each of its columns, in the order in which its locks are taken.
-- statement_timestamp() is when the server received the statement: one instant for all of it, before any waiting for
-- locks.
-- `= ANY(ARRAY[key])` finds one row as `= key` does, but only so do the rows of the batch always drive the join, in their
-- order: with `=` the planner reads a small or new table in the order of its key, keeps that plan while the table
-- grows, and locks rows in that order.

-- name: read_due
-- parameters: $1 queued_seconds seconds, $2 namespace text(100), $3 code_keys list, $4 code_owner text(200),
--   $5 other_entries list, $6 share word(16), $7 besides list, $8 batch_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, NextRunTime instant,
--   LastRunTime instant, RetryAt instant, Fence bigint, LeftRunId id, WaitingRunId id, PlannedAt instant,
--   RanUntil instant, Extra int, Now instant, CodeOwner text, Version bigint, OpenRuns bigint
-- Zero rows: nothing is due, or it is held by others. Nothing is locked: the claim compares what was read.
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, j.RetryRunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    0 AS Extra, statement_timestamp() AS Now, j.CodeOwner, j.Version,
    (
        SELECT count(*) FROM JobRuns AS o
        WHERE
            o.JobId = j.Id AND o.MaxParallel IS NOT NULL
            AND (
                o.State IN ('claimed', 'running')
                OR (
                    o.State = 'dispatched' AND o.StartedAt IS NULL AND o.Reason IS NULL
                    AND o.PublishedAt > statement_timestamp() - $1 * interval '1 second'
                )
            )
    ) AS OpenRuns
FROM Jobs AS j
WHERE
    j.Namespace = $2 AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Leased = 0 AND j.Quarantine IS NULL
    AND coalesce(j.RetryAt, j.NextRunTime) <= statement_timestamp()
    AND (j.CodeKey IS NULL OR j.CodeKey = ANY($3))
    AND (j.CodeOwner IS NULL OR (CAST($4 AS text) IN ('', j.CodeOwner) AND j.JobName <> ALL($5)))
    AND ($6 = '0123456789abcdef' OR strpos($6, right(CAST(j.Id AS text), 1)) > 0)
    AND j.Id <> ALL(CAST($7 AS uuid[]))
ORDER BY coalesce(j.RetryAt, j.NextRunTime)
LIMIT $8;

-- name: read_outbox
-- parameters: $1 queued_seconds seconds, $2 namespace text(100), $3 code_keys list, $4 code_owner text(200),
--   $5 other_entries list, $6 share word(16), $7 besides list, $8 batch_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, NextRunTime instant,
--   LastRunTime instant, RetryAt instant, Fence bigint, LeftRunId id, WaitingRunId id, PlannedAt instant,
--   RanUntil instant, Extra int, Now instant, CodeOwner text, Version bigint, OpenRuns bigint
-- Zero rows: no attempt in the outbox is due whose job is free. A job whose schedule has ended still runs what was added.
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, r.RunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    1 AS Extra, statement_timestamp() AS Now, j.CodeOwner, j.Version,
    (
        SELECT count(*) FROM JobRuns AS o
        WHERE
            o.JobId = j.Id AND o.MaxParallel IS NOT NULL
            AND (
                o.State IN ('claimed', 'running')
                OR (
                    o.State = 'dispatched' AND o.StartedAt IS NULL AND o.Reason IS NULL
                    AND o.PublishedAt > statement_timestamp() - $1 * interval '1 second'
                )
            )
    ) AS OpenRuns
FROM JobRuns AS r
INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[r.JobId])
WHERE
    r.Namespace = $2 AND r.DueAt <= statement_timestamp()
    AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.CodeKey IS NULL OR j.CodeKey = ANY($3))
    AND (j.CodeOwner IS NULL OR (CAST($4 AS text) IN ('', j.CodeOwner) AND j.JobName <> ALL($5)))
    AND ($6 = '0123456789abcdef' OR strpos($6, right(CAST(j.Id AS text), 1)) > 0)
    AND j.Id <> ALL(CAST($7 AS uuid[]))
ORDER BY r.DueAt
LIMIT $8;

-- name: read_attempts
-- rows: $1 run_id id
-- returns: RunId id, JobId id, Kind text, ScheduledFor instant, Attempt int, State text, Failures int, LostLeases int,
--   Advances flag, Reason text, CreatedAt instant, SeenNextRunTime instant
-- A missing row: its history was deleted, so the slot starts anew.
WITH p (run_id) AS (SELECT * FROM unnest($1::uuid[]))

SELECT
    r.RunId, r.JobId, r.Kind, r.ScheduledFor, r.Attempt, r.State, r.Failures, r.LostLeases, r.Advances, r.Reason,
    r.CreatedAt, r.SeenNextRunTime
FROM p
INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[p.run_id]);

-- name: read_attempt_numbers
-- rows: $1 job_id id, $2 scheduled_for instant, $3 kind word(20)
-- returns: JobId id, ScheduledFor instant, Kind text, LastAttempt int
-- A missing row: the slot has no attempt yet.
WITH p (job_id, scheduled_for, kind) AS (SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[]))

SELECT r.JobId, r.ScheduledFor, r.Kind, max(r.Attempt) AS LastAttempt
FROM p
INNER JOIN JobRuns AS r ON r.JobId = p.job_id AND r.ScheduledFor = ANY(ARRAY[p.scheduled_for]) AND r.Kind = p.kind
GROUP BY r.JobId, r.ScheduledFor, r.Kind;

-- name: claim_jobs
-- parameters: $15 beat text(200), $16 dispatch_seconds seconds
-- rows: $1 job_id id, $2 fence bigint, $3 version bigint, $4 next_run_time instant, $5 retry_at instant,
--   $6 waiting_id id, $7 waiting_state word(20), $8 left_id id, $9 left_state word(20), $10 run_id id,
--   $11 claim_id id, $12 planned_at instant, $13 replace_at instant, $14 claimed_at instant
-- returns: Id id
-- A missing row: the job, or an attempt that the next one continues, is not as it was read; or somebody keeps it locked.
-- Nobody waits for such a row. ClaimedAt is when the job was read: its next slot may count from there.
WITH p (
    job_id, fence, version, next_run_time, retry_at, waiting_id, waiting_state, left_id, left_state, run_id, claim_id,
    planned_at, replace_at, claimed_at
) AS (SELECT * FROM unnest(
    $1::uuid[], $2::bigint[], $3::bigint[], $4::timestamptz[], $5::timestamptz[], $6::uuid[], $7::text[], $8::uuid[],
    $9::text[], $10::uuid[], $11::uuid[], $12::timestamptz[], $13::timestamptz[], $14::timestamptz[]
)),

held AS MATERIALIZED (
    SELECT r.RunId
    FROM (
        SELECT p.waiting_id AS run_id, p.waiting_state AS state FROM p
        UNION ALL
        SELECT p.left_id AS run_id, p.left_state AS state FROM p
    ) AS a
    INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[a.run_id])
    WHERE r.State = a.state
    FOR NO KEY UPDATE OF r SKIP LOCKED
),

free AS MATERIALIZED (
    SELECT j.Id, p.fence, p.run_id, p.claim_id, p.planned_at, p.replace_at, p.claimed_at
    FROM p
    INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.job_id])
    WHERE
        j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL AND j.Quarantine IS NULL
        AND (j.Enabled = 1 OR j.DisabledReason = 'finished')
        AND j.NextRunTime IS NOT DISTINCT FROM p.next_run_time AND j.RetryAt IS NOT DISTINCT FROM p.retry_at
        AND (p.waiting_id IS NULL OR p.waiting_id IN (SELECT h.RunId FROM held AS h))
        AND (p.left_id IS NULL OR p.left_id IN (SELECT h.RunId FROM held AS h))
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    LockedBy = $15,
    LockedAt = statement_timestamp(),
    ClaimedAt = free.claimed_at,
    LeaseEndsAt = statement_timestamp() + $16 * interval '1 second',
    PublishedAt = NULL,
    PlannedAt = free.planned_at,
    ReplaceAt = free.replace_at,
    StartedRetry = NULL,
    Republishes = 0,
    Fence = Jobs.Fence + 1,
    RunId = free.run_id,
    ClaimId = free.claim_id
FROM free
WHERE Jobs.Id = ANY(ARRAY[free.Id]) AND Jobs.Fence = free.fence AND Jobs.LockedBy IS NULL
RETURNING Jobs.Id;

-- name: insert_runs
-- parameters: $17 beat text(200)
-- rows: $1 run_id id, $2 job_id id, $3 claim_id id, $4 kind word(20), $5 scheduled_for instant, $6 attempt int,
--   $7 delay_seconds seconds, $8 lease_seconds seconds, $9 max_retries int, $10 failures int, $11 lost_leases int,
--   $12 exclusive flag, $13 advances flag, $14 continues id, $15 max_runtime seconds, $16 max_parallel int
-- Records the slots of the claim in its own transaction. Only jobs that this claim holds are joined.
WITH p (
    run_id, job_id, claim_id, kind, scheduled_for, attempt, delay_seconds, lease_seconds, max_retries, failures,
    lost_leases, exclusive, advances, continues, max_runtime, max_parallel
) AS (SELECT * FROM unnest(
    $1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::timestamptz[], $6::integer[], $7::float8[], $8::float8[],
    $9::integer[], $10::integer[], $11::integer[], $12::smallint[], $13::smallint[], $14::uuid[], $15::float8[],
    $16::integer[]
))

INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, ClaimId,
    ClaimedBy, ClaimedAt, PlannedAt, DelaySeconds, SeenNextRunTime, LeaseSeconds, MaxRetries, Failures, LostLeases,
    Exclusive, Advances, CreatedAt, MaxRuntimeSeconds, MaxParallel
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, p.kind, p.scheduled_for, p.attempt, 'claimed', 'scheduled', j.Fence,
    p.claim_id, $17, j.ClaimedAt, j.PlannedAt, p.delay_seconds,
    CASE WHEN b.RunId IS NULL THEN j.NextRunTime ELSE b.SeenNextRunTime END,
    p.lease_seconds, p.max_retries, p.failures, p.lost_leases, p.exclusive, p.advances, statement_timestamp(), p.max_runtime, p.max_parallel
FROM p
INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.job_id]) AND j.RunId = p.run_id AND j.ClaimId = p.claim_id
LEFT JOIN JobRuns AS b ON b.RunId = ANY(ARRAY[p.continues]);

-- name: reopen_runs
-- parameters: $12 beat text(200)
-- rows: $1 run_id id, $2 claim_id id, $3 delay_seconds seconds, $4 lease_seconds seconds, $5 max_retries int,
--   $6 exclusive flag, $7 max_runtime seconds, $8 max_parallel int, $9 attempt int, $10 failures int,
--   $11 lost_leases int
-- Takes up attempts that were given back or not begun, and one-offs that are tried again: the run id stays, the claim and
-- the fence are new. The results of earlier attempts need no end where they have the same id.
WITH p (
    run_id, claim_id, delay_seconds, lease_seconds, max_retries, exclusive, max_runtime, max_parallel, attempt,
    failures, lost_leases
) AS (SELECT * FROM unnest(
    $1::uuid[], $2::uuid[], $3::float8[], $4::float8[], $5::integer[], $6::smallint[], $7::float8[], $8::integer[],
    $9::integer[], $10::integer[], $11::integer[]
))

UPDATE JobRuns SET
    State = 'claimed',
    PriorState = 'scheduled',
    Reason = NULL,
    Fence = j.Fence,
    ClaimId = p.claim_id,
    ClaimedBy = $12,
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
    ResultsEndedAt = CASE WHEN JobRuns.Kind = 'one_off' THEN statement_timestamp() ELSE JobRuns.ResultsEndedAt END,
    Error = NULL,
    Traceback = NULL,
    DueAt = NULL
FROM p, Jobs AS j
WHERE JobRuns.RunId = ANY(ARRAY[p.run_id]) AND j.Id = ANY(ARRAY[JobRuns.JobId]) AND j.RunId = p.run_id AND j.ClaimId = p.claim_id;

-- name: note_check_ins
-- rows: $1 run_id id, $2 claim_id id, $3 check_in text
-- returns: RunId id
-- A missing row: the claim was taken by another beat.
WITH p (run_id, claim_id, check_in) AS (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[]))

UPDATE JobRuns SET CheckIn = p.check_in
FROM p
WHERE JobRuns.RunId = ANY(ARRAY[p.run_id]) AND JobRuns.ClaimId = p.claim_id
RETURNING JobRuns.RunId;

-- name: leave_attempts
-- rows: $1 run_id id, $2 again int
-- Attempts that another one follows; `again` = 1 sends an extra slot back to the outbox, 2 ends a slot whose retry makes
-- room for the next one. Their holders have lost them.
WITH p (run_id, again) AS (SELECT * FROM unnest($1::uuid[], $2::integer[]))

UPDATE JobRuns SET
    DueAt = CASE WHEN p.again = 1 THEN statement_timestamp() END,
    State = CASE WHEN p.again = 2 THEN 'cancelled' WHEN JobRuns.State = 'claimed' THEN 'scheduled' ELSE 'retry' END,
    PriorState = CASE WHEN p.again <> 2 AND JobRuns.State = 'retry' THEN JobRuns.PriorState ELSE JobRuns.State END,
    Reason = CASE
        WHEN p.again = 2 THEN 'replaced'
        WHEN JobRuns.State = 'retry' THEN JobRuns.Reason
        ELSE 'unlocked by hand'
    END,
    FinishedAt = CASE WHEN JobRuns.State <> 'claimed' THEN coalesce(JobRuns.FinishedAt, statement_timestamp()) END,
    HeldBy = NULL,
    LeaseEndsAt = NULL
FROM p
WHERE JobRuns.RunId = ANY(ARRAY[p.run_id]) AND JobRuns.State IN ('retry', 'running', 'claimed');

-- name: insert_gaps
-- rows: $1 run_id id, $2 job_id id, $3 first instant, $4 last instant, $5 count bigint, $6 reason text(400),
--   $7 attempt int
WITH p (run_id, job_id, first, last, count, reason, attempt) AS (SELECT * FROM unnest(
    $1::uuid[], $2::uuid[], $3::timestamptz[], $4::timestamptz[], $5::bigint[], $6::text[], $7::integer[]
))

INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason,
    Fence, FinishedAt, CreatedAt
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, 'schedule', p.first, p.last, p.count, p.attempt, 'skipped', 'scheduled',
    p.reason, j.Fence, statement_timestamp(), statement_timestamp()
FROM p
INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.job_id]);

-- name: advance_jobs
-- rows: $1 job_id id, $2 fence bigint, $3 version bigint, $4 next_run_time instant, $5 retry_at instant,
--   $6 waiting_id id, $7 waiting_state word(20), $8 left_id id, $9 left_state word(20), $10 next_slot instant
-- returns: Id id
-- Jobs that skip what was due. No next slot: the schedule has ended. A missing row: as in claim_jobs.
WITH p (
    job_id, fence, version, next_run_time, retry_at, waiting_id, waiting_state, left_id, left_state, next_slot
) AS (SELECT * FROM unnest(
    $1::uuid[], $2::bigint[], $3::bigint[], $4::timestamptz[], $5::timestamptz[], $6::uuid[], $7::text[], $8::uuid[],
    $9::text[], $10::timestamptz[]
)),

held AS MATERIALIZED (
    SELECT r.RunId
    FROM (
        SELECT p.waiting_id AS run_id, p.waiting_state AS state FROM p
        UNION ALL
        SELECT p.left_id AS run_id, p.left_state AS state FROM p
    ) AS a
    INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[a.run_id])
    WHERE r.State = a.state
    FOR NO KEY UPDATE OF r SKIP LOCKED
),

free AS MATERIALIZED (
    SELECT j.Id, p.fence, p.next_slot
    FROM p
    INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.job_id])
    WHERE
        j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL AND j.Quarantine IS NULL
        AND (j.Enabled = 1 OR j.DisabledReason = 'finished')
        AND j.NextRunTime IS NOT DISTINCT FROM p.next_run_time AND j.RetryAt IS NOT DISTINCT FROM p.retry_at
        AND (p.waiting_id IS NULL OR p.waiting_id IN (SELECT h.RunId FROM held AS h))
        AND (p.left_id IS NULL OR p.left_id IN (SELECT h.RunId FROM held AS h))
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    NextRunTime = free.next_slot,
    Enabled = CASE WHEN free.next_slot IS NULL THEN 0 ELSE Jobs.Enabled END,
    DisabledReason = CASE WHEN free.next_slot IS NULL THEN 'finished' ELSE Jobs.DisabledReason END
FROM free
WHERE Jobs.Id = ANY(ARRAY[free.Id]) AND Jobs.Fence = free.fence AND Jobs.LockedBy IS NULL
RETURNING Jobs.Id;

-- name: quarantine_jobs
-- rows: $1 job_id id, $2 fence bigint, $3 version bigint, $4 reason text(1000)
-- returns: Id id
-- A missing row: the job was claimed or changed meanwhile; or somebody keeps its row locked.
WITH p (job_id, fence, version, reason) AS (SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[])),

free AS MATERIALIZED (
    SELECT j.Id, p.fence, p.reason
    FROM p
    INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.job_id])
    WHERE j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET Quarantine = free.reason
FROM free
WHERE Jobs.Id = ANY(ARRAY[free.Id]) AND Jobs.Fence = free.fence AND Jobs.LockedBy IS NULL
RETURNING Jobs.Id;

-- name: read_claims
-- rows: $1 run_id id, $2 claim_id id
-- returns: run_id id
-- After a commit without an answer: a row means that it did commit.
WITH p (run_id, claim_id) AS (SELECT * FROM unnest($1::uuid[], $2::uuid[]))

SELECT p.run_id
FROM p
INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[p.run_id]) AND r.ClaimId = p.claim_id;

-- name: mark_published
-- rows: $1 job_id id, $2 run_id id, $3 claim_id id, $4 fence bigint, $5 queued_seconds seconds
-- returns: RunId id
-- A missing row: a worker has started it, or the claim was lost, and neither is moved backwards; or somebody keeps the
-- job's row locked, as read_unmarked tells. Nobody waits for such a row.
WITH p (job_id, run_id, claim_id, fence, queued_seconds) AS (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::float8[])),

mine AS MATERIALIZED (
    SELECT j.Id, p.run_id, p.claim_id, p.fence, p.queued_seconds
    FROM p
    INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.job_id])
    WHERE
        j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
        AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    PublishedAt = statement_timestamp(),
    LeaseEndsAt = statement_timestamp() + mine.queued_seconds * interval '1 second'
FROM mine
WHERE
    Jobs.Id = ANY(ARRAY[mine.Id]) AND Jobs.RunId = mine.run_id AND Jobs.ClaimId = mine.claim_id
    AND Jobs.Fence = mine.fence AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL
RETURNING Jobs.RunId;

-- name: read_unmarked
-- rows: $1 job_id id, $2 run_id id, $3 claim_id id, $4 fence bigint
-- returns: run_id id
-- Of claims that a mark or a release missed. A row: it is still the beat's to record, and somebody kept it locked.
-- A missing row: a worker has started it, the claim was lost, or it is recorded.
WITH p (job_id, run_id, claim_id, fence) AS (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[]))

SELECT p.run_id
FROM p
INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.job_id])
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL AND j.PublishedAt IS NULL;

-- name: read_ended
-- parameters: $1 namespace text(100), $2 batch_size int
-- returns: Id id, JobName text(200), RunId id, ClaimId id, Fence bigint, Kind text, ScheduledFor instant, Attempt int,
--   State text, ClaimedAt instant, PublishedAt instant, LockedAt instant, Started int, Republishes int,
--   LeaseSeconds seconds, Failures int, LostLeases int, Exclusive flag, TaskName text, Args text, Kwargs text,
--   Options text, CodeKey text, CodeOwner text, Now instant, Policies text
-- Zero rows: no lease has ended. A row that somebody keeps locked cannot be released now, and takes no place in the batch.
SELECT
    j.Id, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    j.ClaimedAt, j.PublishedAt, j.LockedAt,
    CASE WHEN j.StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    j.Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    j.TaskName, j.Args, j.Kwargs, j.Options, j.CodeKey, j.CodeOwner, statement_timestamp() AS Now, j.Policies
FROM Jobs AS j
INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[j.RunId])
WHERE
    j.Namespace = $1 AND j.LockedBy IS NOT NULL AND j.Leased = 1
    AND j.LeaseEndsAt <= statement_timestamp()
LIMIT $2
FOR NO KEY UPDATE SKIP LOCKED;

-- name: read_ended_held
-- parameters: $1 namespace text(100), $2 batch_size int
-- returns: JobId id, JobName text(200), RunId id, ClaimId id, Fence bigint, Kind text, ScheduledFor instant,
--   Attempt int, State text, ClaimedAt instant, PublishedAt instant, LockedAt instant, Started int,
--   Republishes int, LeaseSeconds seconds, Failures int, LostLeases int, Exclusive flag, TaskName text,
--   Args text, Kwargs text, Options text, CodeKey text, CodeOwner text, Now instant, Policies text
-- Zero rows: no overlapping run has lost its worker.
SELECT
    r.JobId, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    r.ClaimedAt, r.PublishedAt, r.ClaimedAt AS LockedAt,
    1 AS Started, 0 AS Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    NULL AS TaskName, NULL AS Args, NULL AS Kwargs, NULL AS Options, NULL AS CodeKey, NULL AS CodeOwner, statement_timestamp() AS Now,
    NULL AS Policies
FROM JobRuns AS r
WHERE
    r.Namespace = $1 AND r.HeldBy IS NOT NULL
    AND r.LeaseEndsAt <= statement_timestamp()
LIMIT $2
FOR NO KEY UPDATE SKIP LOCKED;

-- name: postpone_start_deadline
-- parameters: $7 beat text(200)
-- rows: $1 job_id id, $2 run_id id, $3 claim_id id, $4 fence bigint, $5 republishes int, $6 queued_seconds seconds
-- returns: RunId id
-- A missing row: a worker started it, another beat took it over or extended it first, or somebody keeps it locked.
WITH p (job_id, run_id, claim_id, fence, republishes, queued_seconds) AS (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::integer[], $6::float8[])),

ended AS MATERIALIZED (
    SELECT j.Id, p.run_id, p.claim_id, p.fence, p.republishes, p.queued_seconds
    FROM p
    INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.job_id])
    WHERE
        j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
        AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL AND j.Republishes = p.republishes
        AND j.LeaseEndsAt <= statement_timestamp()
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    LockedBy = $7,
    LockedAt = statement_timestamp(),
    Republishes = Jobs.Republishes + 1,
    LeaseEndsAt = statement_timestamp() + ended.queued_seconds * interval '1 second'
FROM ended
WHERE
    Jobs.Id = ANY(ARRAY[ended.Id]) AND Jobs.RunId = ended.run_id AND Jobs.ClaimId = ended.claim_id
    AND Jobs.Fence = ended.fence AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL
    AND Jobs.Republishes = ended.republishes AND Jobs.LeaseEndsAt <= statement_timestamp()
RETURNING Jobs.RunId;

-- name: read_replaceable
-- parameters: $1 namespace text(100), $2 code_owner text(200), $3 batch_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, RunId id, ClaimId id,
--   Fence bigint, ReplaceAt instant, Started int, Now instant
-- Zero rows: no run is to make room for the next slot of its job. Locked rows as in read_ended.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    CodeKey, RunId, ClaimId, Fence, ReplaceAt, CASE WHEN StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    statement_timestamp() AS Now
FROM Jobs
WHERE
    Namespace = $1 AND LockedBy IS NOT NULL AND Leased = 1 AND RunId IS NOT NULL
    AND Enabled = 1 AND Quarantine IS NULL AND ReplaceAt <= statement_timestamp()
    AND (CodeOwner IS NULL OR CAST($2 AS text) IN ('', CodeOwner))
LIMIT $3
FOR NO KEY UPDATE SKIP LOCKED;

-- name: postpone_replacing
-- rows: $1 job_id id, $2 run_id id, $3 claim_id id, $4 fence bigint, $5 replace_at instant
-- returns: Id id
-- A missing row: the run has ended, the job is in other hands, or another beat has postponed it.
WITH p (job_id, run_id, claim_id, fence, replace_at) AS (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::timestamptz[]))

UPDATE Jobs SET ReplaceAt = p.replace_at
FROM p
WHERE
    Jobs.Id = ANY(ARRAY[p.job_id]) AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL AND Jobs.ReplaceAt <= statement_timestamp()
RETURNING Jobs.Id;

-- name: release_orphan_locks
-- parameters: $1 namespace text(100), $2 lock_seconds seconds
-- returns: Id id, JobName text(200), LockedBy text
-- Locks that stand for no run: written by hand, or their history is gone. One without an instant gets one first.
-- A row that somebody keeps locked is left for the next look.
WITH strays AS MATERIALIZED (
    SELECT j.Id
    FROM Jobs AS j
    WHERE
        j.Namespace = $1 AND j.LockedBy IS NOT NULL AND j.Leased = 1
        AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = j.RunId)
        AND (
            (j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL)
            OR coalesce(
                j.LeaseEndsAt,
                j.LockedAt + coalesce(60.0 * j.LockTimeoutMinutes, $2) * interval '1 second'
            ) <= statement_timestamp()
        )
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    LockedBy = CASE WHEN Jobs.LockedAt IS NULL AND Jobs.LeaseEndsAt IS NULL THEN Jobs.LockedBy END,
    LockedAt = CASE WHEN Jobs.LockedAt IS NULL AND Jobs.LeaseEndsAt IS NULL THEN statement_timestamp() END,
    LeaseEndsAt = NULL,
    RunId = NULL,
    ClaimId = NULL,
    StartedRetry = NULL,
    Fence = Jobs.Fence + 1
FROM strays
WHERE Jobs.Id = ANY(ARRAY[strays.Id]) AND Jobs.LockedBy IS NOT NULL
RETURNING Jobs.Id, Jobs.JobName, Jobs.LockedBy;

-- name: read_next
-- parameters: $1 namespace text(100), $2 code_keys list, $3 code_owner text(200), $4 other_entries list
-- returns: Now instant, DueAt instant, EndsAt instant, PlannedAt instant, HeldEndsAt instant, OutboxAt instant,
--   Changes bigint, ReplaceAt instant, Locked bigint
-- Always one row: the earliest instants of each kind at which some beat has something to do, and the change counter.
SELECT
    statement_timestamp() AS Now,
    (
        SELECT coalesce(RetryAt, NextRunTime)
        FROM Jobs
        WHERE
            Namespace = $1 AND Enabled = 1 AND LockedBy IS NULL AND Leased = 0 AND Quarantine IS NULL
            AND (CodeKey IS NULL OR CodeKey = ANY($2))
            AND (
                CodeOwner IS NULL
                OR (CAST($3 AS text) IN ('', CodeOwner) AND JobName <> ALL($4))
            )
        ORDER BY coalesce(RetryAt, NextRunTime) -- min() reads every row where the planner knows no better
        LIMIT 1
    ) AS DueAt,
    leased.EndsAt,
    leased.PlannedAt,
    (
        SELECT min(r.LeaseEndsAt) FROM JobRuns AS r
        WHERE r.Namespace = $1 AND r.HeldBy IS NOT NULL
    ) AS HeldEndsAt,
    (
        SELECT r.DueAt
        FROM JobRuns AS r
        INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[r.JobId])
        WHERE
            r.Namespace = $1 AND r.DueAt IS NOT NULL
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR j.CodeKey = ANY($2))
            AND (
                j.CodeOwner IS NULL
                OR (CAST($3 AS text) IN ('', j.CodeOwner) AND j.JobName <> ALL($4))
            )
        ORDER BY r.DueAt
        LIMIT 1
    ) AS OutboxAt,
    coalesce((SELECT Counter FROM Changes WHERE Namespace = $1), 0) AS Changes,
    leased.ReplaceAt,
    leased.Locked
FROM (
    SELECT
        count(*) AS Locked,
        min(LeaseEndsAt) AS EndsAt,
        min(CASE WHEN PlannedAt > statement_timestamp() THEN PlannedAt END) AS PlannedAt,
        min(
            CASE
                WHEN
                    Enabled = 1 AND Quarantine IS NULL
                    AND (CodeOwner IS NULL OR CAST($3 AS text) IN ('', CodeOwner))
                    THEN ReplaceAt
            END
        ) AS ReplaceAt
    FROM Jobs
    WHERE Namespace = $1 AND LockedBy IS NOT NULL AND Leased = 1
) AS leased;

-- name: read_later
-- parameters: $1 namespace text(100), $2 after instant, $3 code_keys list, $4 code_owner text(200),
--   $5 other_entries list
-- returns: Now instant, DueAt instant, OutboxAt instant
-- Always one row: the earliest instants later than this one at which there is something to claim.
SELECT
    statement_timestamp() AS Now,
    (
        SELECT coalesce(RetryAt, NextRunTime)
        FROM Jobs
        WHERE
            Namespace = $1 AND Enabled = 1 AND LockedBy IS NULL AND Leased = 0 AND Quarantine IS NULL
            AND coalesce(RetryAt, NextRunTime) > $2
            AND (CodeKey IS NULL OR CodeKey = ANY($3))
            AND (
                CodeOwner IS NULL
                OR (CAST($4 AS text) IN ('', CodeOwner) AND JobName <> ALL($5))
            )
        ORDER BY coalesce(RetryAt, NextRunTime)
        LIMIT 1
    ) AS DueAt,
    (
        SELECT r.DueAt
        FROM JobRuns AS r
        INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[r.JobId])
        WHERE
            r.Namespace = $1 AND r.DueAt > $2
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR j.CodeKey = ANY($3))
            AND (
                j.CodeOwner IS NULL
                OR (CAST($4 AS text) IN ('', j.CodeOwner) AND j.JobName <> ALL($5))
            )
        ORDER BY r.DueAt
        LIMIT 1
    ) AS OutboxAt;

-- name: read_rows_needing_repair
-- parameters: $1 namespace text(100), $2 after_id word(36), $3 code_owner text(200), $4 page_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- Zero rows: every row is in order.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence,
    RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, statement_timestamp() AS Now
FROM Jobs
WHERE
    Namespace = $1 AND LockedBy IS NULL AND Id > CAST($2 AS uuid)
    AND (CodeOwner IS NULL OR DeleteRequested = 1 OR CAST($3 AS text) IN ('', CodeOwner))
    AND (
        Quarantine IS NOT NULL
        OR DeleteRequested = 1
        OR (Enabled = 1 AND NextRunTime IS NULL AND RetryAt IS NULL)
    )
ORDER BY Id
LIMIT $4;

-- name: repair_rows
-- rows: $1 job_id id, $2 fence bigint, $3 version bigint, $4 next_run_time instant, $5 retry_at instant
-- returns: Id id
-- Fills in the instants of rows that read_rows_needing_repair found, and ends their quarantine. Passes locked rows by.
WITH p (job_id, fence, version, next_run_time, retry_at) AS (SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::timestamptz[], $5::timestamptz[])),

free AS MATERIALIZED (
    SELECT j.Id, p.fence, p.next_run_time, p.retry_at
    FROM p
    INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.job_id])
    WHERE j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    NextRunTime = free.next_run_time,
    RetryAt = free.retry_at,
    Quarantine = NULL
FROM free
WHERE Jobs.Id = ANY(ARRAY[free.Id]) AND Jobs.Fence = free.fence AND Jobs.LockedBy IS NULL
RETURNING Jobs.Id;

-- name: delete_requested
-- rows: $1 job_id id
-- returns: Id id, RunId id, RetryRunId id
-- A missing row: a run holds the job or, overlapping others, goes on by itself; or its deletion was not asked for; or
-- somebody keeps its row locked.
WITH p (job_id) AS (SELECT * FROM unnest($1::uuid[])),

doomed AS MATERIALIZED (
    SELECT j.Id
    FROM p
    INNER JOIN Jobs AS j ON j.Id = ANY(ARRAY[p.job_id])
    WHERE j.DeleteRequested = 1 AND j.LockedBy IS NULL
    FOR UPDATE OF j SKIP LOCKED
)

DELETE FROM Jobs
WHERE
    Id IN (SELECT doomed.Id FROM doomed) AND DeleteRequested = 1 AND LockedBy IS NULL
    AND NOT EXISTS (
        SELECT 1
        FROM JobRuns AS r
        WHERE r.Namespace = Jobs.Namespace AND r.HeldBy IS NOT NULL AND r.JobId = Jobs.Id
    )
RETURNING Id, RunId, RetryRunId;
