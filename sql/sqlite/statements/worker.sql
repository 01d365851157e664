-- Written by `make sql` from sql/source: change it there.
-- What a worker reads and writes. Batches, locks and the clock as in beat.sql.

-- name: refuse_starts
-- parameters: ?1 namespace text(100), ?2 now instant
-- rows: run_id id, claim_id id, fence bigint
-- returns: RunId id
-- Of starts that were refused: what was sent and cannot begin any more gets its outcome. A missing row: it has one, it
-- waits on, or its claim is another one.
WITH p (run_id, claim_id, fence) AS (:rows),

r AS MATERIALIZED (
    SELECT r.RunId, r.ClaimId, r.Fence, r.State, j.Id IS NULL OR j.DeleteRequested = 1 AS IsDeleted
    FROM p
    CROSS JOIN JobRuns AS r ON r.RunId = p.run_id
    LEFT JOIN Jobs AS j ON j.Id = r.JobId
    WHERE
        r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.Namespace = ?1
        AND r.StartedAt IS NULL AND (r.State = 'dispatched' OR (r.State = 'claimed' AND r.Exclusive = 0))
        AND (
            j.Id IS NULL OR j.DeleteRequested = 1
            OR (
                r.Exclusive = 1 AND r.Reason = 'never started'
                AND (j.LockedBy IS NOT NULL OR j.RunId IS NOT NULL)
            )
        )
)

UPDATE JobRuns SET
    State = CASE WHEN r.IsDeleted THEN 'cancelled' ELSE 'skipped' END,
    PriorState = JobRuns.State,
    Reason = CASE WHEN r.IsDeleted THEN 'job deleted' ELSE 'overlap' END,
    FinishedAt = ?2
FROM r
WHERE
    JobRuns.RunId = r.RunId AND JobRuns.ClaimId = r.ClaimId AND JobRuns.Fence = r.Fence
    AND JobRuns.State = r.State
RETURNING JobRuns.RunId;

-- name: read_refused
-- parameters: ?1 namespace text(100)
-- rows: run_id id, claim_id id, fence bigint
-- returns: run_id id, State text, Reason text, IsItsClaim int, HasStarted int
-- Why starts were refused. A missing row: there is no such run in this namespace, or its history is gone.
WITH p (run_id, claim_id, fence) AS (:rows)

SELECT
    p.run_id, r.State, r.Reason,
    -- A late start of a dispatched run raised the run's fence above that of its message.
    CASE
        WHEN r.ClaimId = p.claim_id AND (r.Fence = p.fence OR (r.Fence > p.fence AND r.StartedAt IS NOT NULL)) THEN 1
        ELSE 0
    END AS IsItsClaim,
    CASE WHEN r.StartedAt IS NULL THEN 0 ELSE 1 END AS HasStarted
FROM p
CROSS JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE r.Namespace = ?1;

-- name: postpone_starts
-- parameters: ?1 now instant, ?2 namespace text(100)
-- rows: run_id id, claim_id id, fence bigint, celery_retries int
-- returns: RunId id
-- A worker holds the messages of these runs and has not begun them: their deadlines move on, never back.
-- A missing row: it has begun, or has no deadline, or the claim is another's.
WITH p (run_id, claim_id, fence, celery_retries) AS (:rows)

UPDATE Jobs SET
    -- What a worker holds was published, even where its beat has not said so yet.
    PublishedAt = coalesce(Jobs.PublishedAt, ?1),
    LeaseEndsAt = max(Jobs.LeaseEndsAt, after(?1, r.LeaseSeconds))
FROM p
CROSS JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE
    r.Namespace = ?2 AND r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.State IN ('claimed', 'running')
    AND Jobs.Id = r.JobId AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL AND (Jobs.StartedRetry IS NULL OR Jobs.StartedRetry < p.celery_retries)
RETURNING RunId;

-- name: extend_leases
-- parameters: ?1 now instant
-- rows: job_id id, run_id id, claim_id id, fence bigint, lease_seconds seconds
-- returns: RunId id
-- A missing row: the lease is lost, and its task must stop; or somebody keeps the job's row locked, as
-- read_busy_leases tells. One such row must not keep all the others waiting until their leases end.
WITH p (job_id, run_id, claim_id, fence, lease_seconds) AS (:rows)

UPDATE Jobs SET
    LockedAt = ?1,
    LeaseEndsAt = after(?1, p.lease_seconds)
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL
RETURNING RunId;

-- name: read_busy_leases
-- rows: job_id id, run_id id, claim_id id, fence bigint
-- returns: run_id id
-- Of leases that extend_leases missed. A row: it is still its holder's. A missing row: it is lost.
WITH p (job_id, run_id, claim_id, fence) AS (:rows)

SELECT p.run_id
FROM p
CROSS JOIN Jobs AS j ON j.Id = p.job_id
WHERE j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence AND j.LockedBy IS NOT NULL;

-- name: extend_held
-- parameters: ?1 now instant
-- rows: run_id id, claim_id id, fence bigint, lease_seconds seconds
-- returns: RunId id
-- The same for runs that overlap others. A missing row: it was taken for lost, or its row is locked.
WITH p (run_id, claim_id, fence, lease_seconds) AS (:rows)

UPDATE JobRuns SET LeaseEndsAt = after(?1, p.lease_seconds)
FROM p
WHERE
    JobRuns.RunId = p.run_id AND JobRuns.ClaimId = p.claim_id AND JobRuns.Fence = p.fence
    AND JobRuns.HeldBy IS NOT NULL
RETURNING RunId;

-- name: read_busy_held
-- rows: run_id id, claim_id id, fence bigint
-- returns: run_id id
-- Of leases that extend_held missed, as read_busy_leases.
WITH p (run_id, claim_id, fence) AS (:rows)

SELECT p.run_id
FROM p
CROSS JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.HeldBy IS NOT NULL;

-- name: start_jobs
-- parameters: ?1 namespace text(100), ?2 worker text(200), ?3 now instant
-- rows: run_id id, claim_id id, fence bigint, start_id id, celery_retries int
-- returns: RunId id, Fence bigint, Published instant
-- A missing row: the message is stale, a duplicate, or another run holds the job; or it needs no lease of the job's, as
-- start_runs says.
WITH p (run_id, claim_id, fence, start_id, celery_retries) AS (:rows),

r AS MATERIALIZED (
    SELECT p.run_id, p.claim_id, p.celery_retries, p.start_id, r.JobId, r.Fence, r.State, r.LeaseSeconds, r.StartId,
        r.CancelAt
    FROM p
    CROSS JOIN JobRuns AS r ON r.RunId = p.run_id
    WHERE
        r.ClaimId = p.claim_id AND r.Namespace = ?1 AND r.Exclusive = 1
        -- A late start of a dispatched run raised the run's fence above that of its message.
        AND (r.Fence = p.fence OR (r.Fence > p.fence AND r.PriorState = 'dispatched'))
        AND (r.State IN ('claimed', 'running') OR (r.State = 'dispatched' AND r.Reason = 'never started'))
)

UPDATE Jobs SET
    LockedBy = ?2,
    LockedAt = ?3,
    LeaseEndsAt = after(?3, r.LeaseSeconds),
    ClaimedAt = coalesce(Jobs.ClaimedAt, ?3),
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
-- parameters: ?1 now instant, ?2 worker text(200), ?3 namespace text(100)
-- rows: run_id id, claim_id id, fence bigint, start_id id, celery_retries int, job_fence bigint, published instant
-- returns: RunId id, ClaimId id, Fence bigint, JobId id, JobName text(200), Kind text, ScheduledFor instant,
--   Attempt int, LeaseSeconds seconds, MaxRetries int, Failures int, LostLeases int, Exclusive flag,
--   MaxRuntimeSeconds seconds
-- `job_fence` and `published` are what start_jobs gave, NULL where it did not win: then only a run may begin that needs no
-- lease of its job's. Such is one that may overlap others, and one that was fired and forgotten: its job has gone on, and
-- another run may hold it. It begins as stock beat would have it, under a lease of its own, and overlaps from there on.
-- A missing row: see read_refused.
WITH p (run_id, claim_id, fence, start_id, celery_retries, job_fence, published) AS (:rows)

UPDATE JobRuns SET
    State = 'running',
    PriorState = CASE WHEN JobRuns.State = 'running' THEN JobRuns.PriorState ELSE JobRuns.State END,
    Fence = coalesce(p.job_fence, JobRuns.Fence),
    -- What begins was published, even where its beat has not said so yet.
    PublishedAt = coalesce(JobRuns.PublishedAt, p.published, ?1),
    StartedBy = ?2,
    StartId = p.start_id,
    StartedAt = coalesce(JobRuns.StartedAt, ?1),
    StartedRetry = p.celery_retries,
    Exclusive = CASE WHEN p.job_fence IS NULL THEN 0 ELSE JobRuns.Exclusive END,
    HeldBy = CASE WHEN p.job_fence IS NULL THEN ?2 END,
    LeaseEndsAt = CASE WHEN p.job_fence IS NULL THEN after(?1, JobRuns.LeaseSeconds) END
FROM p
WHERE
    JobRuns.RunId = p.run_id AND JobRuns.ClaimId = p.claim_id AND JobRuns.Namespace = ?3
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
