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
-- Some of what is old; rows that another transaction has locked are passed by. That is allowed under READ COMMITTED (2)
-- and REPEATABLE READ (3) alone: where the shop has another level, later transactions do it.
DECLARE @cutoff datetime2(6) = long_before(:now, :keep_seconds);

IF (SELECT s.transaction_isolation_level FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID) IN (2, 3)
    DELETE TOP (:page_size) FROM SqlbeatGuard WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE TouchedAt < @cutoff;

-- name: note_effects
UPDATE r
SET EffectsDone = 1
OUTPUT inserted.:returns INTO @changed
FROM JobRuns AS r WITH (ROWLOCK)
WHERE r.RunId = :run_id AND r.Fence = :fence AND r.State = 'running';
