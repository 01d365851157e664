-- name: list_dead
SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = :namespace AND Dead = 1 AND RunId > uuid(:after_id)
ORDER BY RunId
LIMIT :page_size;

-- name: purge_runs
-- Ended rows older than the history is kept; dead letters stay until they are purged by name. No slot ends before its
-- instant, so the index by instants bounds the search. A batch begins at `after`, the instant at which the last one
-- ended: what lies before is gone, or is kept. Any number of beats share the work, as each passes the rows of the others by.
WITH old AS MATERIALIZED (
    SELECT r.ctid AS Place, r.ScheduledFor
    FROM JobRuns AS r
    WHERE
        r.ScheduledFor >= :after AND r.ScheduledFor < before(:now, :keep_seconds)
        AND r.FinishedAt < before(:now, :keep_seconds)
        AND r.Namespace = :namespace
        AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
        AND r.DueAt IS NULL
        AND (
            r.State <> 'retry'
            OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
        )
    ORDER BY r.ScheduledFor
    LIMIT :batch_size
    FOR UPDATE OF r SKIP LOCKED
),

-- By its place, which stays the same as long as the row is locked.
purged AS (
    DELETE FROM JobRuns
    WHERE ctid = ANY(ARRAY(SELECT old.Place FROM old))
    RETURNING ScheduledFor
)

SELECT max(purged.ScheduledFor) AS ScheduledFor, count(*) AS Purged FROM purged;

-- name: purge_old_runs
-- Some of what `read_old_runs` gave, without those that another beat is deleting.
WITH p AS (:rows),

old AS MATERIALIZED (
    SELECT r.RunId
    FROM JobRuns AS r
    WHERE
        r.RunId IN (SELECT p.run_id FROM p) AND r.Namespace = :namespace
        AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
        AND r.DueAt IS NULL
        AND (
            r.State <> 'retry'
            OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
        )
    FOR UPDATE OF r SKIP LOCKED
)

DELETE FROM JobRuns
WHERE RunId IN (SELECT old.RunId FROM old)
RETURNING RunId;
