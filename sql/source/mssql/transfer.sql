-- name: note_arrivals
UPDATE j
SET
    LastRunTime = p.last_run_time,
    DisabledReason = p.disabled_reason
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Jobs AS j WITH (INDEX (Jobs_Name), ROWLOCK)
    ON j.Namespace = :namespace AND j.JobName = p.job_name COLLATE Latin1_General_BIN2
OPTION (LOOP JOIN, FORCE ORDER);
