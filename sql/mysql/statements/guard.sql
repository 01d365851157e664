-- Written by `make sql` from sql/source: change it there.
-- The effects of runs, in the shop's database and transaction. A row stands for a slot; one with an empty Slot for its job.

-- name: enter_guard
-- parameters: store_id id, namespace text(100), job_name text(200), slot word(60), fence bigint
-- returns: Fence bigint, Attempt int
-- Always one row, locked until the transaction ends: a higher fence than one's own says that another run has followed, an
-- attempt that the effects of the slot were done.
SET @now = utc_timestamp(6);
INSERT INTO SqlbeatGuard (StoreId, Namespace, JobName, Slot, Fence, TouchedAt)
VALUES (%(store_id)s, %(namespace)s, %(job_name)s, %(slot)s, %(fence)s, CAST(@now AS datetime(6)))
ON DUPLICATE KEY UPDATE Fence = greatest(SqlbeatGuard.Fence, %(fence)s), TouchedAt = CAST(@now AS datetime(6));

SELECT Fence, Attempt
FROM SqlbeatGuard
WHERE StoreId = %(store_id)s AND Namespace = %(namespace)s AND JobName = %(job_name)s AND Slot = %(slot)s
FOR UPDATE;

-- name: leave_guard
-- parameters: attempt int, store_id id, namespace text(100), job_name text(200), slot word(60)
-- The row is there, since this transaction has entered it.
SET @now = utc_timestamp(6);
UPDATE SqlbeatGuard SET Attempt = %(attempt)s, TouchedAt = CAST(@now AS datetime(6))
WHERE StoreId = %(store_id)s AND Namespace = %(namespace)s AND JobName = %(job_name)s AND Slot = %(slot)s;

-- name: purge_guard
-- parameters: keep_seconds seconds, page_size int
-- Some of what is old; rows that another transaction has locked are passed by.
SET @now = utc_timestamp(6);
SELECT json_arrayagg(json_array(o.StoreId, o.Namespace, o.JobName, o.Slot))
INTO @won
FROM (
    SELECT g.StoreId, g.Namespace, g.JobName, g.Slot
    FROM SqlbeatGuard AS g
    WHERE g.TouchedAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
    ORDER BY g.TouchedAt
    LIMIT %(page_size)s
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
-- parameters: run_id id, fence bigint
-- returns: RunId id
-- Zero rows: the run has been taken over, or has ended.
UPDATE JobRuns SET EffectsDone = 1
WHERE RunId = %(run_id)s AND Fence = %(fence)s AND State = 'running';

SELECT RunId FROM JobRuns WHERE RunId = %(run_id)s AND Fence = %(fence)s AND State = 'running' FOR UPDATE;
