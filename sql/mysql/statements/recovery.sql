-- Written by `make sql` from sql/source: change it there.
-- What `init --recovered` does after a restore: no fence of before may be valid, or come again.
-- Both pages are read by id, so that nothing is locked for long; whoever is interrupted may begin anew.

-- name: raise_epoch
-- parameters: epoch bigint
UPDATE StoreInfo SET Epoch = %(epoch)s WHERE Epoch < %(epoch)s;

-- name: list_low_jobs
-- parameters: floor bigint, after_id word(36), page_size int
-- returns: Id id
-- Zero rows: every fence of a job belongs to the epoch.
SELECT Id
FROM Jobs
WHERE Fence < %(floor)s AND Id > %(after_id)s
ORDER BY Id
LIMIT %(page_size)s;

-- name: raise_job_fences
-- parameters: floor bigint, step bigint
-- rows: job_id id
SET @rows = %(rows)s;
UPDATE JSON_TABLE(@rows, '$[*]' COLUMNS (job_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
SET j.Fence = %(floor)s + mod(j.Fence, %(step)s)
WHERE j.Fence < %(floor)s;

-- name: list_low_runs
-- parameters: floor bigint, after_id word(36), page_size int
-- returns: RunId id
-- Runs that somebody holds. What was dispatched keeps its fence: nobody would send its message again.
-- Zero rows: every fence of theirs belongs to the epoch.
SELECT RunId
FROM JobRuns
WHERE Fence < %(floor)s AND State IN ('claimed', 'running') AND RunId > %(after_id)s
ORDER BY RunId
LIMIT %(page_size)s;

-- name: raise_run_fences
-- parameters: floor bigint, step bigint
-- rows: run_id id
SET @rows = %(rows)s;
UPDATE JSON_TABLE(@rows, '$[*]' COLUMNS (run_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
SET r.Fence = %(floor)s + mod(r.Fence, %(step)s)
WHERE r.Fence < %(floor)s;
