-- name: start_at_once
-- rows: run_id, claim_id, fence, start_id, celery_retries
-- returns: RunId, ClaimId, Fence, JobId, JobName, Kind, ScheduledFor, Attempt, LeaseSeconds, MaxRetries, Failures,
--   LostLeases, Exclusive, MaxRuntimeSeconds
-- Begins runs in one statement. `won` takes over the leases of the jobs, where the message is no stale one and no duplicate,
-- and no other run holds the job. Where it did not win, only a run may begin that needs no lease of its job's. Such is one
-- that may overlap others, and one that was fired and forgotten: its job has gone on, and another run may hold it. It
-- begins as stock beat would have it, under a lease of its own, and overlaps from there on.
-- A missing row: see read_refused; or the run was dispatched while this statement waited for the job's row, so ask again.
WITH given AS (:rows),

won AS (
    WITH p (run_id, claim_id, fence, start_id, celery_retries) AS (
        SELECT run_id, claim_id, fence, start_id, celery_retries FROM given
    ),

    r AS MATERIALIZED (
        SELECT
            p.run_id, p.claim_id, p.celery_retries, p.start_id, r.JobId, r.Fence, r.State, r.LeaseSeconds, r.StartId, r.CancelAt,
            CASE WHEN r.State = 'dispatched' THEN (SELECT j.Fence FROM Jobs AS j WHERE j.Id = r.JobId) END AS SeenFence
        FROM p
        INNER JOIN JobRuns AS r ON r.RunId = key(p.run_id)
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
        Jobs.Id = key(r.JobId)
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
            -- Not where an unlocking by hand left a run behind: the row must not forget it. Nor where the fence has grown
            -- since the state was read: another copy may have run meanwhile.
            OR (
                r.State = 'dispatched' AND Jobs.LockedBy IS NULL AND Jobs.RunId IS NULL AND Jobs.Fence = r.SeenFence
                AND Jobs.DeleteRequested = 0
            )
        )
    RETURNING Jobs.RunId, Jobs.Fence, Jobs.PublishedAt AS Published
),

p (run_id, claim_id, fence, start_id, celery_retries, job_fence, published) AS (
    SELECT
        g.run_id, g.claim_id, g.fence, g.start_id, g.celery_retries, won.Fence, won.Published
    FROM given AS g
    LEFT JOIN won ON won.RunId = g.run_id
),

free AS MATERIALIZED (
    SELECT r.RunId, r.JobId, r.State
    FROM p
    INNER JOIN JobRuns AS r ON r.RunId = key(p.run_id)
    WHERE
        p.job_fence IS NULL AND r.ClaimId = p.claim_id AND r.Namespace = :namespace AND r.Fence = p.fence
        AND (
            -- After its last deadline a leased slot needs its lease all the same, as start_jobs says.
            (
                r.State = 'dispatched' AND r.StartedAt IS NULL
                AND (r.Exclusive = 0 OR coalesce(r.Reason, '') <> 'never started')
            )
            OR (
                r.Exclusive = 0
                AND (
                    r.State = 'claimed'
                    OR (
                        r.State = 'running'
                        AND ((r.StartedRetry < p.celery_retries AND r.CancelAt IS NULL) OR r.StartId = p.start_id)
                    )
                )
            )
        )
    FOR NO KEY UPDATE OF r
),

-- The run's row first and the job's then, as release_jobs has it. A deletion comes before this lock, or after the start.
there AS MATERIALIZED (
    SELECT f.RunId
    FROM free AS f
    INNER JOIN Jobs AS j ON j.Id = key(f.JobId)
    WHERE f.State = 'running' OR j.DeleteRequested = 0
    FOR SHARE OF j
)

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
LEFT JOIN there AS t ON t.RunId = p.run_id
WHERE
    JobRuns.RunId = key(p.run_id) AND JobRuns.ClaimId = p.claim_id AND JobRuns.Namespace = :namespace
    AND (p.job_fence IS NOT NULL OR t.RunId IS NOT NULL)
RETURNING
    JobRuns.RunId, JobRuns.ClaimId, JobRuns.Fence, JobRuns.JobId, JobRuns.JobName, JobRuns.Kind, JobRuns.ScheduledFor,
    JobRuns.Attempt, JobRuns.LeaseSeconds, JobRuns.MaxRetries, JobRuns.Failures, JobRuns.LostLeases, JobRuns.Exclusive,
    JobRuns.MaxRuntimeSeconds;

-- name: postpone_starts
-- A worker holds the messages of these runs and has not begun them: their deadlines move on, never back.
-- A missing row: it has begun, or has no deadline, or the claim is another's; or somebody keeps the job's row locked.
WITH p AS (:rows),

mine AS MATERIALIZED (
    SELECT j.Id, p.run_id, p.claim_id, p.fence, p.celery_retries, r.LeaseSeconds
    FROM p
    INNER JOIN JobRuns AS r ON r.RunId = key(p.run_id)
    INNER JOIN Jobs AS j ON j.Id = key(r.JobId)
    WHERE
        r.Namespace = :namespace AND r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.State IN ('claimed', 'running')
        AND j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence AND j.LockedBy IS NOT NULL
        AND (j.StartedRetry IS NULL OR j.StartedRetry < p.celery_retries)
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    -- What a worker holds was published, even where its beat has not said so yet.
    PublishedAt = coalesce(Jobs.PublishedAt, :now),
    LeaseEndsAt = later(Jobs.LeaseEndsAt, after(:now, mine.LeaseSeconds))
FROM mine
WHERE
    Jobs.Id = key(mine.Id) AND Jobs.RunId = mine.run_id AND Jobs.ClaimId = mine.claim_id
    AND Jobs.Fence = mine.fence AND Jobs.LockedBy IS NOT NULL
    AND (Jobs.StartedRetry IS NULL OR Jobs.StartedRetry < mine.celery_retries)
RETURNING Jobs.RunId;

-- name: extend_leases
WITH p AS (:rows),

mine AS MATERIALIZED (
    SELECT j.Id, p.run_id, p.claim_id, p.fence, p.lease_seconds
    FROM p
    INNER JOIN Jobs AS j ON j.Id = key(p.job_id)
    WHERE j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence AND j.LockedBy IS NOT NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
)

UPDATE Jobs SET
    LockedAt = :now,
    LeaseEndsAt = after(:now, mine.lease_seconds)
FROM mine
WHERE
    Jobs.Id = key(mine.Id) AND Jobs.RunId = mine.run_id AND Jobs.ClaimId = mine.claim_id
    AND Jobs.Fence = mine.fence AND Jobs.LockedBy IS NOT NULL
RETURNING Jobs.RunId;

-- name: extend_held
WITH p AS (:rows),

mine AS MATERIALIZED (
    SELECT p.run_id, p.claim_id, p.fence, p.lease_seconds
    FROM p
    INNER JOIN JobRuns AS r ON r.RunId = key(p.run_id)
    -- Not IS NOT NULL, which would invite the planner to go by the index of all held runs, in its order.
    WHERE r.ClaimId = p.claim_id AND r.Fence = p.fence AND coalesce(r.HeldBy, '') <> ''
    FOR NO KEY UPDATE OF r SKIP LOCKED
)

UPDATE JobRuns SET LeaseEndsAt = after(:now, mine.lease_seconds)
FROM mine
WHERE
    JobRuns.RunId = key(mine.run_id) AND JobRuns.ClaimId = mine.claim_id AND JobRuns.Fence = mine.fence
    AND coalesce(JobRuns.HeldBy, '') <> ''
RETURNING JobRuns.RunId;

-- name: read_busy_held
WITH p AS (:rows)

SELECT p.run_id
FROM p
INNER JOIN JobRuns AS r ON r.RunId = key(p.run_id)
WHERE r.ClaimId = p.claim_id AND r.Fence = p.fence AND coalesce(r.HeldBy, '') <> '';
