-- Written by `make sql` from sql/source: change it there.
-- The effects of runs, in the shop's database and transaction. A row stands for a slot; one with an empty Slot for its job.

-- name: enter_guard
-- parameters: ?1 store_id id, ?2 namespace text(100), ?3 job_name text(200), ?4 slot word(60), ?5 fence bigint,
--   ?6 now instant
-- returns: Fence bigint, Attempt int
-- Always one row, locked until the transaction ends: a higher fence than one's own says that another run has followed, an
-- attempt that the effects of the slot were done.
INSERT INTO SqlbeatGuard (StoreId, Namespace, JobName, Slot, Fence, TouchedAt)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (StoreId, Namespace, JobName, Slot) DO UPDATE SET
    Fence = max(SqlbeatGuard.Fence, excluded.Fence), TouchedAt = ?6
RETURNING Fence, Attempt;

-- name: leave_guard
-- parameters: ?1 attempt int, ?2 now instant, ?3 store_id id, ?4 namespace text(100), ?5 job_name text(200),
--   ?6 slot word(60)
-- The row is there, since this transaction has entered it.
UPDATE SqlbeatGuard SET Attempt = ?1, TouchedAt = ?2
WHERE StoreId = ?3 AND Namespace = ?4 AND JobName = ?5 AND Slot = ?6;

-- name: purge_guard
-- parameters: ?1 now instant, ?2 keep_seconds seconds, ?3 page_size int
-- Some of what is old; rows that another transaction has locked are passed by.
DELETE FROM SqlbeatGuard
WHERE
    (StoreId, Namespace, JobName, Slot) IN (
        SELECT g.StoreId, g.Namespace, g.JobName, g.Slot
        FROM SqlbeatGuard AS g
        WHERE g.TouchedAt < after(?1, -?2)
        ORDER BY g.TouchedAt
        LIMIT ?3
    );

-- name: note_effects
-- parameters: ?1 run_id id, ?2 fence bigint
-- returns: RunId id
-- Zero rows: the run has been taken over, or has ended.
UPDATE JobRuns SET EffectsDone = 1
WHERE RunId = ?1 AND Fence = ?2 AND State = 'running'
RETURNING RunId;
