-- Written by `make sql` from sql/source: change it there.
-- What jobs bring along that come from elsewhere. Batches, locks and the clock as in beat.sql.

-- name: note_arrivals
-- parameters: ?1 namespace text(100)
-- rows: job_name text(200), last_run_time instant, disabled_reason text(400)
-- returns: JobName text(200)
-- Of jobs that were added in the same transaction: when they ran last elsewhere, and why they are disabled.
WITH p (job_name, last_run_time, disabled_reason) AS (:rows)

UPDATE Jobs SET
    LastRunTime = p.last_run_time,
    DisabledReason = p.disabled_reason
FROM p
WHERE Jobs.Namespace = ?1 AND Jobs.JobName = p.job_name
RETURNING Jobs.JobName;
