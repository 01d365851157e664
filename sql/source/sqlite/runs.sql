-- name: lock_claims
-- rows: job_id, run_id
-- returns: RunId
-- What a beat may release without waiting for anybody: here who writes has locked everything already.
-- A missing row: its history is gone.
WITH p AS (:rows)

SELECT r.RunId
FROM p
LOOP JOIN JobRuns AS r ON r.RunId = p.run_id;

-- name: release_jobs
-- rows: job_id, run_id, claim_id, fence, started_retry, state, retry_seconds
-- returns: Id, Unforeseen
-- A missing row: the claim was taken over, or (only_unstarted) a worker has started it meanwhile,
-- or (only_ended) its lease was extended, or (only_replaceable) its next slot has not come, or the job is paused;
-- or (started_retry) a later retry of Celery's has begun.
-- Unforeseen: due at another instant than the claim planned, or due already, or to be deleted now that it is free; then
-- the other beats must be told.
WITH p AS (:rows),

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
            ELSE after(later(:now, r.ScheduledFor), r.DelaySeconds)
        END AS NextSlot
    FROM p
    LOOP JOIN JobRuns AS r ON r.RunId = p.run_id
)

-- include: release_jobs
RETURNING
    Id,
    -- Not IS NULL: within RETURNING, SQLite 3.40 takes it for false wherever the key of the table is NOT NULL.
    CASE
        -- Whoever waits for a one-off finds it by its instant.
        WHEN OneOff = 1 THEN 0
        WHEN
            coalesce(RetryAt, '') = '' AND NextRunTime = PlannedAt AND NextRunTime > :now AND DeleteRequested = 0
            THEN 0
        ELSE 1
    END AS Unforeseen;

-- name: close_runs
-- rows: run_id, claim_id, fence, started_retry, released, state, via, reason, retry_seconds, failures, lost_leases,
--   error, traceback
-- returns: RunId, Doomed
-- A missing row: the run is not in these hands, or its outcome is written already, or a later retry of Celery's began.
-- Doomed: it overlapped others, and its job is to be deleted once the last of them has ended; or it is a one-off that waits
-- in the outbox. The beats must be told.
WITH p AS (:rows)

-- include: close_runs
RETURNING
    RunId,
    CASE
        WHEN Kind = 'one_off' AND coalesce(DueAt, '') <> '' THEN 1
        WHEN Exclusive = 0 AND EXISTS (SELECT 1 FROM Jobs AS d WHERE d.Id = JobId AND d.DeleteRequested = 1) THEN 1
        ELSE 0
    END AS Doomed;
