-- What a beat reads and writes. The files of beat.sql in the folders of the databases say how batches travel, what is
-- locked, and what the clock is.

-- part: open_runs
(
    SELECT count(*) FROM JobRuns AS o
    WHERE
        o.JobId = j.Id AND o.MaxParallel IS NOT NULL
        AND (
            o.State IN ('claimed', 'running')
            OR (
                o.State = 'dispatched' AND o.StartedAt IS NULL AND o.Reason IS NULL
                AND o.PublishedAt > before(:now, :queued_seconds)
            )
        )
) AS OpenRuns

-- part: as_read
Jobs.Id = p.job_id AND Jobs.Fence = p.fence AND same(Jobs.Version, p.version)
AND Jobs.LockedBy IS NULL AND Jobs.Quarantine IS NULL
AND (Jobs.Enabled = 1 OR Jobs.DisabledReason = 'finished')
AND (same(Jobs.NextRunTime, p.next_run_time) OR same(after(Jobs.NextRunTime, 0.0), p.next_run_time))
AND (same(Jobs.RetryAt, p.retry_at) OR same(after(Jobs.RetryAt, 0.0), p.retry_at))
AND (
    p.waiting_id IS NULL
    OR EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = p.waiting_id AND r.State = p.waiting_state)
)
AND (
    p.left_id IS NULL
    OR EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = p.left_id AND r.State = p.left_state)
)

-- name: read_due
-- returns: Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies,
--   LockTimeoutMinutes, CodeKey, NextRunTime, LastRunTime, RetryAt, Fence, LeftRunId, WaitingRunId, PlannedAt,
--   RanUntil, Extra, Now, CodeOwner, Version, OpenRuns
-- Zero rows: nothing is due, or it is held by others. Nothing is locked: the claim compares what was read.
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, j.RetryRunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    0 AS Extra, :now AS Now, j.CodeOwner, j.Version,
    -- include: open_runs
FROM Jobs AS j
WHERE
    j.Namespace = :namespace AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND coalesce(j.RetryAt, j.NextRunTime) <= :now
    AND (j.CodeKey IS NULL OR one_of(j.CodeKey, :code_keys))
    AND (
        j.CodeOwner IS NULL
        OR (:code_owner IN ('', j.CodeOwner) AND none_of(j.JobName, :other_entries))
    )
    AND (:share = '0123456789abcdef' OR instr(:share, lower(substr(j.Id, -1))) > 0)
    AND none_of(j.Id, :besides)
ORDER BY coalesce(j.RetryAt, j.NextRunTime)
LIMIT :batch_size;

-- name: read_outbox
-- returns: Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies,
--   LockTimeoutMinutes, CodeKey, NextRunTime, LastRunTime, RetryAt, Fence, LeftRunId, WaitingRunId, PlannedAt,
--   RanUntil, Extra, Now, CodeOwner, Version, OpenRuns
-- Zero rows: no attempt in the outbox is due whose job is free. A job whose schedule has ended still runs what was added.
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, r.RunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    1 AS Extra, :now AS Now, j.CodeOwner, j.Version,
    -- include: open_runs
FROM JobRuns AS r
LOOP JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.Namespace = :namespace AND r.DueAt <= :now
    AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.CodeKey IS NULL OR one_of(j.CodeKey, :code_keys))
    AND (
        j.CodeOwner IS NULL
        OR (:code_owner IN ('', j.CodeOwner) AND none_of(j.JobName, :other_entries))
    )
    AND (:share = '0123456789abcdef' OR instr(:share, lower(substr(j.Id, -1))) > 0)
    AND none_of(j.Id, :besides)
ORDER BY r.DueAt
LIMIT :batch_size;

-- name: read_attempts
-- rows: run_id
-- returns: RunId, JobId, Kind, ScheduledFor, Attempt, State, Failures, LostLeases, Advances, Reason, CreatedAt,
--   SeenNextRunTime
-- A missing row: its history was deleted, so the slot starts anew.
WITH p AS (:rows)

SELECT
    r.RunId, r.JobId, r.Kind, r.ScheduledFor, r.Attempt, r.State, r.Failures, r.LostLeases, r.Advances, r.Reason,
    r.CreatedAt, r.SeenNextRunTime
FROM p
LOOP JOIN JobRuns AS r ON r.RunId = key(p.run_id);

-- name: read_attempt_numbers
-- rows: job_id, scheduled_for, kind
-- returns: JobId, ScheduledFor, Kind, LastAttempt
-- A missing row: the slot has no attempt yet.
WITH p AS (:rows)

SELECT r.JobId, r.ScheduledFor, r.Kind, max(r.Attempt) AS LastAttempt
FROM p
LOOP JOIN JobRuns AS r ON r.JobId = p.job_id AND r.ScheduledFor = key(p.scheduled_for) AND r.Kind = p.kind
GROUP BY r.JobId, r.ScheduledFor, r.Kind;

-- name: claim_jobs
-- rows: job_id, fence, version, next_run_time, retry_at, waiting_id, waiting_state, left_id, left_state,
--   run_id, claim_id, planned_at, replace_at, claimed_at
-- returns: Id
-- A missing row: the job, or an attempt that the next one continues, is not as it was read. An instant that was written
-- by hand is compared as it was understood. ClaimedAt is when the job was read: its next slot may count from there.
WITH p AS (:rows)

UPDATE Jobs SET
    LockedBy = :beat,
    LockedAt = :now,
    ClaimedAt = p.claimed_at,
    LeaseEndsAt = after(:now, :dispatch_seconds),
    PublishedAt = NULL,
    PlannedAt = p.planned_at,
    ReplaceAt = p.replace_at,
    StartedRetry = NULL,
    Republishes = 0,
    Fence = Jobs.Fence + 1,
    RunId = p.run_id,
    ClaimId = p.claim_id
FROM p
WHERE
    -- include: as_read
RETURNING Jobs.Id;

-- name: insert_runs
-- rows: run_id, job_id, claim_id, kind, scheduled_for, attempt, delay_seconds, lease_seconds, max_retries, failures,
--   lost_leases, exclusive, advances, continues, max_runtime, max_parallel
-- Records the slots of the claim in its own transaction. Only jobs that this claim holds are joined.
WITH p AS (:rows)

INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, ClaimId,
    ClaimedBy, ClaimedAt, PlannedAt, DelaySeconds, SeenNextRunTime, LeaseSeconds, MaxRetries, Failures, LostLeases,
    Exclusive, Advances, CreatedAt, MaxRuntimeSeconds, MaxParallel
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, p.kind, p.scheduled_for, p.attempt, 'claimed', 'scheduled', j.Fence,
    p.claim_id, :beat, j.ClaimedAt, j.PlannedAt, p.delay_seconds,
    CASE WHEN b.RunId IS NULL THEN j.NextRunTime ELSE b.SeenNextRunTime END,
    p.lease_seconds, p.max_retries, p.failures, p.lost_leases, p.exclusive, p.advances, :now, p.max_runtime, p.max_parallel
FROM p
LOOP JOIN Jobs AS j ON j.Id = key(p.job_id) AND j.RunId = p.run_id AND j.ClaimId = p.claim_id
LEFT JOIN JobRuns AS b ON b.RunId = key(p.continues);

-- name: reopen_runs
-- rows: run_id, claim_id, delay_seconds, lease_seconds, max_retries, exclusive, max_runtime, max_parallel, attempt,
--   failures, lost_leases
-- Takes up attempts that were given back or not begun, and one-offs that are tried again: the run id stays, the claim and
-- the fence are new. The results of earlier attempts need no end where they have the same id.
WITH p AS (:rows)

UPDATE JobRuns SET
    State = 'claimed',
    PriorState = 'scheduled',
    Reason = NULL,
    Fence = j.Fence,
    ClaimId = p.claim_id,
    ClaimedBy = :beat,
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
    ResultsEndedAt = CASE WHEN JobRuns.Kind = 'one_off' THEN :now ELSE JobRuns.ResultsEndedAt END,
    Error = NULL,
    Traceback = NULL,
    DueAt = NULL
FROM p, Jobs AS j
WHERE JobRuns.RunId = key(p.run_id) AND j.Id = key(JobRuns.JobId) AND j.RunId = p.run_id AND j.ClaimId = p.claim_id;

-- name: note_check_ins
-- rows: run_id, claim_id, check_in
-- returns: RunId
-- A missing row: the claim was taken by another beat.
WITH p AS (:rows)

UPDATE JobRuns SET CheckIn = p.check_in
FROM p
WHERE JobRuns.RunId = key(p.run_id) AND JobRuns.ClaimId = p.claim_id
RETURNING JobRuns.RunId;

-- name: leave_attempts
-- rows: run_id, again
-- Attempts that another one follows; `again` = 1 sends an extra slot back to the outbox, 2 ends a slot whose retry makes
-- room for the next one. Their holders have lost them.
WITH p AS (:rows)

UPDATE JobRuns SET
    DueAt = CASE WHEN p.again = 1 THEN :now END,
    State = CASE WHEN p.again = 2 THEN 'cancelled' WHEN JobRuns.State = 'claimed' THEN 'scheduled' ELSE 'retry' END,
    PriorState = CASE WHEN p.again <> 2 AND JobRuns.State = 'retry' THEN JobRuns.PriorState ELSE JobRuns.State END,
    Reason = CASE
        WHEN p.again = 2 THEN 'replaced'
        WHEN JobRuns.State = 'retry' THEN JobRuns.Reason
        ELSE 'unlocked by hand'
    END,
    FinishedAt = CASE WHEN JobRuns.State <> 'claimed' THEN coalesce(JobRuns.FinishedAt, :now) END,
    HeldBy = NULL,
    LeaseEndsAt = NULL
FROM p
WHERE JobRuns.RunId = key(p.run_id) AND JobRuns.State IN ('retry', 'running', 'claimed');

-- name: insert_gaps
-- rows: run_id, job_id, first, last, count, reason, attempt
WITH p AS (:rows)

INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason,
    Fence, FinishedAt, CreatedAt
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, 'schedule', p.first, p.last, p.count, p.attempt, 'skipped', 'scheduled',
    p.reason, j.Fence, :now, :now
FROM p
LOOP JOIN Jobs AS j ON j.Id = key(p.job_id);

-- name: advance_jobs
-- rows: job_id, fence, version, next_run_time, retry_at, waiting_id, waiting_state, left_id, left_state,
--   next_slot
-- returns: Id
-- Jobs that skip what was due. No next slot: the schedule has ended. A missing row: as in claim_jobs.
WITH p AS (:rows)

UPDATE Jobs SET
    NextRunTime = p.next_slot,
    Enabled = CASE WHEN p.next_slot IS NULL THEN 0 ELSE Jobs.Enabled END,
    DisabledReason = CASE WHEN p.next_slot IS NULL THEN 'finished' ELSE Jobs.DisabledReason END
FROM p
WHERE
    -- include: as_read
RETURNING Jobs.Id;

-- name: quarantine_jobs
-- rows: job_id, fence, version, reason text(1000)
-- returns: Id
-- A missing row: the job was claimed or changed meanwhile.
WITH p AS (:rows)

UPDATE Jobs SET Quarantine = p.reason
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.Fence = p.fence AND same(Jobs.Version, p.version)
    AND Jobs.LockedBy IS NULL
RETURNING Id;

-- name: read_claims
-- rows: run_id, claim_id
-- returns: run_id
-- After a commit without an answer: a row means that it did commit.
WITH p AS (:rows)

SELECT p.run_id
FROM p
LOOP JOIN JobRuns AS r ON r.RunId = key(p.run_id) AND r.ClaimId = p.claim_id;

-- name: mark_published
-- rows: job_id, run_id, claim_id, fence, queued_seconds
-- returns: RunId
-- A missing row: a worker has started it, or the claim was lost. Neither is moved backwards.
WITH p AS (:rows)

UPDATE Jobs SET
    PublishedAt = :now,
    LeaseEndsAt = after(:now, p.queued_seconds)
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL
RETURNING RunId;

-- name: read_unmarked
-- rows: job_id, run_id, claim_id, fence
-- returns: run_id
-- Of claims that a mark or a release missed. A row: it is still the beat's to record, and somebody kept it locked.
-- A missing row: a worker has started it, the claim was lost, or it is recorded.
WITH p AS (:rows)

SELECT p.run_id
FROM p
LOOP JOIN Jobs AS j ON j.Id = key(p.job_id)
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL AND j.PublishedAt IS NULL;

-- name: read_ended
-- returns: Id, JobName, RunId, ClaimId, Fence, Kind, ScheduledFor, Attempt, State, ClaimedAt, PublishedAt, LockedAt,
--   Started, Republishes, LeaseSeconds, Failures, LostLeases, Exclusive, TaskName, Args, Kwargs, Options, CodeKey,
--   CodeOwner, Now, Policies
-- Zero rows: no lease has ended.
SELECT
    j.Id, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    j.ClaimedAt, j.PublishedAt, j.LockedAt,
    CASE WHEN j.StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    j.Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    j.TaskName, j.Args, j.Kwargs, j.Options, j.CodeKey, j.CodeOwner, :now AS Now, j.Policies
FROM Jobs AS j INDEXED BY Jobs_Leased
LOOP JOIN JobRuns AS r ON r.RunId = j.RunId
WHERE
    j.Namespace = :namespace AND j.LockedBy IS NOT NULL
    AND j.LeaseEndsAt <= :now
LIMIT :batch_size;

-- name: read_ended_held
-- returns: JobId, JobName, RunId, ClaimId, Fence, Kind, ScheduledFor, Attempt, State, ClaimedAt, PublishedAt, LockedAt,
--   Started, Republishes, LeaseSeconds, Failures, LostLeases, Exclusive, TaskName, Args, Kwargs, Options, CodeKey,
--   CodeOwner, Now, Policies
-- Zero rows: no overlapping run has lost its worker.
SELECT
    r.JobId, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    r.ClaimedAt, r.PublishedAt, r.ClaimedAt AS LockedAt,
    1 AS Started, 0 AS Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    NULL AS TaskName, NULL AS Args, NULL AS Kwargs, NULL AS Options, NULL AS CodeKey, NULL AS CodeOwner, :now AS Now,
    NULL AS Policies
FROM JobRuns AS r INDEXED BY JobRuns_Held
WHERE
    r.Namespace = :namespace AND r.HeldBy IS NOT NULL
    AND r.LeaseEndsAt <= :now
LIMIT :batch_size
FOR NO KEY UPDATE SKIP LOCKED;

-- name: postpone_start_deadline
-- rows: job_id, run_id, claim_id, fence, republishes, queued_seconds
-- returns: RunId
-- A missing row: a worker started it, or another beat took it over or extended it first.
WITH p AS (:rows)

UPDATE Jobs SET
    LockedBy = :beat,
    LockedAt = :now,
    Republishes = Jobs.Republishes + 1,
    LeaseEndsAt = after(:now, p.queued_seconds)
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL AND Jobs.Republishes = p.republishes
    AND Jobs.LeaseEndsAt <= :now
RETURNING RunId;

-- name: read_replaceable
-- returns: Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies,
--   LockTimeoutMinutes, CodeKey, RunId, ClaimId, Fence, ReplaceAt, Started, Now
-- Zero rows: no run is to make room for the next slot of its job.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    CodeKey, RunId, ClaimId, Fence, ReplaceAt, CASE WHEN StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    :now AS Now
FROM Jobs
WHERE
    Namespace = :namespace AND LockedBy IS NOT NULL AND RunId IS NOT NULL
    AND Enabled = 1 AND Quarantine IS NULL AND ReplaceAt <= :now
    AND (CodeOwner IS NULL OR :code_owner IN ('', CodeOwner))
LIMIT :batch_size;

-- name: postpone_replacing
-- rows: job_id, run_id, claim_id, fence, replace_at
-- returns: Id
-- A missing row: the run has ended, the job is in other hands, or another beat has postponed it.
WITH p AS (:rows)

UPDATE Jobs SET ReplaceAt = p.replace_at
FROM p
WHERE
    Jobs.Id = key(p.job_id) AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL AND Jobs.ReplaceAt <= :now
RETURNING Jobs.Id;

-- name: release_orphan_locks
-- returns: Id, JobName, LockedBy
-- Locks that stand for no run: written by hand, or their history is gone. One without an instant
-- that can be read gets one first; after() of any other is NULL.
UPDATE Jobs SET
    LockedBy = CASE WHEN after(LockedAt, 0.0) IS NULL AND LeaseEndsAt IS NULL THEN LockedBy END,
    LockedAt = CASE WHEN after(LockedAt, 0.0) IS NULL AND LeaseEndsAt IS NULL THEN :now END,
    LeaseEndsAt = NULL,
    RunId = NULL,
    ClaimId = NULL,
    StartedRetry = NULL,
    Fence = Fence + 1
WHERE
    Namespace = :namespace AND LockedBy IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = Jobs.RunId)
    AND (
        (after(LockedAt, 0.0) IS NULL AND LeaseEndsAt IS NULL)
        OR coalesce(LeaseEndsAt, after(LockedAt, coalesce(60.0 * LockTimeoutMinutes, :lock_seconds))) <= :now
    )
RETURNING Id, JobName, LockedBy;

-- name: read_next
-- returns: Now, DueAt, EndsAt, PlannedAt, HeldEndsAt, OutboxAt, Changes, ReplaceAt, Locked
-- Always one row: the earliest instants of each kind at which some beat has something to do, and the change counter.
SELECT
    :now AS Now,
    (
        SELECT min(coalesce(RetryAt, NextRunTime))
        FROM Jobs
        WHERE
            Namespace = :namespace AND Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL
            AND (CodeKey IS NULL OR one_of(CodeKey, :code_keys))
            AND (
                CodeOwner IS NULL
                OR (
                    :code_owner IN ('', CodeOwner)
                    AND none_of(JobName, :other_entries)
                )
            )
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
        LOOP JOIN Jobs AS j ON j.Id = r.JobId
        WHERE
            r.Namespace = :namespace AND r.DueAt IS NOT NULL
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR one_of(j.CodeKey, :code_keys))
            AND (
                j.CodeOwner IS NULL
                OR (
                    :code_owner IN ('', j.CodeOwner)
                    AND none_of(j.JobName, :other_entries)
                )
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
                    Enabled = 1 AND Quarantine IS NULL AND (CodeOwner IS NULL OR :code_owner IN ('', CodeOwner))
                    THEN ReplaceAt
            END
        ) AS ReplaceAt
    FROM Jobs
    WHERE Namespace = :namespace AND LockedBy IS NOT NULL
) AS leased;

-- name: read_later
-- returns: Now, DueAt, OutboxAt
-- Always one row: the earliest instants later than this one at which there is something to claim.
SELECT
    :now AS Now,
    (
        SELECT min(coalesce(RetryAt, NextRunTime))
        FROM Jobs
        WHERE
            Namespace = :namespace AND Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL
            AND coalesce(RetryAt, NextRunTime) > :after
            AND (CodeKey IS NULL OR one_of(CodeKey, :code_keys))
            AND (
                CodeOwner IS NULL
                OR (
                    :code_owner IN ('', CodeOwner)
                    AND none_of(JobName, :other_entries)
                )
            )
    ) AS DueAt,
    (
        SELECT r.DueAt
        FROM JobRuns AS r
        LOOP JOIN Jobs AS j ON j.Id = r.JobId
        WHERE
            r.Namespace = :namespace AND r.DueAt > :after
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR one_of(j.CodeKey, :code_keys))
            AND (
                j.CodeOwner IS NULL
                OR (
                    :code_owner IN ('', j.CodeOwner)
                    AND none_of(j.JobName, :other_entries)
                )
            )
        ORDER BY r.DueAt
        LIMIT 1
    ) AS OutboxAt;

-- name: read_rows_needing_repair
-- returns: Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies,
--   LockTimeoutMinutes, Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt,
--   LeaseEndsAt, Fence, RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt,
--   StartedRetry, Republishes, Now
-- Zero rows: every row is in order. A month from 13 to 19 has the form of an instant, which is all that the index of
-- these rows knows: it is found by its place among what is due, beyond all instants of its year.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence,
    RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, :now AS Now
FROM Jobs
WHERE
    Id > :after_id AND (CodeOwner IS NULL OR DeleteRequested = 1 OR :code_owner IN ('', CodeOwner))
    AND Id IN (
        SELECT a.Id
        FROM Jobs AS a
        WHERE
            a.Namespace = :namespace AND a.LockedBy IS NULL
            AND (
                a.Quarantine IS NOT NULL
                OR a.DeleteRequested = 1
                OR (a.Enabled = 1 AND a.NextRunTime IS NULL AND a.RetryAt IS NULL)
                OR a.NextRunTime NOT GLOB
                '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9][0-9][0-9][0-9]'
                OR a.RetryAt NOT GLOB
                '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9][0-9][0-9][0-9]'
            )
        UNION
        SELECT d.Id
        FROM json_each('[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]')
        LOOP JOIN Jobs AS d
        WHERE
            d.Namespace = :namespace AND d.LockedBy IS NULL AND d.Enabled = 1 AND d.Quarantine IS NULL
            AND coalesce(d.RetryAt, d.NextRunTime) >= (substr(:now, 1, 4) + value) || '-13'
            AND coalesce(d.RetryAt, d.NextRunTime) < (substr(:now, 1, 4) + value) || '-2'
    )
ORDER BY Id
LIMIT :page_size;

-- name: repair_rows
-- rows: job_id, fence, version, next_run_time, retry_at
-- returns: Id
-- Fills in or normalises the instants of rows that read_rows_needing_repair found, and ends their quarantine.
WITH p AS (:rows)

UPDATE Jobs SET
    NextRunTime = p.next_run_time,
    RetryAt = p.retry_at,
    Quarantine = NULL
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.Fence = p.fence AND same(Jobs.Version, p.version)
    AND Jobs.LockedBy IS NULL
RETURNING Id;

-- name: delete_requested
-- rows: job_id
-- returns: Id, RunId, RetryRunId
-- A missing row: a run holds the job or, overlapping others, goes on by itself; or its deletion was not asked for.
WITH p AS (:rows)

DELETE FROM Jobs
WHERE
    Id IN (SELECT p.job_id FROM p) AND DeleteRequested = 1 AND LockedBy IS NULL
    AND NOT EXISTS (
        SELECT 1
        FROM JobRuns AS r
        WHERE r.Namespace = Jobs.Namespace AND r.HeldBy IS NOT NULL AND r.JobId = Jobs.Id
    )
RETURNING Id, RunId, RetryRunId;
