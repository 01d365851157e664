-- What jobs bring along that come from elsewhere.

-- name: note_arrivals
UPDATE p
STRAIGHT_JOIN Jobs AS j ON j.Namespace = :namespace AND j.JobName = p.job_name
SET j.LastRunTime = p.last_run_time, j.DisabledReason = p.disabled_reason;

SELECT j.JobName
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Namespace = :namespace AND j.JobName = p.job_name;
