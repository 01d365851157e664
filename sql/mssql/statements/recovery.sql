-- Written by `make sql` from sql/source: change it there.
-- What `init --recovered` does after a restore: no fence of before may be valid, or come again.
-- Both pages are read by id, so that nothing is locked for long; whoever is interrupted may begin anew.

-- name: raise_epoch
-- parameters: epoch bigint
DECLARE @epoch bigint = ?;

UPDATE dbo.StoreInfo SET Epoch = @epoch WHERE Epoch < @epoch;

-- name: list_low_jobs
-- parameters: page_size int, floor bigint, after_id word(36)
-- returns: Id id
-- Zero rows: every fence of a job belongs to the epoch.
DECLARE @page_size int = ?, @floor bigint = ?, @after_id varchar(36) = ?;

SELECT TOP (@page_size) Id
FROM dbo.Jobs
WHERE Fence < @floor AND Id > @after_id
ORDER BY Id;

-- name: raise_job_fences
-- parameters: floor bigint, step bigint
-- rows: job_id id
DECLARE @floor bigint = ?, @step bigint = ?, @rows nvarchar(max) = ?;

UPDATE j
SET Fence = @floor + j.Fence % @step
FROM OPENJSON(@rows) WITH (job_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
WHERE j.Fence < @floor
OPTION (LOOP JOIN, FORCE ORDER);

-- name: list_low_runs
-- parameters: page_size int, floor bigint, after_id word(36)
-- returns: RunId id
-- Runs that somebody holds. What was dispatched keeps its fence: nobody would send its message again.
-- Zero rows: every fence of theirs belongs to the epoch.
DECLARE @page_size int = ?, @floor bigint = ?, @after_id varchar(36) = ?;

SELECT TOP (@page_size) RunId
FROM dbo.JobRuns
WHERE Fence < @floor AND State IN ('claimed', 'running') AND RunId > @after_id
ORDER BY RunId;

-- name: raise_run_fences
-- parameters: floor bigint, step bigint
-- rows: run_id id
DECLARE @floor bigint = ?, @step bigint = ?, @rows nvarchar(max) = ?;

UPDATE r
SET Fence = @floor + r.Fence % @step
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.Fence < @floor
OPTION (LOOP JOIN, FORCE ORDER);
