-- What `init --recovered` does after a restore: no fence of before may be valid, or come again.
-- Both pages are read by id, so that nothing is locked for long; whoever is interrupted may begin anew.

-- name: raise_job_fences
UPDATE p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
SET j.Fence = :floor + mod(j.Fence, :step)
WHERE j.Fence < :floor;

-- name: raise_run_fences
UPDATE p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
SET r.Fence = :floor + mod(r.Fence, :step)
WHERE r.Fence < :floor;
