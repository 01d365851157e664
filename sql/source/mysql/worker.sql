-- What a worker reads and writes. The clock as in beat.sql.

-- name: start_jobs
-- rows: run_id, claim_id, fence, start_id, celery_retries
-- returns: RunId, Fence, Published
-- A missing row: the message is stale, a duplicate, or another run holds the job; or it needs no lease of the job's, as
-- start_runs says; or the run was dispatched while this statement waited for the job's row, so ask again.
SELECT
    json_arrayagg(
        json_array(
            j.Id, r.run_id, r.claim_id, r.celery_retries, r.LeaseSeconds,
            CASE WHEN r.State = 'dispatched' THEN j.Fence + 1 ELSE j.Fence END, j.PublishedAt
        )
    )
INTO @won
FROM (
    SELECT
        p.run_id, p.claim_id, p.celery_retries, p.start_id, r.JobId, r.Fence, r.State, r.LeaseSeconds, r.StartId, r.CancelAt,
        CASE WHEN r.State = 'dispatched' THEN (SELECT s.Fence FROM Jobs AS s WHERE s.Id = r.JobId) END AS SeenFence
    FROM p
    STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
    WHERE
        r.ClaimId = p.claim_id AND r.Namespace = :namespace AND r.Exclusive = 1
        -- A late start of a dispatched run raised the run's fence above that of its message.
        AND (r.Fence = p.fence OR (r.Fence > p.fence AND r.PriorState = 'dispatched'))
        AND (r.State IN ('claimed', 'running') OR (r.State = 'dispatched' AND r.Reason = 'never started'))
) AS r
STRAIGHT_JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    (
        r.State IN ('claimed', 'running') AND j.RunId = r.run_id AND j.ClaimId = r.claim_id
        AND j.Fence = r.Fence AND j.LockedBy IS NOT NULL
        -- One time only: a later retry by Celery itself, or the same question again before such a retry.
        AND (
            j.StartedRetry IS NULL
            OR (j.StartedRetry < r.celery_retries AND r.CancelAt IS NULL)
            OR (j.StartedRetry = r.celery_retries AND r.StartId = r.start_id)
        )
    )
    -- Not where an unlocking by hand left a run behind: the row must not forget it. Nor where the fence has grown
    -- since the state was read: another copy may have run meanwhile.
    OR (
        r.State = 'dispatched' AND j.LockedBy IS NULL AND j.RunId IS NULL AND j.Fence = r.SeenFence
        AND j.DeleteRequested = 0
    )
FOR UPDATE;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            Id char(36) PATH '$[0]', RunId char(36) PATH '$[1]', ClaimId char(36) PATH '$[2]',
            Retries integer PATH '$[3]', LeaseSeconds double PATH '$[4]', Fence bigint PATH '$[5]'
        )
    ) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET
    j.LockedBy = :worker,
    j.LockedAt = :now,
    j.LeaseEndsAt = after(:now, w.LeaseSeconds),
    j.ClaimedAt = coalesce(j.ClaimedAt, :now),
    j.StartedRetry = w.Retries,
    j.RunId = w.RunId,
    j.ClaimId = w.ClaimId,
    j.Fence = w.Fence;

SELECT w.RunId, w.Fence, w.Published
FROM JSON_TABLE(
    @won, '$[*]' COLUMNS (RunId char(36) PATH '$[1]', Fence bigint PATH '$[5]', Published datetime(6) PATH '$[6]')
) AS w;

-- name: start_runs
-- rows: run_id, claim_id, fence, start_id, celery_retries, job_fence, published
-- returns: RunId, ClaimId, Fence, JobId, JobName, Kind, ScheduledFor, Attempt, LeaseSeconds, MaxRetries, Failures,
--   LostLeases, Exclusive, MaxRuntimeSeconds
-- `job_fence` and `published` are what start_jobs gave, NULL where it did not win: then only a run may begin that needs no
-- lease of its job's. Such is one that may overlap others, and one that was fired and forgotten: its job has gone on, and
-- another run may hold it. It begins as stock beat would have it, under a lease of its own, and overlaps from there on.
-- A missing row: see read_refused.
SELECT json_arrayagg(json_array(r.RunId, r.JobId, r.State))
INTO @free
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
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
FOR UPDATE;

-- The run's row first and the job's then, as release_jobs has it. A deletion comes before this lock, or after the start.
SELECT json_arrayagg(f.RunId)
INTO @there
FROM JSON_TABLE(
    @free, '$[*]' COLUMNS (RunId char(36) PATH '$[0]', JobId char(36) PATH '$[1]', State varchar(20) PATH '$[2]')
) AS f
STRAIGHT_JOIN Jobs AS j ON j.Id = f.JobId
WHERE f.State = 'running' OR j.DeleteRequested = 0
LOCK IN SHARE MODE;

UPDATE p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
SET
    r.PriorState = CASE WHEN r.State = 'running' THEN r.PriorState ELSE r.State END,
    r.State = 'running',
    r.Fence = coalesce(p.job_fence, r.Fence),
    -- What begins was published, even where its beat has not said so yet.
    r.PublishedAt = coalesce(r.PublishedAt, p.published, :now),
    r.StartedBy = :worker,
    r.StartId = p.start_id,
    r.StartedAt = coalesce(r.StartedAt, :now),
    r.StartedRetry = p.celery_retries,
    r.Exclusive = CASE WHEN p.job_fence IS NULL THEN 0 ELSE r.Exclusive END,
    r.HeldBy = CASE WHEN p.job_fence IS NULL THEN :worker END,
    r.LeaseEndsAt = CASE WHEN p.job_fence IS NULL THEN after(:now, r.LeaseSeconds) END
WHERE
    r.ClaimId = p.claim_id AND r.Namespace = :namespace
    AND (p.job_fence IS NOT NULL OR json_contains(@there, json_quote(p.run_id)));

SELECT
    r.RunId, r.ClaimId, r.Fence, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.Attempt, r.LeaseSeconds, r.MaxRetries,
    r.Failures, r.LostLeases, r.Exclusive, r.MaxRuntimeSeconds
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE
    r.ClaimId = p.claim_id AND r.Namespace = :namespace
    AND (p.job_fence IS NOT NULL OR json_contains(@there, json_quote(p.run_id)));

-- name: refuse_starts
SELECT
    json_arrayagg(
        json_array(
            r.RunId, r.ClaimId, r.Fence, r.State, CASE WHEN j.Id IS NULL OR j.DeleteRequested = 1 THEN 1 ELSE 0 END
        )
    )
INTO @won
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
LEFT JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.Namespace = :namespace
    AND r.StartedAt IS NULL AND (r.State = 'dispatched' OR (r.State = 'claimed' AND r.Exclusive = 0))
    AND (
        j.Id IS NULL OR j.DeleteRequested = 1
        OR (
            r.Exclusive = 1 AND r.Reason = 'never started'
            AND (j.LockedBy IS NOT NULL OR j.RunId IS NOT NULL)
        )
    );

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            RunId char(36) PATH '$[0]', ClaimId char(36) PATH '$[1]', Fence bigint PATH '$[2]',
            State varchar(20) PATH '$[3]', IsDeleted smallint PATH '$[4]'
        )
    ) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId
SET
    r.State = CASE WHEN w.IsDeleted = 1 THEN 'cancelled' ELSE 'skipped' END,
    r.PriorState = w.State,
    r.Reason = CASE WHEN w.IsDeleted = 1 THEN 'job deleted' ELSE 'overlap' END,
    r.FinishedAt = :now
WHERE r.ClaimId = w.ClaimId AND r.Fence = w.Fence AND r.State = w.State;

SELECT r.RunId
FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[0]')) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId
WHERE r.State IN ('cancelled', 'skipped');

-- name: postpone_starts
-- A worker holds the messages of these runs and has not begun them: their deadlines move on, never back.
-- A missing row: it has begun, or has no deadline, or the claim is another's; or somebody keeps the job's row locked.
SELECT json_arrayagg(json_array(j.Id, j.RunId, r.LeaseSeconds))
INTO @won
FROM (
    SELECT p.run_id, p.claim_id, p.fence, p.celery_retries, r.JobId, r.LeaseSeconds
    FROM p
    STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
    WHERE
        r.Namespace = :namespace AND r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.State IN ('claimed', 'running')
) AS r
STRAIGHT_JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    j.RunId = r.run_id AND j.ClaimId = r.claim_id AND j.Fence = r.fence AND j.LockedBy IS NOT NULL
    AND (j.StartedRetry IS NULL OR j.StartedRetry < r.celery_retries)
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', LeaseSeconds double PATH '$[2]')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET
    -- What a worker holds was published, even where its beat has not said so yet.
    j.PublishedAt = coalesce(j.PublishedAt, :now),
    j.LeaseEndsAt = greatest(j.LeaseEndsAt, after(:now, w.LeaseSeconds));

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[1]')) AS w;

-- name: extend_leases
SELECT json_arrayagg(json_array(j.Id, j.RunId, p.lease_seconds))
INTO @won
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
WHERE j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence AND j.LockedBy IS NOT NULL
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]', LeaseSeconds double PATH '$[2]')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET j.LockedAt = :now, j.LeaseEndsAt = after(:now, w.LeaseSeconds);

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[1]')) AS w;

-- name: extend_held
SELECT json_arrayagg(json_array(r.RunId, p.lease_seconds))
INTO @won
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.HeldBy IS NOT NULL
FOR UPDATE SKIP LOCKED;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[0]', LeaseSeconds double PATH '$[1]')) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId
SET r.LeaseEndsAt = after(:now, w.LeaseSeconds);

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[0]')) AS w;
