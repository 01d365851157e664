-- name: start_at_once
-- rows: run_id, claim_id, fence, start_id, celery_retries
-- returns: RunId, ClaimId, Fence, JobId, JobName, Kind, ScheduledFor, Attempt, LeaseSeconds, MaxRetries, Failures,
--   LostLeases, Exclusive, MaxRuntimeSeconds
-- Begins runs in one statement. The leases of the jobs are taken over where the message is no stale one and no duplicate,
-- and no other run holds the job. Where it did not win, only a run may begin that needs no lease of its job's. Such is one
-- that may overlap others, and one that was fired and forgotten: its job has gone on, and another run may hold it. It
-- begins as stock beat would have it, under a lease of its own, and overlaps from there on.
-- A missing row: see read_refused; or the run was dispatched while this block waited for the job's row, so ask again.
-- It commits before it answers, so that a client that does not read the answer keeps no locks.
DECLARE @dispatched TABLE (RunId uniqueidentifier NOT NULL, SeenFence bigint NOT NULL);
DECLARE @started TABLE (RunId uniqueidentifier NOT NULL, Fence bigint NOT NULL, Published datetime2(6) NULL);
DECLARE @begun TABLE (
    RunId uniqueidentifier NOT NULL,
    ClaimId uniqueidentifier NULL,
    Fence bigint NOT NULL,
    JobId uniqueidentifier NOT NULL,
    JobName nvarchar(200) NOT NULL,
    Kind varchar(20) NOT NULL,
    ScheduledFor datetime2(6) NOT NULL,
    Attempt int NOT NULL,
    LeaseSeconds float(53) NOT NULL,
    MaxRetries int NOT NULL,
    Failures int NOT NULL,
    LostLeases int NOT NULL,
    Exclusive bit NOT NULL,
    MaxRuntimeSeconds float(53) NULL
);

BEGIN TRANSACTION;

-- The fences of the jobs first, the states of their runs after it: if the first is unchanged in the end, so is the other.
INSERT INTO @dispatched (RunId, SeenFence)
SELECT DISTINCT r.RunId, j.Fence
FROM p (run_id)
INNER JOIN JobRuns AS r ON r.RunId = p.run_id
INNER JOIN Jobs AS j ON j.Id = r.JobId
WHERE r.State = 'dispatched' AND r.Reason = 'never started'
OPTION (LOOP JOIN, FORCE ORDER);

UPDATE j
SET
    LockedBy = :worker,
    LockedAt = :now,
    LeaseEndsAt = after(:now, r.LeaseSeconds),
    ClaimedAt = COALESCE(j.ClaimedAt, :now),
    StartedRetry = p.celery_retries,
    RunId = p.run_id,
    ClaimId = p.claim_id,
    Fence = CASE WHEN r.State = 'dispatched' THEN j.Fence + 1 ELSE j.Fence END
OUTPUT inserted.RunId, inserted.Fence, inserted.PublishedAt INTO @started (RunId, Fence, Published)
FROM p
INNER JOIN JobRuns AS r ON r.RunId = p.run_id
LEFT OUTER JOIN @dispatched AS d ON d.RunId = p.run_id
INNER JOIN Jobs AS j WITH (ROWLOCK) ON j.Id = r.JobId
WHERE
    r.ClaimId = p.claim_id AND r.Namespace = :namespace AND r.Exclusive = 1
    -- A late start of a dispatched run raised the run's fence above that of its message.
    AND (r.Fence = p.fence OR (r.Fence > p.fence AND r.PriorState = 'dispatched'))
    AND (r.State IN ('claimed', 'running') OR (r.State = 'dispatched' AND r.Reason = 'never started'))
    AND (
        (
            r.State IN ('claimed', 'running') AND j.RunId = p.run_id AND j.ClaimId = p.claim_id
            AND j.Fence = r.Fence AND j.LockedBy IS NOT NULL
            -- One time only: a later retry by Celery itself, or the same question again before such a retry.
            AND (
                j.StartedRetry IS NULL
                OR (j.StartedRetry < p.celery_retries AND r.CancelAt IS NULL)
                OR (j.StartedRetry = p.celery_retries AND r.StartId = p.start_id)
            )
        )
        -- Not where an unlocking by hand left a run behind: the row must not forget it. Nor where the fence has grown
        -- since it was read: another copy may have run meanwhile.
        OR (
            r.State = 'dispatched' AND j.LockedBy IS NULL AND j.RunId IS NULL AND j.Fence = d.SeenFence
            AND j.DeleteRequested = 0
        )
    )
OPTION (LOOP JOIN, FORCE ORDER);

UPDATE r
SET
    State = 'running',
    PriorState = CASE WHEN r.State = 'running' THEN r.PriorState ELSE r.State END,
    Fence = COALESCE(p.job_fence, r.Fence),
    -- What begins was published, even where its beat has not said so yet.
    PublishedAt = COALESCE(r.PublishedAt, p.published, :now),
    StartedBy = :worker,
    StartId = p.start_id,
    StartedAt = COALESCE(r.StartedAt, :now),
    StartedRetry = p.celery_retries,
    Exclusive = CASE WHEN p.job_fence IS NULL THEN 0 ELSE r.Exclusive END,
    HeldBy = CASE WHEN p.job_fence IS NULL THEN :worker END,
    LeaseEndsAt = CASE
        WHEN p.job_fence IS NULL
            THEN after(:now, r.LeaseSeconds)
    END
OUTPUT
    inserted.RunId, inserted.ClaimId, inserted.Fence, inserted.JobId, inserted.JobName, inserted.Kind,
    inserted.ScheduledFor, inserted.Attempt, inserted.LeaseSeconds, inserted.MaxRetries, inserted.Failures,
    inserted.LostLeases, inserted.Exclusive, inserted.MaxRuntimeSeconds
INTO @begun (
    RunId, ClaimId, Fence, JobId, JobName, Kind, ScheduledFor, Attempt, LeaseSeconds, MaxRetries, Failures, LostLeases,
    Exclusive, MaxRuntimeSeconds
)
FROM (
    SELECT
        g.run_id, g.claim_id, g.fence, g.start_id, g.celery_retries, s.Fence AS job_fence, s.Published AS published
    FROM p AS g
    LEFT OUTER JOIN @started AS s ON s.RunId = g.run_id
) AS p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE
    r.ClaimId = p.claim_id AND r.Namespace = :namespace
    AND (
        p.job_fence IS NOT NULL
        OR (
            r.Fence = p.fence
            AND (
                -- After its last deadline a leased slot needs its lease all the same, as start_jobs says.
                (
                    r.State = 'dispatched' AND r.StartedAt IS NULL
                    AND (r.Exclusive = 0 OR COALESCE(r.Reason, '') <> 'never started')
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
            AND (
                r.State = 'running'
                -- The run's row first and the job's then. A deletion comes before this lock, or after the start.
                OR EXISTS (
                    SELECT 1
                    FROM Jobs AS j WITH (REPEATABLEREAD, ROWLOCK)
                    WHERE j.Id = r.JobId AND j.DeleteRequested = 0
                )
            )
        )
    )
OPTION (LOOP JOIN, FORCE ORDER);

COMMIT TRANSACTION;

SELECT
    RunId, ClaimId, Fence, JobId, JobName, Kind, ScheduledFor, Attempt, LeaseSeconds, MaxRetries, Failures, LostLeases,
    Exclusive, MaxRuntimeSeconds
FROM @begun;

-- name: refuse_starts
UPDATE r
SET
    State = CASE WHEN j.Id IS NULL OR j.DeleteRequested = 1 THEN 'cancelled' ELSE 'skipped' END,
    PriorState = r.State,
    Reason = CASE WHEN j.Id IS NULL OR j.DeleteRequested = 1 THEN 'job deleted' ELSE 'overlap' END,
    FinishedAt = :now
OUTPUT inserted.:returns INTO @refused
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
LEFT OUTER JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.Namespace = :namespace
    AND r.StartedAt IS NULL AND (r.State = 'dispatched' OR (r.State = 'claimed' AND r.Exclusive = 0))
    AND (
        j.Id IS NULL OR j.DeleteRequested = 1
        OR (r.Exclusive = 1 AND r.Reason = 'never started' AND (j.LockedBy IS NOT NULL OR j.RunId IS NOT NULL))
    )
OPTION (LOOP JOIN, FORCE ORDER);

-- name: postpone_starts
-- A worker holds the messages of these runs and has not begun them: their deadlines move on, never back.
-- A missing row: it has begun, or has no deadline, or the claim is another's; or somebody keeps a row locked.
UPDATE j
SET
    -- What a worker holds was published, even where its beat has not said so yet.
    PublishedAt = COALESCE(j.PublishedAt, :now),
    LeaseEndsAt = CASE WHEN j.LeaseEndsAt > d.EndsAt THEN j.LeaseEndsAt ELSE d.EndsAt END
OUTPUT inserted.:returns INTO @postponed
FROM p
INNER JOIN JobRuns AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.RunId = p.run_id
CROSS APPLY (
    SELECT
        after(:now, r.LeaseSeconds) AS EndsAt
) AS d
INNER JOIN Jobs AS j WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = r.JobId
WHERE
    r.Namespace = :namespace AND r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.State IN ('claimed', 'running')
    AND j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence AND j.LockedBy IS NOT NULL
    AND (j.StartedRetry IS NULL OR j.StartedRetry < p.celery_retries)
OPTION (LOOP JOIN, FORCE ORDER);

-- name: extend_leases
UPDATE j
SET
    LockedAt = :now,
    LeaseEndsAt = after(:now, p.lease_seconds)
OUTPUT inserted.:returns INTO @extended
FROM p
INNER JOIN Jobs AS j WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
WHERE j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence AND j.LockedBy IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_busy_leases
-- Of leases that extend_leases missed. A row: it is still its holder's, or locked. A missing row: it is lost.
-- A locked row is told from a deleted one by the key of the primary index, which nobody locks who changes the row.
SELECT p.run_id
FROM p
INNER JOIN Jobs AS k WITH (INDEX (Jobs_Key), READPAST, ROWLOCK, READCOMMITTEDLOCK) ON k.Id = p.job_id
LEFT OUTER JOIN Jobs AS j WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.Id = p.job_id
WHERE
    j.Id IS NULL
    OR (j.RunId = p.run_id AND j.ClaimId = p.claim_id AND j.Fence = p.fence AND j.LockedBy IS NOT NULL)
OPTION (LOOP JOIN, FORCE ORDER);

-- name: extend_held
UPDATE r
SET
    LeaseEndsAt = after(:now, p.lease_seconds)
OUTPUT inserted.:returns INTO @extended
FROM p
INNER JOIN JobRuns AS r WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.RunId = p.run_id
WHERE r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.HeldBy IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_busy_held
SELECT p.run_id
FROM p
INNER JOIN JobRuns AS k WITH (INDEX (JobRuns_Key), READPAST, ROWLOCK, READCOMMITTEDLOCK) ON k.RunId = p.run_id
LEFT OUTER JOIN JobRuns AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.RunId = p.run_id
WHERE
    r.RunId IS NULL
    OR (r.ClaimId = p.claim_id AND r.Fence = p.fence AND r.HeldBy IS NOT NULL)
OPTION (LOOP JOIN, FORCE ORDER);
