-- The effects of runs, in the shop's database and transaction. A row stands for a slot; one with an empty Slot for its job.

-- name: enter_guard
-- returns: Fence, Attempt
-- Always one row, locked until the transaction ends: a higher fence than one's own says that another run has followed, an
-- attempt that the effects of the slot were done.
INSERT INTO SqlbeatGuard (StoreId, Namespace, JobName, Slot, Fence, TouchedAt)
VALUES (:store_id, :namespace, :job_name, :slot, :fence, :now)
ON CONFLICT (StoreId, Namespace, JobName, Slot) DO UPDATE SET
    Fence = later(SqlbeatGuard.Fence, excluded.Fence), TouchedAt = :now
RETURNING Fence, Attempt;

-- name: leave_guard
-- The row is there, since this transaction has entered it.
UPDATE SqlbeatGuard SET Attempt = :attempt, TouchedAt = :now
WHERE StoreId = uuid(:store_id) AND Namespace = :namespace AND JobName = :job_name AND Slot = :slot;

-- name: purge_guard
-- Some of what is old; rows that another transaction has locked are passed by.
DELETE FROM SqlbeatGuard
WHERE
    (StoreId, Namespace, JobName, Slot) IN (
        SELECT g.StoreId, g.Namespace, g.JobName, g.Slot
        FROM SqlbeatGuard AS g
        WHERE g.TouchedAt < long_before(:now, :keep_seconds)
        ORDER BY g.TouchedAt
        LIMIT :page_size
        FOR UPDATE SKIP LOCKED
    );

-- name: note_effects
-- returns: RunId
-- Zero rows: the run has been taken over, or has ended.
UPDATE JobRuns SET EffectsDone = 1
WHERE RunId = uuid(:run_id) AND Fence = :fence AND State = 'running'
RETURNING RunId;
