-- Written by `make sql` from sql/source: change it there.
-- What `init --recovered` does after a restore: no fence of before may be valid, or come again.
-- Both pages are read by id, so that nothing is locked for long; whoever is interrupted may begin anew.

-- name: raise_epoch
-- parameters: $1 epoch bigint
UPDATE StoreInfo SET Epoch = $1 WHERE Epoch < $1;

-- name: list_low_jobs
-- parameters: $1 floor bigint, $2 after_id word(36), $3 page_size int
-- returns: Id id
-- Zero rows: every fence of a job belongs to the epoch.
SELECT Id
FROM Jobs
WHERE Fence < $1 AND Id > $2
ORDER BY Id
LIMIT $3;

-- name: raise_job_fences
-- parameters: $2 floor bigint, $3 step bigint
-- rows: $1 job_id id
WITH p (job_id) AS (SELECT * FROM unnest($1::uuid[]))

UPDATE Jobs SET Fence = $2 + Fence % $3
WHERE Id IN (SELECT p.job_id FROM p) AND Fence < $2;

-- name: list_low_runs
-- parameters: $1 floor bigint, $2 after_id word(36), $3 page_size int
-- returns: RunId id
-- Runs that somebody holds. What was dispatched keeps its fence: nobody would send its message again.
-- Zero rows: every fence of theirs belongs to the epoch.
SELECT RunId
FROM JobRuns
WHERE Fence < $1 AND State IN ('claimed', 'running') AND RunId > $2
ORDER BY RunId
LIMIT $3;

-- name: raise_run_fences
-- parameters: $2 floor bigint, $3 step bigint
-- rows: $1 run_id id
WITH p (run_id) AS (SELECT * FROM unnest($1::uuid[]))

UPDATE JobRuns SET Fence = $2 + Fence % $3
WHERE RunId IN (SELECT p.run_id FROM p) AND Fence < $2;
