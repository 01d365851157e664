-- Written by `make sql` from sql/source: change it there.
-- What a beat reads and writes. `:now` is the instant at which the server begins with a block, before any wait for a
-- lock; one for all its statements.
-- There is no UPDATE ... RETURNING: a block chooses and locks its rows, keeps what it needs of them in @won, writes them,
-- and gives them from there. STRAIGHT_JOIN: the rows of the batch drive the join, in their order, and lock in that order.

-- name: read_due
-- parameters: queued_seconds seconds, namespace text(100), code_keys list, code_owner text(200), other_entries list,
--   share word(16), besides list, batch_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, NextRunTime instant,
--   LastRunTime instant, RetryAt instant, Fence bigint, LeftRunId id, WaitingRunId id, PlannedAt instant,
--   RanUntil instant, Extra int, Now instant, CodeOwner text, Version bigint, OpenRuns bigint
-- Zero rows: nothing is due, or it is held by others. Nothing is locked: the claim compares what was read.
SET @now = utc_timestamp(6);
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, j.RetryRunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    0 AS Extra, CAST(@now AS datetime(6)) AS Now, j.CodeOwner, j.Version,
    (
        SELECT count(*) FROM JobRuns AS o
        WHERE
            o.JobId = j.Id
            AND (
                o.StateBeside IN ('claimed', 'running')
                OR (
                    o.StateBeside = 'dispatched' AND o.StartedAt IS NULL AND o.Reason IS NULL
                    AND o.PublishedAt > CAST(@now AS datetime(6)) - INTERVAL %(queued_seconds)s SECOND
                )
            )
    ) AS OpenRuns
FROM Jobs AS j FORCE INDEX (Jobs_Due)
WHERE
    j.Namespace = %(namespace)s AND j.ClaimableAt <= CAST(@now AS datetime(6))
    AND (j.CodeKey IS NULL OR j.CodeKey IN (%(code_keys)s))
    AND (j.CodeOwner IS NULL OR (%(code_owner)s IN ('', j.CodeOwner) AND j.JobName NOT IN (%(other_entries)s)))
    AND (%(share)s = '0123456789abcdef' OR instr(%(share)s, lower(right(j.Id, 1))) > 0)
    AND j.Id NOT IN (%(besides)s)
ORDER BY j.ClaimableAt
LIMIT %(batch_size)s;

-- name: read_outbox
-- parameters: queued_seconds seconds, namespace text(100), code_keys list, code_owner text(200), other_entries list,
--   share word(16), besides list, batch_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, NextRunTime instant,
--   LastRunTime instant, RetryAt instant, Fence bigint, LeftRunId id, WaitingRunId id, PlannedAt instant,
--   RanUntil instant, Extra int, Now instant, CodeOwner text, Version bigint, OpenRuns bigint
-- Zero rows: no attempt in the outbox is due whose job is free. A job whose schedule has ended still runs what was added.
SET @now = utc_timestamp(6);
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, r.RunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    1 AS Extra, CAST(@now AS datetime(6)) AS Now, j.CodeOwner, j.Version,
    (
        SELECT count(*) FROM JobRuns AS o
        WHERE
            o.JobId = j.Id
            AND (
                o.StateBeside IN ('claimed', 'running')
                OR (
                    o.StateBeside = 'dispatched' AND o.StartedAt IS NULL AND o.Reason IS NULL
                    AND o.PublishedAt > CAST(@now AS datetime(6)) - INTERVAL %(queued_seconds)s SECOND
                )
            )
    ) AS OpenRuns
FROM JobRuns AS r FORCE INDEX (JobRuns_Outbox)
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = r.JobId
WHERE
    r.Namespace = %(namespace)s AND r.DueAt <= CAST(@now AS datetime(6))
    AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.CodeKey IS NULL OR j.CodeKey IN (%(code_keys)s))
    AND (j.CodeOwner IS NULL OR (%(code_owner)s IN ('', j.CodeOwner) AND j.JobName NOT IN (%(other_entries)s)))
    AND (%(share)s = '0123456789abcdef' OR instr(%(share)s, lower(right(j.Id, 1))) > 0)
    AND j.Id NOT IN (%(besides)s)
ORDER BY r.DueAt
LIMIT %(batch_size)s;

-- name: read_attempts
-- rows: run_id id
-- returns: RunId id, JobId id, Kind text, ScheduledFor instant, Attempt int, State text, Failures int, LostLeases int,
--   Advances flag, Reason text, CreatedAt instant, SeenNextRunTime instant
-- A missing row: its history was deleted, so the slot starts anew.
SET @rows = %(rows)s;
SELECT
    r.RunId, r.JobId, r.Kind, r.ScheduledFor, r.Attempt, r.State, r.Failures, r.LostLeases, r.Advances, r.Reason,
    r.CreatedAt, r.SeenNextRunTime
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (run_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id;

-- name: read_attempt_numbers
-- rows: job_id id, scheduled_for instant, kind word(20)
-- returns: JobId id, ScheduledFor instant, Kind text, LastAttempt int
-- A missing row: the slot has no attempt yet.
SET @rows = %(rows)s;
SELECT r.JobId, r.ScheduledFor, r.Kind, max(r.Attempt) AS LastAttempt
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        scheduled_for datetime(6) PATH '$[1]' ERROR ON ERROR,
        kind mediumtext PATH '$[2]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r ON r.JobId = p.job_id AND r.ScheduledFor = p.scheduled_for AND r.Kind = p.kind
GROUP BY r.JobId, r.ScheduledFor, r.Kind;

-- name: claim_jobs
-- parameters: beat text(200), dispatch_seconds seconds
-- rows: job_id id, fence bigint, version bigint, next_run_time instant, retry_at instant, waiting_id id,
--   waiting_state word(20), left_id id, left_state word(20), run_id id, claim_id id, planned_at instant,
--   replace_at instant, claimed_at instant
-- returns: Id id
-- A missing row: the job, or an attempt that the next one continues, is not as it was read; or somebody keeps it locked.
-- Nobody waits for such a row. ClaimedAt is when the job was read: its next slot may count from there.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(r.RunId)
INTO @held
FROM (
    SELECT p.waiting_id AS run_id, p.waiting_state AS state
    FROM JSON_TABLE(
        @rows, '$[*]' COLUMNS (
            waiting_id char(36) PATH '$[5]' ERROR ON ERROR,
            waiting_state mediumtext PATH '$[6]' ERROR ON ERROR
        )
    ) AS p
    UNION ALL
    SELECT p.left_id AS run_id, p.left_state AS state
    FROM JSON_TABLE(
        @rows, '$[*]' COLUMNS (
            left_id char(36) PATH '$[7]' ERROR ON ERROR,
            left_state mediumtext PATH '$[8]' ERROR ON ERROR
        )
    ) AS p
) AS h
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = h.run_id
WHERE r.State = h.state
FOR UPDATE SKIP LOCKED;

SELECT json_arrayagg(json_array(j.Id, p.run_id, p.claim_id, p.planned_at, p.replace_at, p.claimed_at))
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        fence bigint PATH '$[1]' ERROR ON ERROR,
        version bigint PATH '$[2]' ERROR ON ERROR,
        next_run_time datetime(6) PATH '$[3]' ERROR ON ERROR,
        retry_at datetime(6) PATH '$[4]' ERROR ON ERROR,
        waiting_id char(36) PATH '$[5]' ERROR ON ERROR,
        waiting_state mediumtext PATH '$[6]' ERROR ON ERROR,
        left_id char(36) PATH '$[7]' ERROR ON ERROR,
        left_state mediumtext PATH '$[8]' ERROR ON ERROR,
        run_id char(36) PATH '$[9]' ERROR ON ERROR,
        claim_id char(36) PATH '$[10]' ERROR ON ERROR,
        planned_at datetime(6) PATH '$[11]' ERROR ON ERROR,
        replace_at datetime(6) PATH '$[12]' ERROR ON ERROR,
        claimed_at datetime(6) PATH '$[13]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE
    j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.Enabled = 1 OR j.DisabledReason = 'finished')
    AND j.NextRunTime <=> p.next_run_time AND j.RetryAt <=> p.retry_at
    AND (p.waiting_id IS NULL OR json_contains(@held, json_quote(p.waiting_id)))
    AND (p.left_id IS NULL OR json_contains(@held, json_quote(p.left_id)))
FOR UPDATE SKIP LOCKED;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            Id char(36) PATH '$[0]', RunId char(36) PATH '$[1]', ClaimId char(36) PATH '$[2]',
            PlannedAt datetime(6) PATH '$[3]', ReplaceAt datetime(6) PATH '$[4]', ClaimedAt datetime(6) PATH '$[5]'
        )
    ) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET
    j.LockedBy = %(beat)s,
    j.LockedAt = CAST(@now AS datetime(6)),
    j.ClaimedAt = w.ClaimedAt,
    j.LeaseEndsAt = CAST(@now AS datetime(6)) + INTERVAL %(dispatch_seconds)s SECOND,
    j.PublishedAt = NULL,
    j.PlannedAt = w.PlannedAt,
    j.ReplaceAt = w.ReplaceAt,
    j.StartedRetry = NULL,
    j.Republishes = 0,
    j.Fence = j.Fence + 1,
    j.RunId = w.RunId,
    j.ClaimId = w.ClaimId;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: insert_runs
-- parameters: beat text(200)
-- rows: run_id id, job_id id, claim_id id, kind word(20), scheduled_for instant, attempt int, delay_seconds seconds,
--   lease_seconds seconds, max_retries int, failures int, lost_leases int, exclusive flag, advances flag,
--   continues id, max_runtime seconds, max_parallel int
-- Records the slots of the claim in its own transaction. Only jobs that this claim holds are joined.
SET @now = utc_timestamp(6), @rows = %(rows)s;
INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, ClaimId,
    ClaimedBy, ClaimedAt, PlannedAt, DelaySeconds, SeenNextRunTime, LeaseSeconds, MaxRetries, Failures, LostLeases,
    Exclusive, Advances, CreatedAt, MaxRuntimeSeconds, MaxParallel
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, p.kind, p.scheduled_for, p.attempt, 'claimed', 'scheduled', j.Fence,
    p.claim_id, %(beat)s, j.ClaimedAt, j.PlannedAt, p.delay_seconds,
    CASE WHEN b.RunId IS NULL THEN j.NextRunTime ELSE b.SeenNextRunTime END,
    p.lease_seconds, p.max_retries, p.failures, p.lost_leases, p.exclusive, p.advances, CAST(@now AS datetime(6)), p.max_runtime, p.max_parallel
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        job_id char(36) PATH '$[1]' ERROR ON ERROR,
        claim_id char(36) PATH '$[2]' ERROR ON ERROR,
        kind mediumtext PATH '$[3]' ERROR ON ERROR,
        scheduled_for datetime(6) PATH '$[4]' ERROR ON ERROR,
        attempt integer PATH '$[5]' ERROR ON ERROR,
        delay_seconds double PATH '$[6]' ERROR ON ERROR,
        lease_seconds double PATH '$[7]' ERROR ON ERROR,
        max_retries integer PATH '$[8]' ERROR ON ERROR,
        failures integer PATH '$[9]' ERROR ON ERROR,
        lost_leases integer PATH '$[10]' ERROR ON ERROR,
        exclusive smallint PATH '$[11]' ERROR ON ERROR,
        advances smallint PATH '$[12]' ERROR ON ERROR,
        continues char(36) PATH '$[13]' ERROR ON ERROR,
        max_runtime double PATH '$[14]' ERROR ON ERROR,
        max_parallel integer PATH '$[15]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id AND j.RunId = p.run_id AND j.ClaimId = p.claim_id
LEFT JOIN JobRuns AS b ON b.RunId = p.continues;

-- name: reopen_runs
-- parameters: beat text(200)
-- rows: run_id id, claim_id id, delay_seconds seconds, lease_seconds seconds, max_retries int, exclusive flag,
--   max_runtime seconds, max_parallel int, attempt int, failures int, lost_leases int
-- Takes up attempts that were given back or not begun, and one-offs that are tried again: the run id stays, the claim and
-- the fence are new. The results of earlier attempts need no end where they have the same id.
SET @now = utc_timestamp(6), @rows = %(rows)s;
UPDATE JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        claim_id char(36) PATH '$[1]' ERROR ON ERROR,
        delay_seconds double PATH '$[2]' ERROR ON ERROR,
        lease_seconds double PATH '$[3]' ERROR ON ERROR,
        max_retries integer PATH '$[4]' ERROR ON ERROR,
        exclusive smallint PATH '$[5]' ERROR ON ERROR,
        max_runtime double PATH '$[6]' ERROR ON ERROR,
        max_parallel integer PATH '$[7]' ERROR ON ERROR,
        attempt integer PATH '$[8]' ERROR ON ERROR,
        failures integer PATH '$[9]' ERROR ON ERROR,
        lost_leases integer PATH '$[10]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = r.JobId AND j.RunId = p.run_id AND j.ClaimId = p.claim_id
SET
    r.State = 'claimed',
    r.PriorState = 'scheduled',
    r.Reason = NULL,
    r.Fence = j.Fence,
    r.ClaimId = p.claim_id,
    r.ClaimedBy = %(beat)s,
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
    r.ResultsEndedAt = CASE WHEN r.Kind = 'one_off' THEN CAST(@now AS datetime(6)) ELSE r.ResultsEndedAt END,
    r.Error = NULL,
    r.Traceback = NULL,
    r.DueAt = NULL;

-- name: note_check_ins
-- rows: run_id id, claim_id id, check_in text
-- returns: RunId id
-- A missing row: the claim was taken by another beat.
SET @rows = %(rows)s;
UPDATE JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        claim_id char(36) PATH '$[1]' ERROR ON ERROR,
        check_in mediumtext PATH '$[2]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
SET r.CheckIn = p.check_in
WHERE r.ClaimId = p.claim_id;

SELECT r.RunId
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        claim_id char(36) PATH '$[1]' ERROR ON ERROR,
        check_in mediumtext PATH '$[2]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
WHERE r.ClaimId = p.claim_id;

-- name: leave_attempts
-- rows: run_id id, again int
-- Attempts that another one follows; `again` = 1 sends an extra slot back to the outbox, 2 ends a slot whose retry makes
-- room for the next one. Their holders have lost them.
SET @now = utc_timestamp(6), @rows = %(rows)s;
UPDATE JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        again integer PATH '$[1]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
SET
    r.DueAt = CASE WHEN p.again = 1 THEN CAST(@now AS datetime(6)) END,
    r.PriorState = CASE WHEN p.again <> 2 AND r.State = 'retry' THEN r.PriorState ELSE r.State END,
    r.Reason = CASE
        WHEN p.again = 2 THEN 'replaced'
        WHEN r.State = 'retry' THEN r.Reason
        ELSE 'unlocked by hand'
    END,
    r.FinishedAt = CASE WHEN r.State <> 'claimed' THEN coalesce(r.FinishedAt, CAST(@now AS datetime(6))) END,
    r.HeldBy = NULL,
    r.LeaseEndsAt = NULL,
    r.State = CASE WHEN p.again = 2 THEN 'cancelled' WHEN r.State = 'claimed' THEN 'scheduled' ELSE 'retry' END
WHERE r.State IN ('retry', 'running', 'claimed');

-- name: insert_gaps
-- rows: run_id id, job_id id, first instant, last instant, count bigint, reason text(400), attempt int
SET @now = utc_timestamp(6), @rows = %(rows)s;
INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason,
    Fence, FinishedAt, CreatedAt
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, 'schedule', p.first, p.last, p.count, p.attempt, 'skipped', 'scheduled',
    p.reason, j.Fence, CAST(@now AS datetime(6)), CAST(@now AS datetime(6))
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        job_id char(36) PATH '$[1]' ERROR ON ERROR,
        first datetime(6) PATH '$[2]' ERROR ON ERROR,
        last datetime(6) PATH '$[3]' ERROR ON ERROR,
        count bigint PATH '$[4]' ERROR ON ERROR,
        reason mediumtext PATH '$[5]' ERROR ON ERROR,
        attempt integer PATH '$[6]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id;

-- name: advance_jobs
-- rows: job_id id, fence bigint, version bigint, next_run_time instant, retry_at instant, waiting_id id,
--   waiting_state word(20), left_id id, left_state word(20), next_slot instant
-- returns: Id id
-- Jobs that skip what was due. No next slot: the schedule has ended. A missing row: as in claim_jobs.
SET @rows = %(rows)s;
SELECT json_arrayagg(r.RunId)
INTO @held
FROM (
    SELECT p.waiting_id AS run_id, p.waiting_state AS state
    FROM JSON_TABLE(
        @rows, '$[*]' COLUMNS (
            waiting_id char(36) PATH '$[5]' ERROR ON ERROR,
            waiting_state mediumtext PATH '$[6]' ERROR ON ERROR
        )
    ) AS p
    UNION ALL
    SELECT p.left_id AS run_id, p.left_state AS state
    FROM JSON_TABLE(
        @rows, '$[*]' COLUMNS (
            left_id char(36) PATH '$[7]' ERROR ON ERROR,
            left_state mediumtext PATH '$[8]' ERROR ON ERROR
        )
    ) AS p
) AS h
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = h.run_id
WHERE r.State = h.state
FOR UPDATE SKIP LOCKED;

SELECT json_arrayagg(json_array(j.Id, p.next_slot))
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        fence bigint PATH '$[1]' ERROR ON ERROR,
        version bigint PATH '$[2]' ERROR ON ERROR,
        next_run_time datetime(6) PATH '$[3]' ERROR ON ERROR,
        retry_at datetime(6) PATH '$[4]' ERROR ON ERROR,
        waiting_id char(36) PATH '$[5]' ERROR ON ERROR,
        waiting_state mediumtext PATH '$[6]' ERROR ON ERROR,
        left_id char(36) PATH '$[7]' ERROR ON ERROR,
        left_state mediumtext PATH '$[8]' ERROR ON ERROR,
        next_slot datetime(6) PATH '$[9]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE
    j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.Enabled = 1 OR j.DisabledReason = 'finished')
    AND j.NextRunTime <=> p.next_run_time AND j.RetryAt <=> p.retry_at
    AND (p.waiting_id IS NULL OR json_contains(@held, json_quote(p.waiting_id)))
    AND (p.left_id IS NULL OR json_contains(@held, json_quote(p.left_id)))
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', NextSlot datetime(6) PATH '$[1]')) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET
    j.NextRunTime = w.NextSlot,
    j.Enabled = CASE WHEN w.NextSlot IS NULL THEN 0 ELSE j.Enabled END,
    j.DisabledReason = CASE WHEN w.NextSlot IS NULL THEN 'finished' ELSE j.DisabledReason END;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: quarantine_jobs
-- rows: job_id id, fence bigint, version bigint, reason text(1000)
-- returns: Id id
-- A missing row: the job was claimed or changed meanwhile; or somebody keeps its row locked.
SET @rows = %(rows)s;
SELECT json_arrayagg(json_array(j.Id, p.reason))
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        fence bigint PATH '$[1]' ERROR ON ERROR,
        version bigint PATH '$[2]' ERROR ON ERROR,
        reason mediumtext PATH '$[3]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', Reason varchar(1000) PATH '$[1]')) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET j.Quarantine = w.Reason;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: read_claims
-- rows: run_id id, claim_id id
-- returns: run_id id
-- After a commit without an answer: a row means that it did commit.
SET @rows = %(rows)s;
SELECT p.run_id
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        claim_id char(36) PATH '$[1]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id AND r.ClaimId = p.claim_id;

-- name: mark_published
-- rows: job_id id, run_id id, claim_id id, fence bigint, queued_seconds seconds
-- returns: RunId id
-- A missing row: a worker has started it, or the claim was lost, and neither is moved backwards; or somebody keeps the
-- job's row locked, as read_unmarked tells. Nobody waits for such a row.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(json_array(j.Id, j.RunId, p.queued_seconds))
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        run_id char(36) PATH '$[1]' ERROR ON ERROR,
        claim_id char(36) PATH '$[2]' ERROR ON ERROR,
        fence bigint PATH '$[3]' ERROR ON ERROR,
        queued_seconds double PATH '$[4]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', QueuedSeconds double PATH '$[2]')) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET j.PublishedAt = CAST(@now AS datetime(6)), j.LeaseEndsAt = CAST(@now AS datetime(6)) + INTERVAL w.QueuedSeconds SECOND;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[1]')) AS w;

-- name: read_unmarked
-- rows: job_id id, run_id id, claim_id id, fence bigint
-- returns: run_id id
-- Of claims that a mark or a release missed. A row: it is still the beat's to record, and somebody kept it locked.
-- A missing row: a worker has started it, the claim was lost, or it is recorded.
SET @rows = %(rows)s;
SELECT p.run_id
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        run_id char(36) PATH '$[1]' ERROR ON ERROR,
        claim_id char(36) PATH '$[2]' ERROR ON ERROR,
        fence bigint PATH '$[3]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL AND j.PublishedAt IS NULL;

-- name: read_ended
-- parameters: namespace text(100), batch_size int
-- returns: Id id, JobName text(200), RunId id, ClaimId id, Fence bigint, Kind text, ScheduledFor instant, Attempt int,
--   State text, ClaimedAt instant, PublishedAt instant, LockedAt instant, Started int, Republishes int,
--   LeaseSeconds seconds, Failures int, LostLeases int, Exclusive flag, TaskName text, Args text, Kwargs text,
--   Options text, CodeKey text, CodeOwner text, Now instant, Policies text
-- Zero rows: no lease has ended. A row that somebody keeps locked cannot be released now, and takes no place in the batch.
SET @now = utc_timestamp(6);
SELECT
    j.Id, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    j.ClaimedAt, j.PublishedAt, j.LockedAt,
    CASE WHEN j.StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    j.Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    j.TaskName, j.Args, j.Kwargs, j.Options, j.CodeKey, j.CodeOwner, CAST(@now AS datetime(6)) AS Now, j.Policies
FROM Jobs AS j FORCE INDEX (Jobs_Leased)
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = j.RunId
WHERE
    j.Namespace = %(namespace)s AND j.LockedBy IS NOT NULL AND j.Leased = 1
    AND j.LeaseEndsAt <= CAST(@now AS datetime(6))
LIMIT %(batch_size)s
FOR UPDATE SKIP LOCKED;

-- name: read_ended_held
-- parameters: namespace text(100), batch_size int
-- returns: JobId id, JobName text(200), RunId id, ClaimId id, Fence bigint, Kind text, ScheduledFor instant,
--   Attempt int, State text, ClaimedAt instant, PublishedAt instant, LockedAt instant, Started int,
--   Republishes int, LeaseSeconds seconds, Failures int, LostLeases int, Exclusive flag, TaskName text,
--   Args text, Kwargs text, Options text, CodeKey text, CodeOwner text, Now instant, Policies text
-- Zero rows: no overlapping run has lost its worker.
SET @now = utc_timestamp(6);
SELECT
    r.JobId, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    r.ClaimedAt, r.PublishedAt, r.ClaimedAt AS LockedAt,
    1 AS Started, 0 AS Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    NULL AS TaskName, NULL AS Args, NULL AS Kwargs, NULL AS Options, NULL AS CodeKey, NULL AS CodeOwner, CAST(@now AS datetime(6)) AS Now,
    NULL AS Policies
FROM JobRuns AS r FORCE INDEX (JobRuns_Held)
WHERE
    r.Namespace = %(namespace)s AND r.HeldBy IS NOT NULL
    AND r.LeaseEndsAt <= CAST(@now AS datetime(6))
LIMIT %(batch_size)s
FOR UPDATE SKIP LOCKED;

-- name: postpone_start_deadline
-- parameters: beat text(200)
-- rows: job_id id, run_id id, claim_id id, fence bigint, republishes int, queued_seconds seconds
-- returns: RunId id
-- A missing row: a worker started it, another beat took it over or extended it first, or somebody keeps it locked.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(json_array(j.Id, j.RunId, p.queued_seconds))
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        run_id char(36) PATH '$[1]' ERROR ON ERROR,
        claim_id char(36) PATH '$[2]' ERROR ON ERROR,
        fence bigint PATH '$[3]' ERROR ON ERROR,
        republishes integer PATH '$[4]' ERROR ON ERROR,
        queued_seconds double PATH '$[5]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL AND j.Republishes = p.republishes
    AND j.LeaseEndsAt <= CAST(@now AS datetime(6))
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', QueuedSeconds double PATH '$[2]')) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET
    j.LockedBy = %(beat)s,
    j.LockedAt = CAST(@now AS datetime(6)),
    j.Republishes = j.Republishes + 1,
    j.LeaseEndsAt = CAST(@now AS datetime(6)) + INTERVAL w.QueuedSeconds SECOND;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[1]')) AS w;

-- name: read_replaceable
-- parameters: namespace text(100), code_owner text(200), batch_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, RunId id, ClaimId id,
--   Fence bigint, ReplaceAt instant, Started int, Now instant
-- Zero rows: no run is to make room for the next slot of its job. Locked rows as in read_ended.
SET @now = utc_timestamp(6);
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    CodeKey, RunId, ClaimId, Fence, ReplaceAt, CASE WHEN StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    CAST(@now AS datetime(6)) AS Now
FROM Jobs FORCE INDEX (Jobs_Leased)
WHERE
    Namespace = %(namespace)s AND LockedBy IS NOT NULL AND Leased = 1 AND RunId IS NOT NULL
    AND Enabled = 1 AND Quarantine IS NULL AND ReplaceAt <= CAST(@now AS datetime(6))
    AND (CodeOwner IS NULL OR %(code_owner)s IN ('', CodeOwner))
LIMIT %(batch_size)s
FOR UPDATE SKIP LOCKED;

-- name: postpone_replacing
-- rows: job_id id, run_id id, claim_id id, fence bigint, replace_at instant
-- returns: Id id
-- A missing row: the run has ended, the job is in other hands, or another beat has postponed it.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(json_array(j.Id, p.replace_at))
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        run_id char(36) PATH '$[1]' ERROR ON ERROR,
        claim_id char(36) PATH '$[2]' ERROR ON ERROR,
        fence bigint PATH '$[3]' ERROR ON ERROR,
        replace_at datetime(6) PATH '$[4]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.ReplaceAt <= CAST(@now AS datetime(6))
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', ReplaceAt datetime(6) PATH '$[1]')) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET j.ReplaceAt = w.ReplaceAt;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: release_orphan_locks
-- parameters: namespace text(100), lock_seconds seconds
-- returns: Id id, JobName text(200), LockedBy text
-- Locks that stand for no run: written by hand, or their history is gone. One without an instant gets one first.
-- A row that somebody keeps locked is left for the next look.
SET @now = utc_timestamp(6);
SELECT json_arrayagg(j.Id)
INTO @won
FROM Jobs AS j FORCE INDEX (Jobs_Leased)
WHERE
    j.Namespace = %(namespace)s AND j.LockedBy IS NOT NULL AND j.Leased = 1
    AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = j.RunId)
    AND (
        (j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL)
        OR coalesce(
            j.LeaseEndsAt,
            j.LockedAt + INTERVAL coalesce(60.0 * j.LockTimeoutMinutes, %(lock_seconds)s) SECOND
        ) <= CAST(@now AS datetime(6))
    )
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$')) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET
    j.LockedBy = CASE WHEN j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL THEN j.LockedBy END,
    j.LockedAt = CASE WHEN j.LockedAt IS NULL AND j.LeaseEndsAt IS NULL THEN CAST(@now AS datetime(6)) END,
    j.LeaseEndsAt = NULL,
    j.RunId = NULL,
    j.ClaimId = NULL,
    j.StartedRetry = NULL,
    j.Fence = j.Fence + 1;

SELECT j.Id, j.JobName, j.LockedBy
FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$')) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id;

-- name: read_next
-- parameters: namespace text(100), code_keys list, code_owner text(200), other_entries list
-- returns: Now instant, DueAt instant, EndsAt instant, PlannedAt instant, HeldEndsAt instant, OutboxAt instant,
--   Changes bigint, ReplaceAt instant, Locked bigint
-- Always one row: the earliest instants of each kind at which some beat has something to do, and the change counter.
SET @now = utc_timestamp(6);
SELECT
    CAST(@now AS datetime(6)) AS Now,
    (
        SELECT ClaimableAt
        FROM Jobs FORCE INDEX (Jobs_Due)
        WHERE
            Namespace = %(namespace)s AND ClaimableAt IS NOT NULL
            AND (CodeKey IS NULL OR CodeKey IN (%(code_keys)s))
            AND (
                CodeOwner IS NULL
                OR (%(code_owner)s IN ('', CodeOwner) AND JobName NOT IN (%(other_entries)s))
            )
        ORDER BY ClaimableAt
        LIMIT 1
    ) AS DueAt,
    leased.EndsAt,
    leased.PlannedAt,
    (
        SELECT min(r.LeaseEndsAt) FROM JobRuns AS r
        WHERE r.Namespace = %(namespace)s AND r.HeldBy IS NOT NULL
    ) AS HeldEndsAt,
    (
        SELECT r.DueAt
        FROM JobRuns AS r FORCE INDEX (JobRuns_Outbox)
        STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = r.JobId
        WHERE
            r.Namespace = %(namespace)s AND r.DueAt IS NOT NULL
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR j.CodeKey IN (%(code_keys)s))
            AND (
                j.CodeOwner IS NULL
                OR (%(code_owner)s IN ('', j.CodeOwner) AND j.JobName NOT IN (%(other_entries)s))
            )
        ORDER BY r.DueAt
        LIMIT 1
    ) AS OutboxAt,
    coalesce((SELECT Counter FROM Changes WHERE Namespace = %(namespace)s), 0) AS Changes,
    leased.ReplaceAt,
    leased.Locked
FROM (
    SELECT
        count(*) AS Locked,
        min(LeaseEndsAt) AS EndsAt,
        min(CASE WHEN PlannedAt > CAST(@now AS datetime(6)) THEN PlannedAt END) AS PlannedAt,
        min(
            CASE
                WHEN
                    Enabled = 1 AND Quarantine IS NULL
                    AND (CodeOwner IS NULL OR %(code_owner)s IN ('', CodeOwner))
                    THEN ReplaceAt
            END
        ) AS ReplaceAt
    FROM Jobs FORCE INDEX (Jobs_Leased)
    WHERE Namespace = %(namespace)s AND LockedBy IS NOT NULL AND Leased = 1
) AS leased;

-- name: read_later
-- parameters: namespace text(100), after instant, code_keys list, code_owner text(200), other_entries list
-- returns: Now instant, DueAt instant, OutboxAt instant
-- Always one row: the earliest instants later than this one at which there is something to claim.
SET @now = utc_timestamp(6);
SELECT
    CAST(@now AS datetime(6)) AS Now,
    (
        SELECT ClaimableAt
        FROM Jobs FORCE INDEX (Jobs_Due)
        WHERE
            Namespace = %(namespace)s AND ClaimableAt > %(after)s
            AND (CodeKey IS NULL OR CodeKey IN (%(code_keys)s))
            AND (
                CodeOwner IS NULL
                OR (%(code_owner)s IN ('', CodeOwner) AND JobName NOT IN (%(other_entries)s))
            )
        ORDER BY ClaimableAt
        LIMIT 1
    ) AS DueAt,
    (
        SELECT r.DueAt
        FROM JobRuns AS r FORCE INDEX (JobRuns_Outbox)
        STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = r.JobId
        WHERE
            r.Namespace = %(namespace)s AND r.DueAt > %(after)s
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR j.CodeKey IN (%(code_keys)s))
            AND (
                j.CodeOwner IS NULL
                OR (%(code_owner)s IN ('', j.CodeOwner) AND j.JobName NOT IN (%(other_entries)s))
            )
        ORDER BY r.DueAt
        LIMIT 1
    ) AS OutboxAt;

-- name: read_rows_needing_repair
-- parameters: namespace text(100), after_id word(36), code_owner text(200), page_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- Zero rows: every row is in order.
SET @now = utc_timestamp(6);
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence,
    RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, CAST(@now AS datetime(6)) AS Now
FROM Jobs FORCE INDEX (Jobs_Attention)
WHERE
    Namespace = %(namespace)s AND NeedsAttention = 1 AND LockedBy IS NULL AND Id > %(after_id)s
    AND (CodeOwner IS NULL OR DeleteRequested = 1 OR %(code_owner)s IN ('', CodeOwner))
ORDER BY Id
LIMIT %(page_size)s;

-- name: repair_rows
-- rows: job_id id, fence bigint, version bigint, next_run_time instant, retry_at instant
-- returns: Id id
-- Fills in the instants of rows that read_rows_needing_repair found, and ends their quarantine. Passes locked rows by.
SET @rows = %(rows)s;
SELECT json_arrayagg(json_array(j.Id, p.next_run_time, p.retry_at))
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        fence bigint PATH '$[1]' ERROR ON ERROR,
        version bigint PATH '$[2]' ERROR ON ERROR,
        next_run_time datetime(6) PATH '$[3]' ERROR ON ERROR,
        retry_at datetime(6) PATH '$[4]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE j.Fence = p.fence AND j.Version = p.version AND j.LockedBy IS NULL
FOR UPDATE SKIP LOCKED;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            Id char(36) PATH '$[0]', NextRunTime datetime(6) PATH '$[1]', RetryAt datetime(6) PATH '$[2]'
        )
    ) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET j.NextRunTime = w.NextRunTime, j.RetryAt = w.RetryAt, j.Quarantine = NULL;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: delete_requested
-- rows: job_id id
-- returns: Id id, RunId id, RetryRunId id
-- A missing row: a run holds the job or, overlapping others, goes on by itself; or its deletion was not asked for; or
-- somebody keeps its row locked.
SET @rows = %(rows)s;
SELECT json_arrayagg(json_array(j.Id, j.RunId, j.RetryRunId))
INTO @won
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (job_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
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
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id;

SELECT w.Id, w.RunId, w.RetryRunId
FROM JSON_TABLE(
    @won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', RunId char(36) PATH '$[1]', RetryRunId char(36) PATH '$[2]')
) AS w;
