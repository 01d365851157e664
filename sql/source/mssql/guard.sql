-- name: enter_guard
-- The range lock keeps a second one out between the look and the insert.
UPDATE SqlbeatGuard WITH (UPDLOCK, SERIALIZABLE)
SET Fence = CASE WHEN Fence > :fence THEN Fence ELSE :fence END, TouchedAt = :now
WHERE StoreId = :store_id AND Namespace = :namespace AND JobName = :job_name AND Slot = :slot;

IF @@ROWCOUNT = 0
    INSERT INTO SqlbeatGuard (StoreId, Namespace, JobName, Slot, Fence, TouchedAt)
    VALUES (:store_id, :namespace, :job_name, :slot, :fence, :now);

SELECT Fence, Attempt
FROM SqlbeatGuard
WHERE StoreId = :store_id AND Namespace = :namespace AND JobName = :job_name AND Slot = :slot;

-- name: purge_guard
DECLARE @cutoff datetime2(6) = long_before(:now, :keep_seconds);

WITH old AS (
    SELECT TOP (:page_size) g.TouchedAt
    FROM SqlbeatGuard AS g WITH (INDEX (SqlbeatGuard_Old), UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE g.TouchedAt < @cutoff
    ORDER BY g.TouchedAt
)

DELETE FROM old;

-- name: note_effects
UPDATE r
SET EffectsDone = 1
OUTPUT inserted.:returns INTO @changed
FROM JobRuns AS r WITH (ROWLOCK)
WHERE r.RunId = :run_id AND r.Fence = :fence AND r.State = 'running';
