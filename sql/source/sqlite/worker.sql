-- name: start_jobs
-- rows: run_id, claim_id, fence, start_id, celery_retries
-- returns: RunId, Fence, Published
-- A missing row: the message is stale, a duplicate, or another run holds the job; or it needs no lease of the job's, as
-- start_runs says.
WITH p AS (:rows),

r AS MATERIALIZED (
    SELECT p.run_id, p.claim_id, p.celery_retries, p.start_id, r.JobId, r.Fence, r.State, r.LeaseSeconds, r.StartId,
        r.CancelAt
    FROM p
    LOOP JOIN JobRuns AS r ON r.RunId = p.run_id
    WHERE
        r.ClaimId = p.claim_id AND r.Namespace = :namespace AND r.Exclusive = 1
        -- A late start of a dispatched run raised the run's fence above that of its message.
        AND (r.Fence = p.fence OR (r.Fence > p.fence AND r.PriorState = 'dispatched'))
        AND (r.State IN ('claimed', 'running') OR (r.State = 'dispatched' AND r.Reason = 'never started'))
)

UPDATE Jobs SET
    LockedBy = :worker,
    LockedAt = :now,
    LeaseEndsAt = after(:now, r.LeaseSeconds),
    ClaimedAt = coalesce(Jobs.ClaimedAt, :now),
    StartedRetry = r.celery_retries,
    RunId = r.run_id,
    ClaimId = r.claim_id,
    Fence = CASE WHEN r.State = 'dispatched' THEN Jobs.Fence + 1 ELSE Jobs.Fence END
FROM r
WHERE
    Jobs.Id = r.JobId
    AND (
        (
            r.State IN ('claimed', 'running') AND Jobs.RunId = r.run_id AND Jobs.ClaimId = r.claim_id
            AND Jobs.Fence = r.Fence AND Jobs.LockedBy IS NOT NULL
            -- One time only: a later retry by Celery itself, or the same question again before such a retry.
            AND (
                Jobs.StartedRetry IS NULL
                OR (Jobs.StartedRetry < r.celery_retries AND r.CancelAt IS NULL)
                OR (Jobs.StartedRetry = r.celery_retries AND r.StartId = r.start_id)
            )
        )
        -- Not where an unlocking by hand left a run behind: the row must not forget it.
        OR (
            r.State = 'dispatched' AND Jobs.LockedBy IS NULL AND Jobs.RunId IS NULL
            AND Jobs.DeleteRequested = 0
        )
    )
RETURNING RunId, Fence, PublishedAt AS Published;

-- name: start_runs
-- rows: run_id, claim_id, fence, start_id, celery_retries, job_fence, published
-- returns: RunId, ClaimId, Fence, JobId, JobName, Kind, ScheduledFor, Attempt, LeaseSeconds, MaxRetries, Failures,
--   LostLeases, Exclusive, MaxRuntimeSeconds
-- `job_fence` and `published` are what start_jobs gave, NULL where it did not win: then only a run may begin that needs no
-- lease of its job's. Such is one that may overlap others, and one that was fired and forgotten: its job has gone on, and
-- another run may hold it. It begins as stock beat would have it, under a lease of its own, and overlaps from there on.
-- A missing row: see read_refused.
WITH p AS (:rows)

UPDATE JobRuns SET
    State = 'running',
    PriorState = CASE WHEN JobRuns.State = 'running' THEN JobRuns.PriorState ELSE JobRuns.State END,
    Fence = coalesce(p.job_fence, JobRuns.Fence),
    -- What begins was published, even where its beat has not said so yet.
    PublishedAt = coalesce(JobRuns.PublishedAt, p.published, :now),
    StartedBy = :worker,
    StartId = p.start_id,
    StartedAt = coalesce(JobRuns.StartedAt, :now),
    StartedRetry = p.celery_retries,
    Exclusive = CASE WHEN p.job_fence IS NULL THEN 0 ELSE JobRuns.Exclusive END,
    HeldBy = CASE WHEN p.job_fence IS NULL THEN :worker END,
    LeaseEndsAt = CASE WHEN p.job_fence IS NULL THEN after(:now, JobRuns.LeaseSeconds) END
FROM p
WHERE
    JobRuns.RunId = p.run_id AND JobRuns.ClaimId = p.claim_id AND JobRuns.Namespace = :namespace
    AND (
        p.job_fence IS NOT NULL
        OR (
            JobRuns.Fence = p.fence
            AND (
                -- After its last deadline a leased slot needs its lease all the same, as start_jobs says.
                (
                    JobRuns.State = 'dispatched' AND JobRuns.StartedAt IS NULL
                    AND (JobRuns.Exclusive = 0 OR coalesce(JobRuns.Reason, '') <> 'never started')
                )
                OR (
                    JobRuns.Exclusive = 0
                    AND (
                        JobRuns.State = 'claimed'
                        OR (
                            JobRuns.State = 'running'
                            AND (
                                (JobRuns.StartedRetry < p.celery_retries AND JobRuns.CancelAt IS NULL)
                                OR JobRuns.StartId = p.start_id
                            )
                        )
                    )
                )
            )
            AND (
                JobRuns.State = 'running'
                OR EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = JobRuns.JobId AND j.DeleteRequested = 0)
            )
        )
    )
RETURNING
    RunId, ClaimId, Fence, JobId, JobName, Kind, ScheduledFor, Attempt, LeaseSeconds, MaxRetries, Failures, LostLeases,
    Exclusive, MaxRuntimeSeconds;
