-- What `init --recovered` does after a restore: no fence of before may be valid, or come again.
-- Both pages are read by id, so that nothing is locked for long; whoever is interrupted may begin anew.

-- name: raise_epoch
UPDATE StoreInfo SET Epoch = :epoch WHERE Epoch < :epoch;

-- name: list_low_jobs
-- returns: Id
-- Zero rows: every fence of a job belongs to the epoch.
SELECT Id
FROM Jobs
WHERE Fence < :floor AND Id > :after_id
ORDER BY Id
LIMIT :page_size;

-- name: raise_job_fences
-- rows: job_id
WITH p AS (:rows)

UPDATE Jobs SET Fence = :floor + Fence % :step
WHERE Id IN (SELECT p.job_id FROM p) AND Fence < :floor;

-- name: list_low_runs
-- returns: RunId
-- Runs that somebody holds. What was dispatched keeps its fence: nobody would send its message again.
-- Zero rows: every fence of theirs belongs to the epoch.
SELECT RunId
FROM JobRuns
WHERE Fence < :floor AND State IN ('claimed', 'running') AND RunId > :after_id
ORDER BY RunId
LIMIT :page_size;

-- name: raise_run_fences
-- rows: run_id
WITH p AS (:rows)

UPDATE JobRuns SET Fence = :floor + Fence % :step
WHERE RunId IN (SELECT p.run_id FROM p) AND Fence < :floor;
