-- Written by `make sql` from sql/source: change it there.
-- How somebody ends a run that others hold, or that waits. Batches, locks and the clock as in beat.sql.

-- name: read_cancellable
-- parameters: $2 namespace text(100)
-- rows: $1 run_id id
-- returns: RunId id, JobId id, State text, Fence bigint, Exclusive flag, ClaimId id, DueAt instant, StartedAt instant,
--   HeldBy text, CancelAt instant, Reason text, JobFence bigint, LockedBy text, LeftRunId id, WaitingRunId id,
--   IsFollowed int, Now instant
-- LeftRunId and WaitingRunId: the run that holds the job, or did so, and the one that waits for its next attempt.
-- A missing row: there is no such run in this namespace.
WITH p (run_id) AS (SELECT * FROM unnest($1::uuid[]))

SELECT
    r.RunId, r.JobId, r.State, r.Fence, r.Exclusive, r.ClaimId, r.DueAt, r.StartedAt, r.HeldBy, r.CancelAt, r.Reason,
    j.Fence AS JobFence, j.LockedBy, j.RunId AS LeftRunId, j.RetryRunId AS WaitingRunId,
    CASE
        WHEN EXISTS (
            SELECT 1
            FROM JobRuns AS n
            WHERE n.JobId = r.JobId AND n.ScheduledFor = r.ScheduledFor AND n.Kind = r.Kind AND n.Attempt > r.Attempt
        ) THEN 1
        ELSE 0
    END AS IsFollowed,
    statement_timestamp() AS Now
FROM p
INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[p.run_id])
LEFT JOIN Jobs AS j ON j.Id = ANY(ARRAY[r.JobId])
WHERE r.Namespace = $2;

-- name: read_asked
-- rows: $1 run_id id
-- returns: RunId id, CancelBy text, CancelReason text, CancelAt instant
-- A missing row: nobody has asked to cancel it.
WITH p (run_id) AS (SELECT * FROM unnest($1::uuid[]))

SELECT r.RunId, r.CancelBy, r.CancelReason, r.CancelAt
FROM p
INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[p.run_id])
WHERE r.CancelAt IS NOT NULL;

-- name: ask_runs
-- rows: $1 run_id id, $2 state word(20), $3 fence bigint, $4 cancel_by text(200), $5 cancel_reason text(400),
--   $6 reason text(400)
-- returns: RunId id
-- From here on these runs can only end as cancelled. A missing row: it is not as it was read, or was asked before.
WITH p (run_id, state, fence, cancel_by, cancel_reason, reason) AS (SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[]))

UPDATE JobRuns SET
    CancelAt = statement_timestamp(),
    CancelBy = p.cancel_by,
    CancelReason = p.cancel_reason,
    Reason = p.reason
FROM p
WHERE
    JobRuns.RunId = ANY(ARRAY[p.run_id]) AND JobRuns.State = p.state AND JobRuns.Fence = p.fence AND JobRuns.CancelAt IS NULL
RETURNING JobRuns.RunId;

-- name: pass_by_waiting
-- rows: $1 job_id id, $2 run_id id, $3 fence bigint
-- returns: Id id
-- Jobs go on without a run that nobody holds: to their next slots, where it is the one that they wait for. Their fences
-- grow, so that nobody who has read them before claims it. A missing row: the job has changed since it was read.
WITH p (job_id, run_id, fence) AS (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[])),

r AS MATERIALIZED (
    SELECT
        p.job_id, p.run_id, p.fence, r.Advances, r.SeenNextRunTime,
        CASE
            WHEN r.DelaySeconds IS NULL THEN r.PlannedAt
            ELSE greatest(statement_timestamp(), r.ScheduledFor) + r.DelaySeconds * interval '1 second'
        END AS NextSlot
    FROM p
    INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[p.run_id])
)

UPDATE Jobs SET
    -- Of a job that another run holds, the end of that one raises it.
    Fence = Jobs.Fence + CASE WHEN Jobs.LockedBy IS NULL THEN 1 ELSE 0 END,
    RunId = CASE WHEN Jobs.LockedBy IS NULL AND Jobs.RunId = r.run_id THEN NULL ELSE Jobs.RunId END,
    ClaimId = CASE WHEN Jobs.LockedBy IS NULL AND Jobs.RunId = r.run_id THEN NULL ELSE Jobs.ClaimId END,
    RetryAt = CASE WHEN Jobs.RetryRunId = r.run_id THEN NULL ELSE Jobs.RetryAt END,
    RetryRunId = CASE WHEN Jobs.RetryRunId = r.run_id THEN NULL ELSE Jobs.RetryRunId END,
    -- Another NextRunTime than the claim saw is an operator's, and wins.
    NextRunTime = CASE
        WHEN
            (Jobs.RetryRunId = r.run_id OR (Jobs.LockedBy IS NULL AND Jobs.RunId = r.run_id AND r.Advances = 1))
            AND Jobs.NextRunTime IS NOT DISTINCT FROM r.SeenNextRunTime
            THEN r.NextSlot
        ELSE Jobs.NextRunTime
    END,
    Enabled = CASE
        WHEN
            (Jobs.RetryRunId = r.run_id OR (Jobs.LockedBy IS NULL AND Jobs.RunId = r.run_id AND r.Advances = 1))
            AND Jobs.NextRunTime IS NOT DISTINCT FROM r.SeenNextRunTime AND r.NextSlot IS NULL
            THEN 0
        ELSE Jobs.Enabled
    END,
    DisabledReason = CASE
        WHEN
            (Jobs.RetryRunId = r.run_id OR (Jobs.LockedBy IS NULL AND Jobs.RunId = r.run_id AND r.Advances = 1))
            AND Jobs.NextRunTime IS NOT DISTINCT FROM r.SeenNextRunTime AND r.NextSlot IS NULL
            THEN 'finished'
        ELSE Jobs.DisabledReason
    END
FROM r
WHERE Jobs.Id = ANY(ARRAY[r.job_id]) AND Jobs.Fence = r.fence
RETURNING Jobs.Id;

-- name: cancel_runs
-- rows: $1 run_id id, $2 state word(20), $3 fence bigint, $4 cancel_by text(200), $5 cancel_reason text(400),
--   $6 reason text(400)
-- returns: RunId id
-- Ends runs that nobody holds. A missing row: it is not as it was read.
WITH p (run_id, state, fence, cancel_by, cancel_reason, reason) AS (SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[]))

UPDATE JobRuns SET
    State = 'cancelled',
    PriorState = JobRuns.State,
    Reason = p.reason,
    DueAt = NULL,
    FinishedAt = statement_timestamp(),
    HeldBy = NULL,
    LeaseEndsAt = NULL,
    CancelAt = statement_timestamp(),
    CancelBy = p.cancel_by,
    CancelReason = p.cancel_reason
FROM p
WHERE JobRuns.RunId = ANY(ARRAY[p.run_id]) AND JobRuns.State = p.state AND JobRuns.Fence = p.fence
RETURNING JobRuns.RunId;
