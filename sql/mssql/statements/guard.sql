-- Written by `make sql` from sql/source: change it there.
-- The effects of runs, in the shop's database and transaction. A row stands for a slot; one with an empty Slot for its job.

-- name: enter_guard
-- parameters: fence bigint, store_id id, namespace text(100), job_name text(200), slot word(60)
-- returns: Fence bigint, Attempt int
-- The range lock keeps a second one out between the look and the insert.
DECLARE @fence bigint = ?, @store_id uniqueidentifier = ?, @namespace nvarchar(100) = ?, @job_name nvarchar(200) = ?,
    @slot varchar(60) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

UPDATE dbo.SqlbeatGuard WITH (UPDLOCK, SERIALIZABLE)
SET Fence = CASE WHEN Fence > @fence THEN Fence ELSE @fence END, TouchedAt = @now
WHERE StoreId = @store_id AND Namespace = @namespace AND JobName = @job_name AND Slot = @slot;

IF @@ROWCOUNT = 0
    INSERT INTO dbo.SqlbeatGuard (StoreId, Namespace, JobName, Slot, Fence, TouchedAt)
    VALUES (@store_id, @namespace, @job_name, @slot, @fence, @now);

SELECT Fence, Attempt
FROM dbo.SqlbeatGuard
WHERE StoreId = @store_id AND Namespace = @namespace AND JobName = @job_name AND Slot = @slot;

-- name: leave_guard
-- parameters: attempt int, store_id id, namespace text(100), job_name text(200), slot word(60)
-- The row is there, since this transaction has entered it.
DECLARE @attempt int = ?, @store_id uniqueidentifier = ?, @namespace nvarchar(100) = ?, @job_name nvarchar(200) = ?,
    @slot varchar(60) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

UPDATE dbo.SqlbeatGuard SET Attempt = @attempt, TouchedAt = @now
WHERE StoreId = @store_id AND Namespace = @namespace AND JobName = @job_name AND Slot = @slot;

-- name: purge_guard
-- parameters: keep_seconds seconds, page_size int
-- Some of what is old; rows that another transaction has locked are passed by. That is allowed under READ COMMITTED (2)
-- and REPEATABLE READ (3) alone: where the shop has another level, later transactions do it.
DECLARE @keep_seconds float(53) = ?, @page_size int = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = DATEADD(
    SECOND, -@keep_seconds - 86400 * FLOOR(-@keep_seconds / 86400), DATEADD(DAY, FLOOR(-@keep_seconds / 86400), @now)
);

IF (SELECT s.transaction_isolation_level FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID) IN (2, 3)
    DELETE TOP (@page_size) FROM dbo.SqlbeatGuard WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE TouchedAt < @cutoff;

-- name: note_effects
-- parameters: run_id id, fence bigint
-- returns: RunId id
-- Zero rows: the run has been taken over, or has ended.
DECLARE @run_id uniqueidentifier = ?, @fence bigint = ?;
DECLARE @changed TABLE (RunId uniqueidentifier NOT NULL);

UPDATE r
SET EffectsDone = 1
OUTPUT inserted.RunId INTO @changed (RunId)
FROM dbo.JobRuns AS r WITH (ROWLOCK)
WHERE r.RunId = @run_id AND r.Fence = @fence AND r.State = 'running';

SELECT RunId FROM @changed;
