-- Written by `make sql` from sql/source: change it there.
-- The effects of runs, in the shop's database and transaction. A row stands for a slot; one with an empty Slot for its job.

-- name: enter_guard
-- parameters: $1 store_id id, $2 namespace text(100), $3 job_name text(200), $4 slot word(60), $5 fence bigint
-- returns: Fence bigint, Attempt int
-- Always one row, locked until the transaction ends: a higher fence than one's own says that another run has followed, an
-- attempt that the effects of the slot were done.
INSERT INTO SqlbeatGuard (StoreId, Namespace, JobName, Slot, Fence, TouchedAt)
VALUES ($1, $2, $3, $4, $5, statement_timestamp())
ON CONFLICT (StoreId, Namespace, JobName, Slot) DO UPDATE SET
    Fence = greatest(SqlbeatGuard.Fence, excluded.Fence), TouchedAt = statement_timestamp()
RETURNING Fence, Attempt;

-- name: leave_guard
-- parameters: $1 attempt int, $2 store_id id, $3 namespace text(100), $4 job_name text(200), $5 slot word(60)
-- The row is there, since this transaction has entered it.
UPDATE SqlbeatGuard SET Attempt = $1, TouchedAt = statement_timestamp()
WHERE StoreId = CAST($2 AS uuid) AND Namespace = $3 AND JobName = $4 AND Slot = $5;

-- name: purge_guard
-- parameters: $1 keep_seconds seconds, $2 page_size int
-- Some of what is old; rows that another transaction has locked are passed by.
DELETE FROM SqlbeatGuard
WHERE
    (StoreId, Namespace, JobName, Slot) IN (
        SELECT g.StoreId, g.Namespace, g.JobName, g.Slot
        FROM SqlbeatGuard AS g
        WHERE g.TouchedAt < statement_timestamp() - $1 * interval '1 second'
        ORDER BY g.TouchedAt
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    );

-- name: note_effects
-- parameters: $1 run_id id, $2 fence bigint
-- returns: RunId id
-- Zero rows: the run has been taken over, or has ended.
UPDATE JobRuns SET EffectsDone = 1
WHERE RunId = CAST($1 AS uuid) AND Fence = $2 AND State = 'running'
RETURNING RunId;
