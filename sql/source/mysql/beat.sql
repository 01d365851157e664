-- What a beat reads and writes. `:now` is the instant at which the server begins with a block, before any wait for a
-- lock; one for all its statements.
-- There is no UPDATE ... RETURNING: a block chooses and locks its rows, keeps what it needs of them in @won, writes them,
-- and gives them from there. STRAIGHT_JOIN: the rows of the batch drive the join, in their order, and lock in that order.

-- part: open_runs
(
    SELECT count(*) FROM JobRuns AS o
    WHERE
        o.JobId = j.Id
        AND (
            o.StateBeside IN ('claimed', 'running')
            OR (
                o.StateBeside = 'dispatched' AND o.StartedAt IS NULL AND o.Reason IS NULL
                AND o.PublishedAt > before(:now, :queued_seconds)
            )
        )
) AS OpenRuns

-- name: read_due
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, j.RetryRunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    0 AS Extra, :now AS Now, j.CodeOwner, j.Version,
    -- include: open_runs
FROM Jobs AS j FORCE INDEX (Jobs_Due)
WHERE
    j.Namespace = :namespace AND j.ClaimableAt <= :now
    AND (j.CodeKey IS NULL OR one_of(j.CodeKey, :code_keys))
    AND (j.CodeOwner IS NULL OR (:code_owner IN ('', j.CodeOwner) AND none_of(j.JobName, :other_entries)))
    AND (:share = '0123456789abcdef' OR instr(:share, lower(right(j.Id, 1))) > 0)
    AND none_of(j.Id, :besides)
ORDER BY j.ClaimableAt
LIMIT :batch_size;

-- name: read_outbox
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, r.RunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    1 AS Extra, :now AS Now, j.CodeOwner, j.Version,
    -- include: open_runs
FROM JobRuns AS r FORCE INDEX (JobRuns_Outbox)
LOOP JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.Namespace = :namespace AND r.DueAt <= :now
    AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.CodeKey IS NULL OR one_of(j.CodeKey, :code_keys))
    AND (j.CodeOwner IS NULL OR (:code_owner IN ('', j.CodeOwner) AND none_of(j.JobName, :other_entries)))
    AND (:share = '0123456789abcdef' OR instr(:share, lower(right(j.Id, 1))) > 0)
    AND none_of(j.Id, :besides)
ORDER BY r.DueAt
LIMIT :batch_size;

-- part: held_attempts
SELECT json_arrayagg(r.RunId)
INTO @held
FROM (
    SELECT p.waiting_id AS run_id, p.waiting_state AS state
    FROM p (waiting_id, waiting_state)
    UNION ALL
    SELECT p.left_id AS run_id, p.left_state AS state
    FROM p (left_id, left_state)
) AS h
LOOP JOIN JobRuns AS r ON r.RunId = h.run_id
WHERE r.State = h.state
FOR UPDATE SKIP LOCKED;

-- part: where_as_read
WHERE
    j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.Enabled = 1 OR j.DisabledReason = 'finished')
    AND same(j.NextRunTime, p.next_run_time) AND same(j.RetryAt, p.retry_at)
    AND (p.waiting_id IS NULL OR json_contains(@held, json_quote(p.waiting_id)))
    AND (p.left_id IS NULL OR json_contains(@held, json_quote(p.left_id)))
FOR UPDATE SKIP LOCKED;

-- name: claim_jobs
-- A missing row: the job, or an attempt that the next one continues, is not as it was read; or somebody keeps it locked.
-- Nobody waits for such a row. ClaimedAt is when the job was read: its next slot may count from there.
-- include: held_attempts

SELECT json_arrayagg(json_array(j.Id, p.run_id, p.claim_id, p.planned_at, p.replace_at, p.claimed_at))
INTO @won
FROM p
LOOP JOIN Jobs AS j ON j.Id = p.job_id
-- include: where_as_read

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            Id char(36) PATH '$[0]', RunId char(36) PATH '$[1]', ClaimId char(36) PATH '$[2]',
            PlannedAt datetime(6) PATH '$[3]', ReplaceAt datetime(6) PATH '$[4]', ClaimedAt datetime(6) PATH '$[5]'
        )
    ) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET
    j.LockedBy = :beat,
    j.LockedAt = :now,
    j.ClaimedAt = w.ClaimedAt,
    j.LeaseEndsAt = after(:now, :dispatch_seconds),
    j.PublishedAt = NULL,
    j.PlannedAt = w.PlannedAt,
    j.ReplaceAt = w.ReplaceAt,
    j.StartedRetry = NULL,
    j.Republishes = 0,
    j.Fence = j.Fence + 1,
    j.RunId = w.RunId,
    j.ClaimId = w.ClaimId;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: reopen_runs
UPDATE p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
STRAIGHT_JOIN Jobs AS j ON j.Id = r.JobId AND j.RunId = p.run_id AND j.ClaimId = p.claim_id
SET
    r.State = 'claimed',
    r.PriorState = 'scheduled',
    r.Reason = NULL,
    r.Fence = j.Fence,
    r.ClaimId = p.claim_id,
    r.ClaimedBy = :beat,
    r.ClaimedAt = j.ClaimedAt,
    r.PublishedAt = NULL,
    r.StartedBy = NULL,
    r.StartId = NULL,
    r.StartedAt = NULL,
    r.StartedRetry = NULL,
    r.PlannedAt = j.PlannedAt,
    r.DelaySeconds = p.delay_seconds,
    r.LeaseSeconds = p.lease_seconds,
    r.MaxRetries = p.max_retries,
    r.MaxRuntimeSeconds = p.max_runtime,
    r.Exclusive = p.exclusive,
    r.MaxParallel = p.max_parallel,
    r.Attempt = p.attempt,
    r.Failures = p.failures,
    r.LostLeases = p.lost_leases,
    r.FinishedAt = NULL,
    r.ResultsEndedAt = CASE WHEN r.Kind = 'one_off' THEN :now ELSE r.ResultsEndedAt END,
    r.Error = NULL,
    r.Traceback = NULL,
    r.DueAt = NULL;

-- name: note_check_ins
UPDATE p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
SET r.CheckIn = p.check_in
WHERE r.ClaimId = p.claim_id;

SELECT r.RunId
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE r.ClaimId = p.claim_id;

-- name: leave_attempts
UPDATE p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
SET
    r.DueAt = CASE WHEN p.again = 1 THEN :now END,
    r.PriorState = CASE WHEN p.again <> 2 AND r.State = 'retry' THEN r.PriorState ELSE r.State END,
    r.Reason = CASE
        WHEN p.again = 2 THEN 'replaced'
        WHEN r.State = 'retry' THEN r.Reason
        ELSE 'unlocked by hand'
    END,
    r.FinishedAt = CASE WHEN r.State <> 'claimed' THEN coalesce(r.FinishedAt, :now) END,
    r.HeldBy = NULL,
    r.LeaseEndsAt = NULL,
    r.State = CASE WHEN p.again = 2 THEN 'cancelled' WHEN r.State = 'claimed' THEN 'scheduled' ELSE 'retry' END
WHERE r.State IN ('retry', 'running', 'claimed');

-- name: advance_jobs
-- include: held_attempts

SELECT json_arrayagg(json_array(j.Id, p.next_slot))
INTO @won
FROM p
LOOP JOIN Jobs AS j ON j.Id = p.job_id
-- include: where_as_read

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', NextSlot datetime(6) PATH '$[1]')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET
    j.NextRunTime = w.NextSlot,
    j.Enabled = CASE WHEN w.NextSlot IS NULL THEN 0 ELSE j.Enabled END,
    j.DisabledReason = CASE WHEN w.NextSlot IS NULL THEN 'finished' ELSE j.DisabledReason END;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: quarantine_jobs
-- A missing row: the job was claimed or changed meanwhile; or somebody keeps its row locked.
SELECT json_arrayagg(json_array(j.Id, p.reason))
INTO @won
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
WHERE j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', Reason varchar(1000) PATH '$[1]')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET j.Quarantine = w.Reason;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: mark_published
-- A missing row: a worker has started it, or the claim was lost, and neither is moved backwards; or somebody keeps the
-- job's row locked, as read_unmarked tells. Nobody waits for such a row.
SELECT json_arrayagg(json_array(j.Id, j.RunId, p.queued_seconds))
INTO @won
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', QueuedSeconds double PATH '$[2]')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET j.PublishedAt = :now, j.LeaseEndsAt = after(:now, w.QueuedSeconds);

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[1]')) AS w;

-- name: read_ended
-- Zero rows: no lease has ended. A row that somebody keeps locked cannot be released now, and takes no place in the batch.
SELECT
    j.Id, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    j.ClaimedAt, j.PublishedAt, j.LockedAt,
    CASE WHEN j.StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    j.Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    j.TaskName, j.Args, j.Kwargs, j.Options, j.CodeKey, j.CodeOwner, :now AS Now, j.Policies
FROM Jobs AS j FORCE INDEX (Jobs_Leased)
STRAIGHT_JOIN JobRuns AS r ON r.RunId = j.RunId
WHERE
    j.Namespace = :namespace AND j.LockedBy IS NOT NULL AND j.Leased = 1
    AND j.LeaseEndsAt <= :now
LIMIT :batch_size
FOR UPDATE SKIP LOCKED;

-- name: postpone_start_deadline
-- A missing row: a worker started it, another beat took it over or extended it first, or somebody keeps it locked.
SELECT json_arrayagg(json_array(j.Id, j.RunId, p.queued_seconds))
INTO @won
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL AND j.Republishes = p.republishes
    AND j.LeaseEndsAt <= :now
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', QueuedSeconds double PATH '$[2]')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET
    j.LockedBy = :beat,
    j.LockedAt = :now,
    j.Republishes = j.Republishes + 1,
    j.LeaseEndsAt = after(:now, w.QueuedSeconds);

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[1]')) AS w;

-- name: read_replaceable
-- Zero rows: no run is to make room for the next slot of its job. Locked rows as in read_ended.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    CodeKey, RunId, ClaimId, Fence, ReplaceAt, CASE WHEN StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    :now AS Now
FROM Jobs FORCE INDEX (Jobs_Leased)
WHERE
    Namespace = :namespace AND LockedBy IS NOT NULL AND Leased = 1 AND RunId IS NOT NULL
    AND Enabled = 1 AND Quarantine IS NULL AND ReplaceAt <= :now
    AND (CodeOwner IS NULL OR :code_owner IN ('', CodeOwner))
LIMIT :batch_size
FOR UPDATE SKIP LOCKED;

-- name: postpone_replacing
SELECT json_arrayagg(json_array(j.Id, p.replace_at))
INTO @won
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.ReplaceAt <= :now
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', ReplaceAt datetime(6) PATH '$[1]')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET j.ReplaceAt = w.ReplaceAt;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: release_orphan_locks
-- Locks that stand for no run: written by hand, or their history is gone. One without an instant gets one first.
-- A row that somebody keeps locked is left for the next look.
SELECT json_arrayagg(j.Id)
INTO @won
FROM Jobs AS j FORCE INDEX (Jobs_Leased)
WHERE
    j.Namespace = :namespace AND j.LockedBy IS NOT NULL AND j.Leased = 1
    AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = j.RunId)
    AND (
        (j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL)
        OR coalesce(
            j.LeaseEndsAt,
            j.LockedAt + INTERVAL coalesce(60.0 * j.LockTimeoutMinutes, :lock_seconds) SECOND
        ) <= :now
    )
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET
    j.LockedBy = CASE WHEN j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL THEN j.LockedBy END,
    j.LockedAt = CASE WHEN j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL THEN :now END,
    j.LeaseEndsAt = NULL,
    j.RunId = NULL,
    j.ClaimId = NULL,
    j.StartedRetry = NULL,
    j.Fence = j.Fence + 1;

SELECT j.Id, j.JobName, j.LockedBy
FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id;

-- name: read_next
SELECT
    :now AS Now,
    (
        SELECT ClaimableAt
        FROM Jobs FORCE INDEX (Jobs_Due)
        WHERE
            Namespace = :namespace AND ClaimableAt IS NOT NULL
            AND (CodeKey IS NULL OR CodeKey IN (:code_keys))
            AND (
                CodeOwner IS NULL
                OR (:code_owner IN ('', CodeOwner) AND JobName NOT IN (:other_entries))
            )
        ORDER BY ClaimableAt
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
        FROM JobRuns AS r FORCE INDEX (JobRuns_Outbox)
        STRAIGHT_JOIN Jobs AS j ON j.Id = r.JobId
        WHERE
            r.Namespace = :namespace AND r.DueAt IS NOT NULL
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR j.CodeKey IN (:code_keys))
            AND (
                j.CodeOwner IS NULL
                OR (:code_owner IN ('', j.CodeOwner) AND j.JobName NOT IN (:other_entries))
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
                    AND (CodeOwner IS NULL OR :code_owner IN ('', CodeOwner))
                    THEN ReplaceAt
            END
        ) AS ReplaceAt
    FROM Jobs FORCE INDEX (Jobs_Leased)
    WHERE Namespace = :namespace AND LockedBy IS NOT NULL AND Leased = 1
) AS leased;

-- name: read_later
SELECT
    :now AS Now,
    (
        SELECT ClaimableAt
        FROM Jobs FORCE INDEX (Jobs_Due)
        WHERE
            Namespace = :namespace AND ClaimableAt > :after
            AND (CodeKey IS NULL OR CodeKey IN (:code_keys))
            AND (
                CodeOwner IS NULL
                OR (:code_owner IN ('', CodeOwner) AND JobName NOT IN (:other_entries))
            )
        ORDER BY ClaimableAt
        LIMIT 1
    ) AS DueAt,
    (
        SELECT r.DueAt
        FROM JobRuns AS r FORCE INDEX (JobRuns_Outbox)
        STRAIGHT_JOIN Jobs AS j ON j.Id = r.JobId
        WHERE
            r.Namespace = :namespace AND r.DueAt > :after
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR j.CodeKey IN (:code_keys))
            AND (
                j.CodeOwner IS NULL
                OR (:code_owner IN ('', j.CodeOwner) AND j.JobName NOT IN (:other_entries))
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
FROM Jobs FORCE INDEX (Jobs_Attention)
WHERE
    Namespace = :namespace AND NeedsAttention = 1 AND LockedBy IS NULL AND Id > :after_id
    AND (CodeOwner IS NULL OR DeleteRequested = 1 OR :code_owner IN ('', CodeOwner))
ORDER BY Id
LIMIT :page_size;

-- name: repair_rows
-- Fills in the instants of rows that read_rows_needing_repair found, and ends their quarantine. Passes locked rows by.
SELECT json_arrayagg(json_array(j.Id, p.next_run_time, p.retry_at))
INTO @won
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
WHERE j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL
FOR UPDATE SKIP LOCKED;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            Id char(36) PATH '$[0]', NextRunTime datetime(6) PATH '$[1]', RetryAt datetime(6) PATH '$[2]'
        )
    ) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET j.NextRunTime = w.NextRunTime, j.RetryAt = w.RetryAt, j.Quarantine = NULL;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: delete_requested
-- A missing row: a run holds the job or, overlapping others, goes on by itself; or its deletion was not asked for; or
-- somebody keeps its row locked.
SELECT json_arrayagg(json_array(j.Id, j.RunId, j.RetryRunId))
INTO @won
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
WHERE
    j.DeleteRequested = 1 AND j.LockedBy IS NULL
    AND NOT EXISTS (
        SELECT 1
        FROM JobRuns AS r
        WHERE r.Namespace = j.Namespace AND r.HeldBy IS NOT NULL AND r.JobId = j.Id
    )
FOR UPDATE SKIP LOCKED;

DELETE j
FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id;

SELECT w.Id, w.RunId, w.RetryRunId
FROM JSON_TABLE(
    @won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', RunId char(36) PATH '$[1]', RetryRunId char(36) PATH '$[2]')
) AS w;
