-- What a beat reads and writes to bring its beat_schedule into the table. The clock as in beat.sql.
-- Rows are changed at the version that was read with their owner.

-- name: lock_releases
-- Imports of one owner come one after the other; the lock ends with the transaction.
SELECT get_lock(concat('sqlbeat ', sha1(concat_ws(' ', database(), :namespace, :code_owner))), 600) AS IsOurs;

-- name: adopt_jobs
SELECT json_arrayagg(json_array(j.Id, j.JobName))
INTO @won
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
WHERE j.CodeOwner = :former_owner
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET j.CodeOwner = :code_owner, j.Version = j.Version + 1, j.UpdatedAt = :now;

SELECT w.JobName FROM JSON_TABLE(@won, '$[*]' COLUMNS (JobName varchar(200) PATH '$[1]')) AS w;

-- name: insert_code_jobs
INSERT INTO Jobs (
    Id, Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, CodeOwner, CodeRelease, CodeKey,
    NextRunTime, LastRunTime, CreatedAt, UpdatedAt
)
SELECT
    p.job_id, :namespace, p.job_name, p.task_name, p.schedule, p.time_zone, p.args, p.kwargs, p.options, :code_owner,
    :code_release, p.code_key, p.next_run_time, p.last_run_time, :now, :now
FROM p
LEFT JOIN Jobs AS o ON o.Namespace = :namespace AND o.JobName = p.job_name
WHERE o.Id IS NULL
ON DUPLICATE KEY UPDATE Version = Jobs.Version;

SELECT j.JobName
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id;

-- name: update_code_jobs
SELECT json_arrayagg(j.Id)
INTO @won
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
WHERE j.Version = p.version AND j.DeleteRequested = 0 AND (p.reschedule = 0 OR j.Fence = p.fence)
FOR UPDATE;

UPDATE p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
SET
    j.TaskName = p.task_name,
    j.Schedule = p.schedule,
    j.TimeZone = p.time_zone,
    j.Args = p.args,
    j.Kwargs = p.kwargs,
    j.Options = p.options,
    j.CodeKey = p.code_key,
    j.CodeRelease = :code_release,
    j.NextRunTime = CASE WHEN p.reschedule = 1 THEN p.next_run_time ELSE j.NextRunTime END,
    j.Enabled = CASE
        WHEN j.DisabledReason = :reason OR (j.DisabledReason = 'finished' AND p.reschedule = 1) THEN 1
        ELSE j.Enabled
    END,
    j.DisabledReason = CASE
        WHEN j.DisabledReason = :reason OR (j.DisabledReason = 'finished' AND p.reschedule = 1) THEN NULL
        ELSE j.DisabledReason
    END,
    j.Quarantine = NULL,
    j.Version = j.Version + 1,
    j.UpdatedAt = :now
WHERE j.Version = p.version AND j.DeleteRequested = 0 AND (p.reschedule = 0 OR j.Fence = p.fence);

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$')) AS w;

-- name: leave_code_jobs
SELECT json_arrayagg(j.Id)
INTO @won
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
WHERE j.Version = p.version AND j.Enabled = 1
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET j.Enabled = 0, j.DisabledReason = :reason, j.Version = j.Version + 1, j.UpdatedAt = :now;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$')) AS w;
