-- What `init --recovered` does after a restore: no fence of before may be valid, or come again.
-- Both pages are read by id, so that nothing is locked for long; whoever is interrupted may begin anew.

-- name: raise_epoch
UPDATE dbo.StoreInfo SET Epoch = @epoch WHERE Epoch < @epoch;

-- name: list_low_jobs
-- Zero rows: every fence of a job belongs to the epoch.
SELECT TOP (@page_size) Id
FROM dbo.Jobs
WHERE Fence < @floor AND Id > @after_id
ORDER BY Id;

-- name: raise_job_fences
-- rows: job_id uniqueidentifier
UPDATE j
SET Fence = @floor + j.Fence % @step
FROM OPENJSON(@rows) WITH (job_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
WHERE j.Fence < @floor
OPTION (LOOP JOIN, FORCE ORDER);

-- name: list_low_runs
-- Runs that somebody holds. What was dispatched keeps its fence: nobody would send its message again.
-- Zero rows: every fence of theirs belongs to the epoch.
SELECT TOP (@page_size) RunId
FROM dbo.JobRuns
WHERE Fence < @floor AND State IN ('claimed', 'running') AND RunId > @after_id
ORDER BY RunId;

-- name: raise_run_fences
-- rows: run_id uniqueidentifier
UPDATE r
SET Fence = @floor + r.Fence % @step
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.Fence < @floor
OPTION (LOOP JOIN, FORCE ORDER);
