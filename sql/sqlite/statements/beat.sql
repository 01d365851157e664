-- Written by `make sql` from sql/source: change it there.
-- What a beat reads and writes. The store puts a list of values in the place of `:rows`, and numbers it on from the
-- parameters. `now` is the instant at which the transaction got its lock: who writes has locked everything.
-- CROSS JOIN keeps the order in which it is written: row after row of a batch, and its partner by key.

-- name: read_due
-- parameters: ?1 now instant, ?2 queued_seconds seconds, ?3 namespace text(100), ?4 code_keys list,
--   ?5 code_owner text(200), ?6 other_entries list, ?7 share word(16), ?8 besides list, ?9 batch_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, NextRunTime instant,
--   LastRunTime instant, RetryAt instant, Fence bigint, LeftRunId id, WaitingRunId id, PlannedAt instant,
--   RanUntil instant, Extra int, Now instant, CodeOwner text, Version bigint, OpenRuns bigint
-- Zero rows: nothing is due, or it is held by others. Nothing is locked: the claim compares what was read.
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, j.RetryRunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    0 AS Extra, ?1 AS Now, j.CodeOwner, j.Version,
    (
        SELECT count(*) FROM JobRuns AS o
        WHERE
            o.JobId = j.Id AND o.MaxParallel IS NOT NULL
            AND (
                o.State IN ('claimed', 'running')
                OR (
                    o.State = 'dispatched' AND o.StartedAt IS NULL AND o.Reason IS NULL
                    AND o.PublishedAt > after(?1, -?2)
                )
            )
    ) AS OpenRuns
FROM Jobs AS j
WHERE
    j.Namespace = ?3 AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND coalesce(j.RetryAt, j.NextRunTime) <= ?1
    AND (j.CodeKey IS NULL OR j.CodeKey IN (SELECT value FROM json_each(?4)))
    AND (
        j.CodeOwner IS NULL
        OR (?5 IN ('', j.CodeOwner) AND j.JobName NOT IN (SELECT value FROM json_each(?6)))
    )
    AND (?7 = '0123456789abcdef' OR instr(?7, lower(substr(j.Id, -1))) > 0)
    AND j.Id NOT IN (SELECT value FROM json_each(?8))
ORDER BY coalesce(j.RetryAt, j.NextRunTime)
LIMIT ?9;

-- name: read_outbox
-- parameters: ?1 now instant, ?2 queued_seconds seconds, ?3 namespace text(100), ?4 code_keys list,
--   ?5 code_owner text(200), ?6 other_entries list, ?7 share word(16), ?8 besides list, ?9 batch_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, NextRunTime instant,
--   LastRunTime instant, RetryAt instant, Fence bigint, LeftRunId id, WaitingRunId id, PlannedAt instant,
--   RanUntil instant, Extra int, Now instant, CodeOwner text, Version bigint, OpenRuns bigint
-- Zero rows: no attempt in the outbox is due whose job is free. A job whose schedule has ended still runs what was added.
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.CodeKey, j.NextRunTime, j.LastRunTime, j.RetryAt, j.Fence,
    j.RunId AS LeftRunId, r.RunId AS WaitingRunId, j.PlannedAt, j.RanUntil,
    1 AS Extra, ?1 AS Now, j.CodeOwner, j.Version,
    (
        SELECT count(*) FROM JobRuns AS o
        WHERE
            o.JobId = j.Id AND o.MaxParallel IS NOT NULL
            AND (
                o.State IN ('claimed', 'running')
                OR (
                    o.State = 'dispatched' AND o.StartedAt IS NULL AND o.Reason IS NULL
                    AND o.PublishedAt > after(?1, -?2)
                )
            )
    ) AS OpenRuns
FROM JobRuns AS r
CROSS JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.Namespace = ?3 AND r.DueAt <= ?1
    AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
    AND (j.CodeKey IS NULL OR j.CodeKey IN (SELECT value FROM json_each(?4)))
    AND (
        j.CodeOwner IS NULL
        OR (?5 IN ('', j.CodeOwner) AND j.JobName NOT IN (SELECT value FROM json_each(?6)))
    )
    AND (?7 = '0123456789abcdef' OR instr(?7, lower(substr(j.Id, -1))) > 0)
    AND j.Id NOT IN (SELECT value FROM json_each(?8))
ORDER BY r.DueAt
LIMIT ?9;

-- name: read_attempts
-- rows: run_id id
-- returns: RunId id, JobId id, Kind text, ScheduledFor instant, Attempt int, State text, Failures int, LostLeases int,
--   Advances flag, Reason text, CreatedAt instant, SeenNextRunTime instant
-- A missing row: its history was deleted, so the slot starts anew.
WITH p (run_id) AS (:rows)

SELECT
    r.RunId, r.JobId, r.Kind, r.ScheduledFor, r.Attempt, r.State, r.Failures, r.LostLeases, r.Advances, r.Reason,
    r.CreatedAt, r.SeenNextRunTime
FROM p
CROSS JOIN JobRuns AS r ON r.RunId = p.run_id;

-- name: read_attempt_numbers
-- rows: job_id id, scheduled_for instant, kind word(20)
-- returns: JobId id, ScheduledFor instant, Kind text, LastAttempt int
-- A missing row: the slot has no attempt yet.
WITH p (job_id, scheduled_for, kind) AS (:rows)

SELECT r.JobId, r.ScheduledFor, r.Kind, max(r.Attempt) AS LastAttempt
FROM p
CROSS JOIN JobRuns AS r ON r.JobId = p.job_id AND r.ScheduledFor = p.scheduled_for AND r.Kind = p.kind
GROUP BY r.JobId, r.ScheduledFor, r.Kind;

-- name: claim_jobs
-- parameters: ?1 beat text(200), ?2 now instant, ?3 dispatch_seconds seconds
-- rows: job_id id, fence bigint, version bigint, next_run_time instant, retry_at instant, waiting_id id,
--   waiting_state word(20), left_id id, left_state word(20), run_id id, claim_id id, planned_at instant,
--   replace_at instant, claimed_at instant
-- returns: Id id
-- A missing row: the job, or an attempt that the next one continues, is not as it was read. An instant that was written
-- by hand is compared as it was understood. ClaimedAt is when the job was read: its next slot may count from there.
WITH p (
    job_id, fence, version, next_run_time, retry_at, waiting_id, waiting_state, left_id, left_state, run_id, claim_id,
    planned_at, replace_at, claimed_at
) AS (:rows)

UPDATE Jobs SET
    LockedBy = ?1,
    LockedAt = ?2,
    ClaimedAt = p.claimed_at,
    LeaseEndsAt = after(?2, ?3),
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
    Jobs.Id = p.job_id AND Jobs.Fence = p.fence AND Jobs.Version IS p.version
    AND Jobs.LockedBy IS NULL AND Jobs.Quarantine IS NULL
    AND (Jobs.Enabled = 1 OR Jobs.DisabledReason = 'finished')
    AND (Jobs.NextRunTime IS p.next_run_time OR after(Jobs.NextRunTime, 0.0) IS p.next_run_time)
    AND (Jobs.RetryAt IS p.retry_at OR after(Jobs.RetryAt, 0.0) IS p.retry_at)
    AND (
        p.waiting_id IS NULL
        OR EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = p.waiting_id AND r.State = p.waiting_state)
    )
    AND (
        p.left_id IS NULL
        OR EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = p.left_id AND r.State = p.left_state)
    )
RETURNING Jobs.Id;

-- name: insert_runs
-- parameters: ?1 beat text(200), ?2 now instant
-- rows: run_id id, job_id id, claim_id id, kind word(20), scheduled_for instant, attempt int, delay_seconds seconds,
--   lease_seconds seconds, max_retries int, failures int, lost_leases int, exclusive flag, advances flag,
--   continues id, max_runtime seconds, max_parallel int
-- Records the slots of the claim in its own transaction. Only jobs that this claim holds are joined.
WITH p (
    run_id, job_id, claim_id, kind, scheduled_for, attempt, delay_seconds, lease_seconds, max_retries, failures,
    lost_leases, exclusive, advances, continues, max_runtime, max_parallel
) AS (:rows)

INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, ClaimId,
    ClaimedBy, ClaimedAt, PlannedAt, DelaySeconds, SeenNextRunTime, LeaseSeconds, MaxRetries, Failures, LostLeases,
    Exclusive, Advances, CreatedAt, MaxRuntimeSeconds, MaxParallel
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, p.kind, p.scheduled_for, p.attempt, 'claimed', 'scheduled', j.Fence,
    p.claim_id, ?1, j.ClaimedAt, j.PlannedAt, p.delay_seconds,
    CASE WHEN b.RunId IS NULL THEN j.NextRunTime ELSE b.SeenNextRunTime END,
    p.lease_seconds, p.max_retries, p.failures, p.lost_leases, p.exclusive, p.advances, ?2, p.max_runtime, p.max_parallel
FROM p
CROSS JOIN Jobs AS j ON j.Id = p.job_id AND j.RunId = p.run_id AND j.ClaimId = p.claim_id
LEFT JOIN JobRuns AS b ON b.RunId = p.continues;

-- name: reopen_runs
-- parameters: ?1 beat text(200), ?2 now instant
-- rows: run_id id, claim_id id, delay_seconds seconds, lease_seconds seconds, max_retries int, exclusive flag,
--   max_runtime seconds, max_parallel int, attempt int, failures int, lost_leases int
-- Takes up attempts that were given back or not begun, and one-offs that are tried again: the run id stays, the claim and
-- the fence are new. The results of earlier attempts need no end where they have the same id.
WITH p (
    run_id, claim_id, delay_seconds, lease_seconds, max_retries, exclusive, max_runtime, max_parallel, attempt,
    failures, lost_leases
) AS (:rows)

UPDATE JobRuns SET
    State = 'claimed',
    PriorState = 'scheduled',
    Reason = NULL,
    Fence = j.Fence,
    ClaimId = p.claim_id,
    ClaimedBy = ?1,
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
    ResultsEndedAt = CASE WHEN JobRuns.Kind = 'one_off' THEN ?2 ELSE JobRuns.ResultsEndedAt END,
    Error = NULL,
    Traceback = NULL,
    DueAt = NULL
FROM p, Jobs AS j
WHERE JobRuns.RunId = p.run_id AND j.Id = JobRuns.JobId AND j.RunId = p.run_id AND j.ClaimId = p.claim_id;

-- name: note_check_ins
-- rows: run_id id, claim_id id, check_in text
-- returns: RunId id
-- A missing row: the claim was taken by another beat.
WITH p (run_id, claim_id, check_in) AS (:rows)

UPDATE JobRuns SET CheckIn = p.check_in
FROM p
WHERE JobRuns.RunId = p.run_id AND JobRuns.ClaimId = p.claim_id
RETURNING JobRuns.RunId;

-- name: leave_attempts
-- parameters: ?1 now instant
-- rows: run_id id, again int
-- Attempts that another one follows; `again` = 1 sends an extra slot back to the outbox, 2 ends a slot whose retry makes
-- room for the next one. Their holders have lost them.
WITH p (run_id, again) AS (:rows)

UPDATE JobRuns SET
    DueAt = CASE WHEN p.again = 1 THEN ?1 END,
    State = CASE WHEN p.again = 2 THEN 'cancelled' WHEN JobRuns.State = 'claimed' THEN 'scheduled' ELSE 'retry' END,
    PriorState = CASE WHEN p.again <> 2 AND JobRuns.State = 'retry' THEN JobRuns.PriorState ELSE JobRuns.State END,
    Reason = CASE
        WHEN p.again = 2 THEN 'replaced'
        WHEN JobRuns.State = 'retry' THEN JobRuns.Reason
        ELSE 'unlocked by hand'
    END,
    FinishedAt = CASE WHEN JobRuns.State <> 'claimed' THEN coalesce(JobRuns.FinishedAt, ?1) END,
    HeldBy = NULL,
    LeaseEndsAt = NULL
FROM p
WHERE JobRuns.RunId = p.run_id AND JobRuns.State IN ('retry', 'running', 'claimed');

-- name: insert_gaps
-- parameters: ?1 now instant
-- rows: run_id id, job_id id, first instant, last instant, count bigint, reason text(400), attempt int
WITH p (run_id, job_id, first, last, count, reason, attempt) AS (:rows)

INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason,
    Fence, FinishedAt, CreatedAt
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, 'schedule', p.first, p.last, p.count, p.attempt, 'skipped', 'scheduled',
    p.reason, j.Fence, ?1, ?1
FROM p
CROSS JOIN Jobs AS j ON j.Id = p.job_id;

-- name: advance_jobs
-- rows: job_id id, fence bigint, version bigint, next_run_time instant, retry_at instant, waiting_id id,
--   waiting_state word(20), left_id id, left_state word(20), next_slot instant
-- returns: Id id
-- Jobs that skip what was due. No next slot: the schedule has ended. A missing row: as in claim_jobs.
WITH p (
    job_id, fence, version, next_run_time, retry_at, waiting_id, waiting_state, left_id, left_state, next_slot
) AS (:rows)

UPDATE Jobs SET
    NextRunTime = p.next_slot,
    Enabled = CASE WHEN p.next_slot IS NULL THEN 0 ELSE Jobs.Enabled END,
    DisabledReason = CASE WHEN p.next_slot IS NULL THEN 'finished' ELSE Jobs.DisabledReason END
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.Fence = p.fence AND Jobs.Version IS p.version
    AND Jobs.LockedBy IS NULL AND Jobs.Quarantine IS NULL
    AND (Jobs.Enabled = 1 OR Jobs.DisabledReason = 'finished')
    AND (Jobs.NextRunTime IS p.next_run_time OR after(Jobs.NextRunTime, 0.0) IS p.next_run_time)
    AND (Jobs.RetryAt IS p.retry_at OR after(Jobs.RetryAt, 0.0) IS p.retry_at)
    AND (
        p.waiting_id IS NULL
        OR EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = p.waiting_id AND r.State = p.waiting_state)
    )
    AND (
        p.left_id IS NULL
        OR EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = p.left_id AND r.State = p.left_state)
    )
RETURNING Jobs.Id;

-- name: quarantine_jobs
-- rows: job_id id, fence bigint, version bigint, reason text(1000)
-- returns: Id id
-- A missing row: the job was claimed or changed meanwhile.
WITH p (job_id, fence, version, reason) AS (:rows)

UPDATE Jobs SET Quarantine = p.reason
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.Fence = p.fence AND Jobs.Version IS p.version
    AND Jobs.LockedBy IS NULL
RETURNING Id;

-- name: read_claims
-- rows: run_id id, claim_id id
-- returns: run_id id
-- After a commit without an answer: a row means that it did commit.
WITH p (run_id, claim_id) AS (:rows)

SELECT p.run_id
FROM p
CROSS JOIN JobRuns AS r ON r.RunId = p.run_id AND r.ClaimId = p.claim_id;

-- name: mark_published
-- parameters: ?1 now instant
-- rows: job_id id, run_id id, claim_id id, fence bigint, queued_seconds seconds
-- returns: RunId id
-- A missing row: a worker has started it, or the claim was lost. Neither is moved backwards.
WITH p (job_id, run_id, claim_id, fence, queued_seconds) AS (:rows)

UPDATE Jobs SET
    PublishedAt = ?1,
    LeaseEndsAt = after(?1, p.queued_seconds)
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL
RETURNING RunId;

-- name: read_unmarked
-- rows: job_id id, run_id id, claim_id id, fence bigint
-- returns: run_id id
-- Of claims that a mark or a release missed. A row: it is still the beat's to record, and somebody kept it locked.
-- A missing row: a worker has started it, the claim was lost, or it is recorded.
WITH p (job_id, run_id, claim_id, fence) AS (:rows)

SELECT p.run_id
FROM p
CROSS JOIN Jobs AS j ON j.Id = p.job_id
WHERE
    j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence
    AND j.LockedBy IS NOT NULL AND j.StartedRetry IS NULL AND j.PublishedAt IS NULL;

-- name: read_ended
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 batch_size int
-- returns: Id id, JobName text(200), RunId id, ClaimId id, Fence bigint, Kind text, ScheduledFor instant, Attempt int,
--   State text, ClaimedAt instant, PublishedAt instant, LockedAt instant, Started int, Republishes int,
--   LeaseSeconds seconds, Failures int, LostLeases int, Exclusive flag, TaskName text, Args text, Kwargs text,
--   Options text, CodeKey text, CodeOwner text, Now instant, Policies text
-- Zero rows: no lease has ended.
SELECT
    j.Id, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    j.ClaimedAt, j.PublishedAt, j.LockedAt,
    CASE WHEN j.StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    j.Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    j.TaskName, j.Args, j.Kwargs, j.Options, j.CodeKey, j.CodeOwner, ?1 AS Now, j.Policies
FROM Jobs AS j INDEXED BY Jobs_Leased
CROSS JOIN JobRuns AS r ON r.RunId = j.RunId
WHERE
    j.Namespace = ?2 AND j.LockedBy IS NOT NULL
    AND j.LeaseEndsAt <= ?1
LIMIT ?3;

-- name: read_ended_held
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 batch_size int
-- returns: JobId id, JobName text(200), RunId id, ClaimId id, Fence bigint, Kind text, ScheduledFor instant,
--   Attempt int, State text, ClaimedAt instant, PublishedAt instant, LockedAt instant, Started int,
--   Republishes int, LeaseSeconds seconds, Failures int, LostLeases int, Exclusive flag, TaskName text,
--   Args text, Kwargs text, Options text, CodeKey text, CodeOwner text, Now instant, Policies text
-- Zero rows: no overlapping run has lost its worker.
SELECT
    r.JobId, r.JobName, r.RunId, r.ClaimId, r.Fence, r.Kind, r.ScheduledFor, r.Attempt, r.State,
    r.ClaimedAt, r.PublishedAt, r.ClaimedAt AS LockedAt,
    1 AS Started, 0 AS Republishes, r.LeaseSeconds, r.Failures, r.LostLeases, r.Exclusive,
    NULL AS TaskName, NULL AS Args, NULL AS Kwargs, NULL AS Options, NULL AS CodeKey, NULL AS CodeOwner, ?1 AS Now,
    NULL AS Policies
FROM JobRuns AS r INDEXED BY JobRuns_Held
WHERE
    r.Namespace = ?2 AND r.HeldBy IS NOT NULL
    AND r.LeaseEndsAt <= ?1
LIMIT ?3;

-- name: postpone_start_deadline
-- parameters: ?1 beat text(200), ?2 now instant
-- rows: job_id id, run_id id, claim_id id, fence bigint, republishes int, queued_seconds seconds
-- returns: RunId id
-- A missing row: a worker started it, or another beat took it over or extended it first.
WITH p (job_id, run_id, claim_id, fence, republishes, queued_seconds) AS (:rows)

UPDATE Jobs SET
    LockedBy = ?1,
    LockedAt = ?2,
    Republishes = Jobs.Republishes + 1,
    LeaseEndsAt = after(?2, p.queued_seconds)
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL AND Jobs.Republishes = p.republishes
    AND Jobs.LeaseEndsAt <= ?2
RETURNING RunId;

-- name: read_replaceable
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 code_owner text(200), ?4 batch_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, RunId id, ClaimId id,
--   Fence bigint, ReplaceAt instant, Started int, Now instant
-- Zero rows: no run is to make room for the next slot of its job.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    CodeKey, RunId, ClaimId, Fence, ReplaceAt, CASE WHEN StartedRetry IS NULL THEN 0 ELSE 1 END AS Started,
    ?1 AS Now
FROM Jobs
WHERE
    Namespace = ?2 AND LockedBy IS NOT NULL AND RunId IS NOT NULL
    AND Enabled = 1 AND Quarantine IS NULL AND ReplaceAt <= ?1
    AND (CodeOwner IS NULL OR ?3 IN ('', CodeOwner))
LIMIT ?4;

-- name: postpone_replacing
-- parameters: ?1 now instant
-- rows: job_id id, run_id id, claim_id id, fence bigint, replace_at instant
-- returns: Id id
-- A missing row: the run has ended, the job is in other hands, or another beat has postponed it.
WITH p (job_id, run_id, claim_id, fence, replace_at) AS (:rows)

UPDATE Jobs SET ReplaceAt = p.replace_at
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL AND Jobs.ReplaceAt <= ?1
RETURNING Jobs.Id;

-- name: release_orphan_locks
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 lock_seconds seconds
-- returns: Id id, JobName text(200), LockedBy text
-- Locks that stand for no run: written by hand, or their history is gone. One without an instant
-- that can be read gets one first; after() of any other is NULL.
UPDATE Jobs SET
    LockedBy = CASE WHEN after(LockedAt, 0.0) IS NULL AND LeaseEndsAt IS NULL THEN LockedBy END,
    LockedAt = CASE WHEN after(LockedAt, 0.0) IS NULL AND LeaseEndsAt IS NULL THEN ?1 END,
    LeaseEndsAt = NULL,
    RunId = NULL,
    ClaimId = NULL,
    StartedRetry = NULL,
    Fence = Fence + 1
WHERE
    Namespace = ?2 AND LockedBy IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = Jobs.RunId)
    AND (
        (after(LockedAt, 0.0) IS NULL AND LeaseEndsAt IS NULL)
        OR coalesce(LeaseEndsAt, after(LockedAt, coalesce(60.0 * LockTimeoutMinutes, ?3))) <= ?1
    )
RETURNING Id, JobName, LockedBy;

-- name: read_next
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 code_keys list, ?4 code_owner text(200),
--   ?5 other_entries list
-- returns: Now instant, DueAt instant, EndsAt instant, PlannedAt instant, HeldEndsAt instant, OutboxAt instant,
--   Changes bigint, ReplaceAt instant, Locked bigint
-- Always one row: the earliest instants of each kind at which some beat has something to do, and the change counter.
SELECT
    ?1 AS Now,
    (
        SELECT min(coalesce(RetryAt, NextRunTime))
        FROM Jobs
        WHERE
            Namespace = ?2 AND Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL
            AND (CodeKey IS NULL OR CodeKey IN (SELECT value FROM json_each(?3)))
            AND (
                CodeOwner IS NULL
                OR (
                    ?4 IN ('', CodeOwner)
                    AND JobName NOT IN (SELECT value FROM json_each(?5))
                )
            )
    ) AS DueAt,
    leased.EndsAt,
    leased.PlannedAt,
    (
        SELECT min(r.LeaseEndsAt) FROM JobRuns AS r
        WHERE r.Namespace = ?2 AND r.HeldBy IS NOT NULL
    ) AS HeldEndsAt,
    (
        SELECT r.DueAt
        FROM JobRuns AS r
        CROSS JOIN Jobs AS j ON j.Id = r.JobId
        WHERE
            r.Namespace = ?2 AND r.DueAt IS NOT NULL
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR j.CodeKey IN (SELECT value FROM json_each(?3)))
            AND (
                j.CodeOwner IS NULL
                OR (
                    ?4 IN ('', j.CodeOwner)
                    AND j.JobName NOT IN (SELECT value FROM json_each(?5))
                )
            )
        ORDER BY r.DueAt
        LIMIT 1
    ) AS OutboxAt,
    coalesce((SELECT Counter FROM Changes WHERE Namespace = ?2), 0) AS Changes,
    leased.ReplaceAt,
    leased.Locked
FROM (
    SELECT
        count(*) AS Locked,
        min(LeaseEndsAt) AS EndsAt,
        min(CASE WHEN PlannedAt > ?1 THEN PlannedAt END) AS PlannedAt,
        min(
            CASE
                WHEN
                    Enabled = 1 AND Quarantine IS NULL AND (CodeOwner IS NULL OR ?4 IN ('', CodeOwner))
                    THEN ReplaceAt
            END
        ) AS ReplaceAt
    FROM Jobs
    WHERE Namespace = ?2 AND LockedBy IS NOT NULL
) AS leased;

-- name: read_later
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 after instant, ?4 code_keys list, ?5 code_owner text(200),
--   ?6 other_entries list
-- returns: Now instant, DueAt instant, OutboxAt instant
-- Always one row: the earliest instants later than this one at which there is something to claim.
SELECT
    ?1 AS Now,
    (
        SELECT min(coalesce(RetryAt, NextRunTime))
        FROM Jobs
        WHERE
            Namespace = ?2 AND Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL
            AND coalesce(RetryAt, NextRunTime) > ?3
            AND (CodeKey IS NULL OR CodeKey IN (SELECT value FROM json_each(?4)))
            AND (
                CodeOwner IS NULL
                OR (
                    ?5 IN ('', CodeOwner)
                    AND JobName NOT IN (SELECT value FROM json_each(?6))
                )
            )
    ) AS DueAt,
    (
        SELECT r.DueAt
        FROM JobRuns AS r
        CROSS JOIN Jobs AS j ON j.Id = r.JobId
        WHERE
            r.Namespace = ?2 AND r.DueAt > ?3
            AND (j.Enabled = 1 OR j.DisabledReason = 'finished') AND j.LockedBy IS NULL AND j.Quarantine IS NULL
            AND (j.CodeKey IS NULL OR j.CodeKey IN (SELECT value FROM json_each(?4)))
            AND (
                j.CodeOwner IS NULL
                OR (
                    ?5 IN ('', j.CodeOwner)
                    AND j.JobName NOT IN (SELECT value FROM json_each(?6))
                )
            )
        ORDER BY r.DueAt
        LIMIT 1
    ) AS OutboxAt;

-- name: read_rows_needing_repair
-- parameters: ?1 now instant, ?2 after_id word(36), ?3 code_owner text(200), ?4 namespace text(100), ?5 page_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- Zero rows: every row is in order. A month from 13 to 19 has the form of an instant, which is all that the index of
-- these rows knows: it is found by its place among what is due, beyond all instants of its year.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence,
    RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, ?1 AS Now
FROM Jobs
WHERE
    Id > ?2 AND (CodeOwner IS NULL OR DeleteRequested = 1 OR ?3 IN ('', CodeOwner))
    AND Id IN (
        SELECT a.Id
        FROM Jobs AS a
        WHERE
            a.Namespace = ?4 AND a.LockedBy IS NULL
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
        CROSS JOIN Jobs AS d
        WHERE
            d.Namespace = ?4 AND d.LockedBy IS NULL AND d.Enabled = 1 AND d.Quarantine IS NULL
            AND coalesce(d.RetryAt, d.NextRunTime) >= (substr(?1, 1, 4) + value) || '-13'
            AND coalesce(d.RetryAt, d.NextRunTime) < (substr(?1, 1, 4) + value) || '-2'
    )
ORDER BY Id
LIMIT ?5;

-- name: repair_rows
-- rows: job_id id, fence bigint, version bigint, next_run_time instant, retry_at instant
-- returns: Id id
-- Fills in or normalises the instants of rows that read_rows_needing_repair found, and ends their quarantine.
WITH p (job_id, fence, version, next_run_time, retry_at) AS (:rows)

UPDATE Jobs SET
    NextRunTime = p.next_run_time,
    RetryAt = p.retry_at,
    Quarantine = NULL
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.Fence = p.fence AND Jobs.Version IS p.version
    AND Jobs.LockedBy IS NULL
RETURNING Id;

-- name: delete_requested
-- rows: job_id id
-- returns: Id id, RunId id, RetryRunId id
-- A missing row: a run holds the job or, overlapping others, goes on by itself; or its deletion was not asked for.
WITH p (job_id) AS (:rows)

DELETE FROM Jobs
WHERE
    Id IN (SELECT p.job_id FROM p) AND DeleteRequested = 1 AND LockedBy IS NULL
    AND NOT EXISTS (
        SELECT 1
        FROM JobRuns AS r
        WHERE r.Namespace = Jobs.Namespace AND r.HeldBy IS NOT NULL AND r.JobId = Jobs.Id
    )
RETURNING Id, RunId, RetryRunId;
