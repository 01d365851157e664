-- What ends a run, whoever does it: first the job's row, then the run's. Batches, locks and the clock as in beat.sql.

-- part: release_jobs
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
    LastRunTime = CASE WHEN r.state IN ('success', 'dispatched') THEN :now ELSE Jobs.LastRunTime END,
    -- Slots that came due until then came due while it ran.
    RanUntil = CASE WHEN r.retry_seconds IS NULL AND Jobs.StartedRetry IS NOT NULL THEN :now ELSE Jobs.RanUntil END,
    ReplaceAt = NULL,
    RetryAt = CASE
        WHEN r.Advances = 0 THEN Jobs.RetryAt
        WHEN r.retry_seconds IS NOT NULL THEN after(:now, r.retry_seconds)
    END,
    RetryRunId = CASE
        WHEN r.Advances = 0 THEN Jobs.RetryRunId
        WHEN r.retry_seconds IS NOT NULL THEN r.run_id
    END,
    -- Another NextRunTime than the claim saw is an operator's, and wins.
    NextRunTime = CASE
        WHEN r.Advances = 1 AND r.retry_seconds IS NULL AND same(Jobs.NextRunTime, r.SeenNextRunTime) THEN r.NextSlot
        ELSE Jobs.NextRunTime
    END,
    Enabled = CASE
        WHEN
            r.Advances = 1 AND r.retry_seconds IS NULL AND same(Jobs.NextRunTime, r.SeenNextRunTime)
            AND r.NextSlot IS NULL
            THEN 0
        ELSE Jobs.Enabled
    END,
    DisabledReason = CASE
        WHEN
            r.Advances = 1 AND r.retry_seconds IS NULL AND same(Jobs.NextRunTime, r.SeenNextRunTime)
            AND r.NextSlot IS NULL
            THEN 'finished'
        ELSE Jobs.DisabledReason
    END
FROM r
WHERE
    Jobs.Id = key(r.job_id) AND Jobs.RunId = r.run_id AND Jobs.ClaimId = r.claim_id AND Jobs.Fence = r.fence
    AND Jobs.LockedBy IS NOT NULL
    AND (:only_unstarted = 0 OR Jobs.StartedRetry IS NULL)
    AND (r.started_retry IS NULL OR r.Exclusive = 0 OR Jobs.StartedRetry = r.started_retry)
    AND (:only_replaceable = 0 OR (Jobs.Enabled = 1 AND Jobs.ReplaceAt <= :now))
    AND (
        :only_ended = 0
        -- Who found the lease ended before the run began cannot know that it began and ended again.
        OR (
            Jobs.LeaseEndsAt <= :now
            AND (Jobs.StartedRetry IS NULL OR r.state IN ('retry', 'dlq'))
        )
        -- An overlapping run that began was dispatched: where it is lost before its beat said so, its job is free.
        OR (r.Exclusive = 0 AND r.state IN ('retry', 'dlq'))
    )

-- part: close_runs
-- Writes how the runs in `p` ended.
UPDATE JobRuns SET
    -- What somebody has asked to cancel ends as that, whoever ends it and however.
    State = CASE WHEN JobRuns.CancelAt IS NULL THEN p.state ELSE 'cancelled' END,
    PriorState = coalesce(p.via, JobRuns.State),
    Reason = CASE WHEN JobRuns.CancelAt IS NULL THEN p.reason ELSE JobRuns.Reason END,
    PublishedAt = CASE WHEN p.state = 'dispatched' THEN coalesce(JobRuns.PublishedAt, :now) ELSE JobRuns.PublishedAt END,
    FinishedAt = CASE WHEN p.state <> 'scheduled' OR JobRuns.CancelAt IS NOT NULL THEN :now END,
    DueAt = CASE
        WHEN
            p.retry_seconds IS NOT NULL AND JobRuns.CancelAt IS NULL
            AND (JobRuns.Advances = 0 OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running'))
            THEN after(:now, p.retry_seconds)
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
    JobRuns.RunId = key(p.run_id) AND JobRuns.ClaimId = p.claim_id AND JobRuns.Fence = p.fence
    AND (p.started_retry IS NULL OR JobRuns.StartedRetry = p.started_retry)
    AND (p.released = 1 OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running'))
    AND (
        (JobRuns.State = 'claimed' AND p.state IN ('scheduled', 'dispatched', 'skipped', 'cancelled'))
        -- What can never be published: only the beat that holds the claim knows that.
        OR (:only_unstarted = 1 AND JobRuns.State = 'claimed' AND p.state IN ('retry', 'dlq'))
        OR (
            JobRuns.State = 'running'
            -- Only its own worker may hand a run over that it has begun.
            AND (p.state <> 'dispatched' OR (:only_unstarted = 0 AND :only_ended = 0))
        )
    )
    -- A beat ends an overlapping run that has begun only where that run's own lease has ended.
    AND (
        (:only_unstarted = 0 AND :only_ended = 0) OR JobRuns.Exclusive = 1 OR JobRuns.State = 'claimed'
        OR (:only_ended = 1 AND p.state IN ('retry', 'dlq') AND JobRuns.LeaseEndsAt <= :now)
    )

-- name: read_endings
-- rows: run_id, claim_id, fence, state
-- returns: run_id
-- After a commit without an answer: a row means that this ending did commit.
WITH p AS (:rows)

SELECT p.run_id
FROM p
LOOP JOIN JobRuns AS r ON r.RunId = key(p.run_id) AND r.ClaimId = p.claim_id AND r.Fence = p.fence
WHERE r.State = p.state OR (r.State = 'cancelled' AND r.CancelAt IS NOT NULL);
