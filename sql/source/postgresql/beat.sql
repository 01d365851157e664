-- What a beat reads and writes. A batch is an array for each of its columns, in the order in which its locks are taken.
-- statement_timestamp() is when the server received the statement: one instant for all of it, before any waiting for
-- locks.
-- `= ANY(ARRAY[key])` finds one row as `= key` does, but only so do the rows of the batch always drive the join, in their
-- order: with `=` the planner reads a small or new table in the order of its key, keeps that plan while the table
-- grows, and locks rows in that order.

-- name: read_due
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, j.RetryRunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    0 AS Extra, :now AS Now, j.CodeOwner, j.Version,
    -- include: open_runs
FROM Jobs AS j
WHERE
    j.Namespace = :namespace AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Leased = 0 AND j.Quarantine IS NULL
    AND coalesce(j.RetryAt, j.NextRunTime) <= :now
    AND (j.CodeKey IS NULL OR one_of(j.CodeKey, :code_keys))
    AND (j.CodeOwner IS NULL OR (CAST(:code_owner AS text) IN ('', j.CodeOwner) AND none_of(j.JobName, :other_entries)))
    AND (:share = '0123456789abcdef' OR strpos(:share, right(CAST(j.Id AS text), 1)) > 0)
    AND none_of(j.Id, CAST(:besides AS uuid[]))
ORDER BY coalesce(j.RetryAt, j.NextRunTime)
LIMIT :batch_size;

-- name: read_outbox
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, r.RunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    1 AS Extra, :now AS Now, j.CodeOwner, j.Version,
    -- include: open_runs
FROM JobRuns AS r
INNER JOIN Jobs AS j ON j.Id = key(r.JobId)
WHERE
    r.Namespace = :namespace AND r.DueAt <= :now
    AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.CodeKey IS NULL OR one_of(j.CodeKey, :code_keys))
    AND (j.CodeOwner IS NULL OR (CAST(:code_owner AS text) IN ('', j.CodeOwner) AND none_of(j.JobName, :other_entries)))
    AND (:share = '0123456789abcdef' OR strpos(:share, right(CAST(j.Id AS text), 1)) > 0)
    AND none_of(j.Id, CAST(:besides AS uuid[]))
ORDER BY r.DueAt
LIMIT :batch_size;

-- part: held_attempts
held AS MATERIALIZED (
    SELECT r.RunId
    FROM (
        SELECT p.waiting_id AS run_id, p.waiting_state AS state FROM p
        UNION ALL
        SELECT p.left_id AS run_id, p.left_state AS state FROM p
    ) AS a
    INNER JOIN JobRuns AS r ON r.RunId = key(a.run_id)
    WHERE r.State = a.state
    FOR NO KEY UPDATE OF r SKIP LOCKED
),

-- part: where_as_read
WHERE
    j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.Enabled = 1 OR j.DisabledReason = 'finished')
    AND same(j.NextRunTime, p.next_run_time) AND same(j.RetryAt, p.retry_at)
    AND (p.waiting_id IS NULL OR p.waiting_id IN (SELECT h.RunId FROM held AS h))
    AND (p.left_id IS NULL OR p.left_id IN (SELECT h.RunId FROM held AS h))
FOR NO KEY UPDATE OF j SKIP LOCKED

-- name: claim_jobs
-- A missing row: the job, or an attempt that the next one continues, is not as it was read; or somebody keeps it locked.
-- Nobody waits for such a row. ClaimedAt is when the job was read: its next slot may count from there.
WITH p AS (:rows),

-- include: held_attempts

free AS MATERIALIZED (
    SELECT j.Id, p.fence, p.run_id, p.claim_id, p.planned_at, p.replace_at, p.claimed_at
    FROM p
    INNER JOIN Jobs AS j ON j.Id = key(p.job_id)
    -- include: where_as_read
)

UPDATE Jobs SET
    LockedBy = :beat,
    LockedAt = :now,
    ClaimedAt = free.claimed_at,
    LeaseEndsAt = after(:now, :dispatch_seconds),
    PublishedAt = NULL,
    PlannedAt = free.planned_at,
    ReplaceAt = free.replace_at,
    StartedRetry = NULL,
    Republishes = 0,
    Fence = Jobs.Fence + 1,
    RunId = free.run_id,
    ClaimId = free.claim_id
FROM free
WHERE Jobs.Id = key(free.Id) AND Jobs.Fence = free.fence AND Jobs.LockedBy IS NULL
RETURNING Jobs.Id;

-- name: advance_jobs
WITH p AS (:rows),

-- include: held_attempts

free AS MATERIALIZED (
    SELECT j.Id, p.fence, p.next_slot
    FROM p
    INNER JOIN Jobs AS j ON j.Id = key(p.job_id)
    -- include: where_as_read
)

UPDATE Jobs SET
    NextRunTime = free.next_slot,
    Enabled = CASE WHEN free.next_slot IS NULL THEN 0 ELSE Jobs.Enabled END,
    DisabledReason = CASE WHEN free.next_slot IS NULL THEN 'finished' ELSE Jobs.DisabledReason END
FROM free
WHERE Jobs.Id = key(free.Id) AND Jobs.Fence = free.fence AND Jobs.LockedBy IS NULL
RETURNING Jobs.Id;

-- name: quarantine_jobs
-- A missing row: the job was claimed or changed meanwhile; or somebody keeps its row locked.
WITH p AS (:rows),

free AS MATERIALIZED (
    SELECT j.Id, p.fence, p.reason
    FROM p
    INNER JOIN Jobs AS j ON j.Id = key(p.job_id)
    WHERE j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET Quarantine = free.reason
FROM free
WHERE Jobs.Id = key(free.Id) AND Jobs.Fence = free.fence AND Jobs.LockedBy IS NULL
RETURNING Jobs.Id;

-- name: mark_published
-- A missing row: a worker has started it, or the claim was lost, and neither is moved backwards; or somebody keeps the
-- job's row locked, as read_unmarked tells. Nobody waits for such a row.
WITH p AS (:rows),

mine AS MATERIALIZED (
    SELECT j.Id, p.run_id, p.claim_id, p.fence, p.queued_seconds
    FROM p
    INNER JOIN Jobs AS j ON j.Id = key(p.job_id)
    WHERE
        j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
        AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    PublishedAt = :now,
    LeaseEndsAt = after(:now, mine.queued_seconds)
FROM mine
WHERE
    Jobs.Id = key(mine.Id) AND Jobs.RunId = mine.run_id AND Jobs.ClaimId = mine.claim_id
    AND Jobs.Fence = mine.fence AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL
RETURNING Jobs.RunId;

-- name: read_ended
-- Zero rows: no lease has ended. A row that somebody keeps locked cannot be released now, and takes no place in the batch.
SELECT
    j.Id, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    j.ClaimedAt, j.PublishedAt, j.LockedAt,
    CASE WHEN j.StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    j.Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    j.TaskName, j.Args, j.Kwargs, j.Options, j.CodeKey, j.CodeOwner, :now AS Now, j.Policies
FROM Jobs AS j
INNER JOIN JobRuns AS r ON r.RunId = key(j.RunId)
WHERE
    j.Namespace = :namespace AND j.LockedBy IS NOT NULL AND j.Leased = 1
    AND j.LeaseEndsAt <= :now
LIMIT :batch_size
FOR NO KEY UPDATE SKIP LOCKED;

-- name: postpone_start_deadline
-- A missing row: a worker started it, another beat took it over or extended it first, or somebody keeps it locked.
WITH p AS (:rows),

ended AS MATERIALIZED (
    SELECT j.Id, p.run_id, p.claim_id, p.fence, p.republishes, p.queued_seconds
    FROM p
    INNER JOIN Jobs AS j ON j.Id = key(p.job_id)
    WHERE
        j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
        AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL AND j.Republishes = p.republishes
        AND j.LeaseEndsAt <= :now
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    LockedBy = :beat,
    LockedAt = :now,
    Republishes = Jobs.Republishes + 1,
    LeaseEndsAt = after(:now, ended.queued_seconds)
FROM ended
WHERE
    Jobs.Id = key(ended.Id) AND Jobs.RunId = ended.run_id AND Jobs.ClaimId = ended.claim_id
    AND Jobs.Fence = ended.fence AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL
    AND Jobs.Republishes = ended.republishes AND Jobs.LeaseEndsAt <= :now
RETURNING Jobs.RunId;

-- name: read_replaceable
-- Zero rows: no run is to make room for the next slot of its job. Locked rows as in read_ended.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    CodeKey, RunId, ClaimId, Fence, ReplaceAt, CASE WHEN StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    :now AS Now
FROM Jobs
WHERE
    Namespace = :namespace AND LockedBy IS NOT NULL AND Leased = 1 AND RunId IS NOT NULL
    AND Enabled = 1 AND Quarantine IS NULL AND ReplaceAt <= :now
    AND (CodeOwner IS NULL OR CAST(:code_owner AS text) IN ('', CodeOwner))
LIMIT :batch_size
FOR NO KEY UPDATE SKIP LOCKED;

-- name: release_orphan_locks
-- Locks that stand for no run: written by hand, or their history is gone. One without an instant gets one first.
-- A row that somebody keeps locked is left for the next look.
WITH strays AS MATERIALIZED (
    SELECT j.Id
    FROM Jobs AS j
    WHERE
        j.Namespace = :namespace AND j.LockedBy IS NOT NULL AND j.Leased = 1
        AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = j.RunId)
        AND (
            (j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL)
            OR coalesce(
                j.LeaseEndsAt,
                j.LockedAt + coalesce(60.0 * j.LockTimeoutMinutes, :lock_seconds) * interval '1 second'
            ) <= :now
        )
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    LockedBy = CASE WHEN Jobs.LockedAt IS NULL AND Jobs.LeaseEndsAt IS NULL THEN Jobs.LockedBy END,
    LockedAt = CASE WHEN Jobs.LockedAt IS NULL AND Jobs.LeaseEndsAt IS NULL THEN :now END,
    LeaseEndsAt = NULL,
    RunId = NULL,
    ClaimId = NULL,
    StartedRetry = NULL,
    Fence = Jobs.Fence + 1
FROM strays
WHERE Jobs.Id = key(strays.Id) AND Jobs.LockedBy IS NOT NULL
RETURNING Jobs.Id, Jobs.JobName, Jobs.LockedBy;

-- name: read_next
SELECT
    :now AS Now,
    (
        SELECT coalesce(RetryAt, NextRunTime)
        FROM Jobs
        WHERE
            Namespace = :namespace AND Enabled = 1 AND LockedBy IS NULL AND Leased = 0 AND Quarantine IS NULL
            AND (CodeKey IS NULL OR one_of(CodeKey, :code_keys))
            AND (
                CodeOwner IS NULL
                OR (CAST(:code_owner AS text) IN ('', CodeOwner) AND none_of(JobName, :other_entries))
            )
        ORDER BY coalesce(RetryAt, NextRunTime) -- min() reads every row where the planner knows no better
        LIMIT 1
    ) AS DueAt,
    leased.EndsAt,
    leased.PlannedAt,
    (
        SELECT min(r.LeaseEndsAt) FROM JobRuns AS r
        WHERE r.Namespace = :namespace AND r.HeldBy IS NOT NULL
    ) AS HeldEndsAt,
    (
        SELECT r.DueAt
        FROM JobRuns AS r
        INNER JOIN Jobs AS j ON j.Id = key(r.JobId)
        WHERE
            r.Namespace = :namespace AND r.DueAt IS NOT NULL
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR one_of(j.CodeKey, :code_keys))
            AND (
                j.CodeOwner IS NULL
                OR (CAST(:code_owner AS text) IN ('', j.CodeOwner) AND none_of(j.JobName, :other_entries))
            )
        ORDER BY r.DueAt
        LIMIT 1
    ) AS OutboxAt,
    coalesce((SELECT Counter FROM Changes WHERE Namespace = :namespace), 0) AS Changes,
    leased.ReplaceAt,
    leased.Locked
FROM (
    SELECT
        count(*) AS Locked,
        min(LeaseEndsAt) AS EndsAt,
        min(CASE WHEN PlannedAt > :now THEN PlannedAt END) AS PlannedAt,
        min(
            CASE
                WHEN
                    Enabled = 1 AND Quarantine IS NULL
                    AND (CodeOwner IS NULL OR CAST(:code_owner AS text) IN ('', CodeOwner))
                    THEN ReplaceAt
            END
        ) AS ReplaceAt
    FROM Jobs
    WHERE Namespace = :namespace AND LockedBy IS NOT NULL AND Leased = 1
) AS leased;

-- name: read_later
SELECT
    :now AS Now,
    (
        SELECT coalesce(RetryAt, NextRunTime)
        FROM Jobs
        WHERE
            Namespace = :namespace AND Enabled = 1 AND LockedBy IS NULL AND Leased = 0 AND Quarantine IS NULL
            AND coalesce(RetryAt, NextRunTime) > :after
            AND (CodeKey IS NULL OR one_of(CodeKey, :code_keys))
            AND (
                CodeOwner IS NULL
                OR (CAST(:code_owner AS text) IN ('', CodeOwner) AND none_of(JobName, :other_entries))
            )
        ORDER BY coalesce(RetryAt, NextRunTime)
        LIMIT 1
    ) AS DueAt,
    (
        SELECT r.DueAt
        FROM JobRuns AS r
        INNER JOIN Jobs AS j ON j.Id = key(r.JobId)
        WHERE
            r.Namespace = :namespace AND r.DueAt > :after
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR one_of(j.CodeKey, :code_keys))
            AND (
                j.CodeOwner IS NULL
                OR (CAST(:code_owner AS text) IN ('', j.CodeOwner) AND none_of(j.JobName, :other_entries))
            )
        ORDER BY r.DueAt
        LIMIT 1
    ) AS OutboxAt;

-- name: read_rows_needing_repair
-- Zero rows: every row is in order.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence,
    RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, :now AS Now
FROM Jobs
WHERE
    Namespace = :namespace AND LockedBy IS NULL AND Id > uuid(:after_id)
    AND (CodeOwner IS NULL OR DeleteRequested = 1 OR CAST(:code_owner AS text) IN ('', CodeOwner))
    AND (
        Quarantine IS NOT NULL
        OR DeleteRequested = 1
        OR (Enabled = 1 AND NextRunTime IS NULL AND RetryAt IS NULL)
    )
ORDER BY Id
LIMIT :page_size;

-- name: repair_rows
-- Fills in the instants of rows that read_rows_needing_repair found, and ends their quarantine. Passes locked rows by.
WITH p AS (:rows),

free AS MATERIALIZED (
    SELECT j.Id, p.fence, p.next_run_time, p.retry_at
    FROM p
    INNER JOIN Jobs AS j ON j.Id = key(p.job_id)
    WHERE j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    NextRunTime = free.next_run_time,
    RetryAt = free.retry_at,
    Quarantine = NULL
FROM free
WHERE Jobs.Id = key(free.Id) AND Jobs.Fence = free.fence AND Jobs.LockedBy IS NULL
RETURNING Jobs.Id;

-- name: delete_requested
-- A missing row: a run holds the job or, overlapping others, goes on by itself; or its deletion was not asked for; or
-- somebody keeps its row locked.
WITH p AS (:rows),

doomed AS MATERIALIZED (
    SELECT j.Id
    FROM p
    INNER JOIN Jobs AS j ON j.Id = key(p.job_id)
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
