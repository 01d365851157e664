-- What jobs bring along that come from elsewhere. Batches, locks and the clock as in beat.sql.

-- name: note_arrivals
-- rows: job_name, last_run_time, disabled_reason
-- returns: JobName
-- Of jobs that were added in the same transaction: when they ran last elsewhere, and why they are disabled.
WITH p AS (:rows)

UPDATE Jobs SET
    LastRunTime = p.last_run_time,
    DisabledReason = p.disabled_reason
FROM p
WHERE Jobs.Namespace = :namespace AND Jobs.JobName = p.job_name
RETURNING Jobs.JobName;
