-- Written by `make sql` from sql/source: change it there.
-- What ends a run, whoever does it: first the job's row, then the run's. Batches, locks and the clock as in beat.sql.

-- name: read_endings
-- rows: run_id id, claim_id id, fence bigint, state word(20)
-- returns: run_id id
-- After a commit without an answer: a row means that this ending did commit.
WITH p (run_id, claim_id, fence, state) AS (:rows)

SELECT p.run_id
FROM p
CROSS JOIN JobRuns AS r ON r.RunId = p.run_id AND r.ClaimId = p.claim_id AND r.Fence = p.fence
WHERE r.State = p.state OR (r.State = 'cancelled' AND r.CancelAt IS NOT NULL);

-- name: lock_claims
-- rows: job_id id, run_id id
-- returns: RunId id
-- What a beat may release without waiting for anybody: here who writes has locked everything already.
-- A missing row: its history is gone.
WITH p (job_id, run_id) AS (:rows)

SELECT r.RunId
FROM p
CROSS JOIN JobRuns AS r ON r.RunId = p.run_id;

-- name: release_jobs
-- parameters: ?1 now instant, ?2 only_unstarted flag, ?3 only_replaceable flag, ?4 only_ended flag
-- rows: job_id id, run_id id, claim_id id, fence bigint, started_retry int, state word(20), retry_seconds seconds
-- returns: Id id, Unforeseen int
-- A missing row: the claim was taken over, or (only_unstarted) a worker has started it meanwhile,
-- or (only_ended) its lease was extended, or (only_replaceable) its next slot has not come, or the job is paused;
-- or (started_retry) a later retry of Celery's has begun.
-- Unforeseen: due at another instant than the claim planned, or due already, or to be deleted now that it is free; then
-- the other beats must be told.
WITH p (job_id, run_id, claim_id, fence, started_retry, state, retry_seconds) AS (:rows),

r AS MATERIALIZED (
    SELECT
        p.job_id, p.run_id, p.claim_id, p.fence, p.started_retry, p.state, r.Exclusive, r.Advances, r.SeenNextRunTime,
        -- An overlapping run that has begun goes on by itself, whatever becomes of it: its job takes the next slot.
        -- Nothing follows what somebody has asked to cancel.
        CASE
            WHEN (r.Exclusive = 1 OR r.State <> 'running') AND r.CancelAt IS NULL THEN p.retry_seconds
        END AS retry_seconds,
        CASE
            WHEN r.DelaySeconds IS NULL THEN r.PlannedAt
            ELSE after(max(?1, r.ScheduledFor), r.DelaySeconds)
        END AS NextSlot
    FROM p
    CROSS JOIN JobRuns AS r ON r.RunId = p.run_id
)

-- Frees the jobs of the runs in `r`.
UPDATE Jobs SET
    LockedBy = NULL,
    LockedAt = NULL,
    ClaimedAt = NULL,
    LeaseEndsAt = NULL,
    PublishedAt = NULL,
    StartedRetry = NULL,
    Republishes = 0,
    RunId = NULL,
    ClaimId = NULL,
    Fence = Jobs.Fence + 1,
    LastRunTime = CASE WHEN r.state IN ('success', 'dispatched') THEN ?1 ELSE Jobs.LastRunTime END,
    -- Slots that came due until then came due while it ran.
    RanUntil = CASE WHEN r.retry_seconds IS NULL AND Jobs.StartedRetry IS NOT NULL THEN ?1 ELSE Jobs.RanUntil END,
    ReplaceAt = NULL,
    RetryAt = CASE
        WHEN r.Advances = 0 THEN Jobs.RetryAt
        WHEN r.retry_seconds IS NOT NULL THEN after(?1, r.retry_seconds)
    END,
    RetryRunId = CASE
        WHEN r.Advances = 0 THEN Jobs.RetryRunId
        WHEN r.retry_seconds IS NOT NULL THEN r.run_id
    END,
    -- Another NextRunTime than the claim saw is an operator's, and wins.
    NextRunTime = CASE
        WHEN r.Advances = 1 AND r.retry_seconds IS NULL AND Jobs.NextRunTime IS r.SeenNextRunTime THEN r.NextSlot
        ELSE Jobs.NextRunTime
    END,
    Enabled = CASE
        WHEN
            r.Advances = 1 AND r.retry_seconds IS NULL AND Jobs.NextRunTime IS r.SeenNextRunTime
            AND r.NextSlot IS NULL
            THEN 0
        ELSE Jobs.Enabled
    END,
    DisabledReason = CASE
        WHEN
            r.Advances = 1 AND r.retry_seconds IS NULL AND Jobs.NextRunTime IS r.SeenNextRunTime
            AND r.NextSlot IS NULL
            THEN 'finished'
        ELSE Jobs.DisabledReason
    END
FROM r
WHERE
    Jobs.Id = r.job_id AND Jobs.RunId = r.run_id AND Jobs.ClaimId = r.claim_id AND Jobs.Fence = r.fence
    AND Jobs.LockedBy IS NOT NULL
    AND (?2 = 0 OR Jobs.StartedRetry IS NULL)
    AND (r.started_retry IS NULL OR r.Exclusive = 0 OR Jobs.StartedRetry = r.started_retry)
    AND (?3 = 0 OR (Jobs.Enabled = 1 AND Jobs.ReplaceAt <= ?1))
    AND (
        ?4 = 0
        -- Who found the lease ended before the run began cannot know that it began and ended again.
        OR (
            Jobs.LeaseEndsAt <= ?1
            AND (Jobs.StartedRetry IS NULL OR r.state IN ('retry', 'dlq'))
        )
        -- An overlapping run that began was dispatched: where it is lost before its beat said so, its job is free.
        OR (r.Exclusive = 0 AND r.state IN ('retry', 'dlq'))
    )
RETURNING
    Id,
    -- Not IS NULL: within RETURNING, SQLite 3.40 takes it for false wherever the key of the table is NOT NULL.
    CASE
        -- Whoever waits for a one-off finds it by its instant.
        WHEN OneOff = 1 THEN 0
        WHEN
            coalesce(RetryAt, '') = '' AND NextRunTime = PlannedAt AND NextRunTime > ?1 AND DeleteRequested = 0
            THEN 0
        ELSE 1
    END AS Unforeseen;

-- name: close_runs
-- parameters: ?1 now instant, ?2 only_unstarted flag, ?3 only_ended flag
-- rows: run_id id, claim_id id, fence bigint, started_retry int, released flag, state word(20), via word(20),
--   reason text(400), retry_seconds seconds, failures int, lost_leases int, error text, traceback text
-- returns: RunId id, Doomed int
-- A missing row: the run is not in these hands, or its outcome is written already, or a later retry of Celery's began.
-- Doomed: it overlapped others, and its job is to be deleted once the last of them has ended; or it is a one-off that waits
-- in the outbox. The beats must be told.
WITH p (
    run_id, claim_id, fence, started_retry, released, state, via, reason, retry_seconds, failures, lost_leases, error,
    traceback
) AS (:rows)

-- Writes how the runs in `p` ended.
UPDATE JobRuns SET
    -- What somebody has asked to cancel ends as that, whoever ends it and however.
    State = CASE WHEN JobRuns.CancelAt IS NULL THEN p.state ELSE 'cancelled' END,
    PriorState = coalesce(p.via, JobRuns.State),
    Reason = CASE WHEN JobRuns.CancelAt IS NULL THEN p.reason ELSE JobRuns.Reason END,
    PublishedAt = CASE WHEN p.state = 'dispatched' THEN coalesce(JobRuns.PublishedAt, ?1) ELSE JobRuns.PublishedAt END,
    FinishedAt = CASE WHEN p.state <> 'scheduled' OR JobRuns.CancelAt IS NOT NULL THEN ?1 END,
    DueAt = CASE
        WHEN
            p.retry_seconds IS NOT NULL AND JobRuns.CancelAt IS NULL
            AND (JobRuns.Advances = 0 OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running'))
            THEN after(?1, p.retry_seconds)
    END,
    Advances = CASE
        WHEN p.state = 'dispatched' OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running') THEN 0
        ELSE JobRuns.Advances
    END,
    Failures = JobRuns.Failures + p.failures,
    LostLeases = JobRuns.LostLeases + p.lost_leases,
    HeldBy = NULL,
    LeaseEndsAt = NULL,
    Error = p.error,
    Traceback = p.traceback
FROM p
WHERE
    JobRuns.RunId = p.run_id AND JobRuns.ClaimId = p.claim_id AND JobRuns.Fence = p.fence
    AND (p.started_retry IS NULL OR JobRuns.StartedRetry = p.started_retry)
    AND (p.released = 1 OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running'))
    AND (
        (JobRuns.State = 'claimed' AND p.state IN ('scheduled', 'dispatched', 'skipped', 'cancelled'))
        -- What can never be published: only the beat that holds the claim knows that.
        OR (?2 = 1 AND JobRuns.State = 'claimed' AND p.state IN ('retry', 'dlq'))
        OR (
            JobRuns.State = 'running'
            -- Only its own worker may hand a run over that it has begun.
            AND (p.state <> 'dispatched' OR (?2 = 0 AND ?3 = 0))
        )
    )
    -- A beat ends an overlapping run that has begun only where that run's own lease has ended.
    AND (
        (?2 = 0 AND ?3 = 0) OR JobRuns.Exclusive = 1 OR JobRuns.State = 'claimed'
        OR (?3 = 1 AND p.state IN ('retry', 'dlq') AND JobRuns.LeaseEndsAt <= ?1)
    )
RETURNING
    RunId,
    CASE
        WHEN Kind = 'one_off' AND coalesce(DueAt, '') <> '' THEN 1
        WHEN Exclusive = 0 AND EXISTS (SELECT 1 FROM Jobs AS d WHERE d.Id = JobId AND d.DeleteRequested = 1) THEN 1
        ELSE 0
    END AS Doomed;
