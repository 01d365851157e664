-- part: ended
released AS (
    WITH p (job_id, run_id, claim_id, fence, started_retry, state, retry_seconds) AS (
        SELECT job_id, run_id, claim_id, fence, started_retry, state, retry_seconds FROM given
    ),

    r AS MATERIALIZED (
        SELECT
            p.job_id, p.run_id, p.claim_id, p.fence, p.started_retry, p.state, r.Exclusive, r.Advances, r.SeenNextRunTime,
            -- An overlapping run that has begun goes on by itself, whatever becomes of it: its job takes the next slot.
            -- Its start does not lock the job, so its own row is locked here, before the job's.
            -- Nothing follows what somebody asks to cancel at this moment: both rows are locked before it is looked at.
            CASE
                WHEN p.retry_seconds IS NOT NULL AND r.Exclusive = 1 THEN CASE
                    WHEN (SELECT 1 FROM Jobs AS k WHERE k.Id = p.job_id FOR NO KEY UPDATE) IS NULL THEN NULL
                    WHEN (SELECT c.CancelAt FROM JobRuns AS c WHERE c.RunId = p.run_id FOR NO KEY UPDATE) IS NULL THEN p.retry_seconds
                END
                WHEN r.Exclusive = 1 THEN NULL
                WHEN (SELECT b.State FROM JobRuns AS b WHERE b.RunId = p.run_id FOR UPDATE) <> 'running' THEN p.retry_seconds
            END AS retry_seconds,
            CASE
                WHEN r.DelaySeconds IS NULL THEN r.PlannedAt
                ELSE after(later(:now, r.ScheduledFor), r.DelaySeconds)
            END AS NextSlot
        FROM p
        INNER JOIN JobRuns AS r ON r.RunId = key(p.run_id)
    )

    -- include: release_jobs
    RETURNING
        Jobs.Id,
        CASE
            -- Whoever waits for a one-off finds it by its instant.
            WHEN Jobs.OneOff = 1 THEN 0
            WHEN
                Jobs.RetryAt IS NULL AND Jobs.NextRunTime = Jobs.PlannedAt AND Jobs.NextRunTime > :now
                AND Jobs.DeleteRequested = 0
                THEN 0
            ELSE 1
        END AS Unforeseen
),

p (
    run_id, claim_id, fence, started_retry, released, state, via, reason, retry_seconds, failures, lost_leases,
    error, traceback
) AS (
    SELECT
        g.run_id, g.claim_id, g.fence, g.started_retry,
        CASE WHEN g.job_id IN (SELECT Id FROM released) THEN 1 ELSE 0 END,
        g.state, g.via, g.reason, g.retry_seconds, g.failures, g.lost_leases, g.error, g.traceback
    FROM given AS g
),

closed AS (
    -- include: close_runs
    RETURNING
        JobRuns.RunId,
        CASE
            WHEN JobRuns.Kind = 'one_off' AND JobRuns.DueAt IS NOT NULL THEN 1
            WHEN
                JobRuns.Exclusive = 0
                AND (SELECT d.DeleteRequested FROM Jobs AS d WHERE d.Id = key(JobRuns.JobId)) = 1
                THEN 1
            ELSE 0
        END AS Doomed
),

bumped AS (
    INSERT INTO Changes (Namespace, Counter)
    SELECT :namespace, 1
    WHERE EXISTS (SELECT 1 FROM released WHERE Unforeseen = 1) OR EXISTS (SELECT 1 FROM closed WHERE Doomed = 1)
    ON CONFLICT (Namespace) DO UPDATE SET Counter = Changes.Counter + 1
)

-- name: finish_at_once
-- rows: job_id, run_id, claim_id, fence, started_retry, state, via, reason, retry_seconds, failures, lost_leases,
--   error, traceback
-- returns: RunId
-- Ends runs and frees their jobs in one statement, and tells the other beats of what they cannot foresee: a job that is due
-- at another instant than the claim planned, or already, or to be deleted now that it is free.
-- A missing row: the run is not in these hands, its outcome is written already, or a later retry of Celery's has begun.
WITH given AS (:rows),

-- include: ended

SELECT RunId FROM closed;

-- name: release_at_once
-- rows: job_id, run_id, claim_id, fence, started_retry, state, via, reason, retry_seconds, failures, lost_leases,
--   error, traceback
-- returns: RunId
-- The same for a beat, which passes by what somebody keeps locked. It is told of the jobs that it has freed as well, by their
-- ids: an overlapping run that has begun goes on by itself.
WITH asked AS (:rows),

given AS MATERIALIZED (
    WITH p AS (SELECT * FROM asked)

    SELECT p.*
    FROM p
    INNER JOIN JobRuns AS r ON r.RunId = key(p.run_id)
    WHERE
        (SELECT 1 FROM Jobs AS j WHERE j.Id = p.job_id FOR NO KEY UPDATE SKIP LOCKED) = 1
        OR NOT EXISTS (SELECT 1 FROM Jobs AS k WHERE k.Id = p.job_id)
    -- All of them are looked at before the first is released: an overlapping run may be there twice, once for its job.
    ORDER BY p.run_id
    FOR NO KEY UPDATE OF r SKIP LOCKED
),

-- include: ended

SELECT RunId FROM closed
UNION ALL
SELECT Id FROM released;
