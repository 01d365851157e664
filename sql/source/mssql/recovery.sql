-- name: raise_job_fences
UPDATE j
SET Fence = :floor + j.Fence % :step
FROM p
INNER JOIN Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
WHERE j.Fence < :floor
OPTION (LOOP JOIN, FORCE ORDER);

-- name: raise_run_fences
UPDATE r
SET Fence = :floor + r.Fence % :step
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.Fence < :floor
OPTION (LOOP JOIN, FORCE ORDER);
