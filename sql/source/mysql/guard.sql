-- name: enter_guard
INSERT INTO SqlbeatGuard (StoreId, Namespace, JobName, Slot, Fence, TouchedAt)
VALUES (:store_id, :namespace, :job_name, :slot, :fence, :now)
ON DUPLICATE KEY UPDATE Fence = greatest(SqlbeatGuard.Fence, :fence), TouchedAt = :now;

SELECT Fence, Attempt
FROM SqlbeatGuard
WHERE StoreId = :store_id AND Namespace = :namespace AND JobName = :job_name AND Slot = :slot
FOR UPDATE;

-- name: purge_guard
SELECT json_arrayagg(json_array(o.StoreId, o.Namespace, o.JobName, o.Slot))
INTO @won
FROM (
    SELECT g.StoreId, g.Namespace, g.JobName, g.Slot
    FROM SqlbeatGuard AS g
    WHERE g.TouchedAt < before(:now, :keep_seconds)
    ORDER BY g.TouchedAt
    LIMIT :page_size
    FOR UPDATE SKIP LOCKED
) AS o;

DELETE g
FROM JSON_TABLE(
    @won, '$[*]' COLUMNS (
        StoreId char(36) PATH '$[0]',
        Namespace varchar(100) PATH '$[1]',
        JobName varchar(200) PATH '$[2]',
        Slot varchar(60) PATH '$[3]'
    )
) AS w
STRAIGHT_JOIN SqlbeatGuard AS g
    ON g.StoreId = w.StoreId AND g.Namespace = w.Namespace AND g.JobName = w.JobName AND g.Slot = w.Slot;

-- name: note_effects
UPDATE JobRuns SET EffectsDone = 1
WHERE RunId = :run_id AND Fence = :fence AND State = 'running';

SELECT RunId FROM JobRuns WHERE RunId = :run_id AND Fence = :fence AND State = 'running' FOR UPDATE;
