-- What a worker reads and writes. Batches, locks and the clock as in beat.sql.

-- name: refuse_starts
-- rows: run_id, claim_id, fence
-- returns: RunId
-- Of starts that were refused: what was sent and cannot begin any more gets its outcome. A missing row: it has one, it
-- waits on, or its claim is another one.
WITH p AS (:rows),

r AS MATERIALIZED (
    SELECT r.RunId, r.ClaimId, r.Fence, r.State, j.Id IS NULL OR j.DeleteRequested = 1 AS IsDeleted
    FROM p
    LOOP JOIN JobRuns AS r ON r.RunId = key(p.run_id)
    LEFT JOIN Jobs AS j ON j.Id = key(r.JobId)
    WHERE
        r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.Namespace = :namespace
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
    FinishedAt = :now
FROM r
WHERE
    JobRuns.RunId = key(r.RunId) AND JobRuns.ClaimId = r.ClaimId AND JobRuns.Fence = r.Fence
    AND JobRuns.State = r.State
RETURNING JobRuns.RunId;

-- name: read_refused
-- rows: run_id, claim_id, fence
-- returns: run_id, State, Reason, IsItsClaim, HasStarted
-- Why starts were refused. A missing row: there is no such run in this namespace, or its history is gone.
WITH p AS (:rows)

SELECT
    p.run_id, r.State, r.Reason,
    -- A late start of a dispatched run raised the run's fence above that of its message.
    CASE
        WHEN r.ClaimId = p.claim_id AND (r.Fence = p.fence OR (r.Fence > p.fence AND r.StartedAt IS NOT NULL)) THEN 1
        ELSE 0
    END AS IsItsClaim,
    CASE WHEN r.StartedAt IS NULL THEN 0 ELSE 1 END AS HasStarted
FROM p
LOOP JOIN JobRuns AS r ON r.RunId = key(p.run_id)
WHERE r.Namespace = :namespace;

-- name: postpone_starts
-- rows: run_id, claim_id, fence, celery_retries
-- returns: RunId
-- A worker holds the messages of these runs and has not begun them: their deadlines move on, never back.
-- A missing row: it has begun, or has no deadline, or the claim is another's.
WITH p AS (:rows)

UPDATE Jobs SET
    -- What a worker holds was published, even where its beat has not said so yet.
    PublishedAt = coalesce(Jobs.PublishedAt, :now),
    LeaseEndsAt = later(Jobs.LeaseEndsAt, after(:now, r.LeaseSeconds))
FROM p
LOOP JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE
    r.Namespace = :namespace AND r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.State IN ('claimed', 'running')
    AND Jobs.Id = r.JobId AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL AND (Jobs.StartedRetry IS NULL OR Jobs.StartedRetry < p.celery_retries)
RETURNING RunId;

-- name: extend_leases
-- rows: job_id, run_id, claim_id, fence, lease_seconds
-- returns: RunId
-- A missing row: the lease is lost, and its task must stop; or somebody keeps the job's row locked, as
-- read_busy_leases tells. One such row must not keep all the others waiting until their leases end.
WITH p AS (:rows)

UPDATE Jobs SET
    LockedAt = :now,
    LeaseEndsAt = after(:now, p.lease_seconds)
FROM p
WHERE
    Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence
    AND Jobs.LockedBy IS NOT NULL
RETURNING RunId;

-- name: read_busy_leases
-- rows: job_id, run_id, claim_id, fence
-- returns: run_id
-- Of leases that extend_leases missed. A row: it is still its holder's. A missing row: it is lost.
WITH p AS (:rows)

SELECT p.run_id
FROM p
LOOP JOIN Jobs AS j ON j.Id = key(p.job_id)
WHERE j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence AND j.LockedBy IS NOT NULL;

-- name: extend_held
-- rows: run_id, claim_id, fence, lease_seconds
-- returns: RunId
-- The same for runs that overlap others. A missing row: it was taken for lost, or its row is locked.
WITH p AS (:rows)

UPDATE JobRuns SET LeaseEndsAt = after(:now, p.lease_seconds)
FROM p
WHERE
    JobRuns.RunId = p.run_id AND JobRuns.ClaimId = p.claim_id AND JobRuns.Fence = p.fence
    AND JobRuns.HeldBy IS NOT NULL
RETURNING RunId;

-- name: read_busy_held
-- rows: run_id, claim_id, fence
-- returns: run_id
-- Of leases that extend_held missed, as read_busy_leases.
WITH p AS (:rows)

SELECT p.run_id
FROM p
LOOP JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.HeldBy IS NOT NULL;
