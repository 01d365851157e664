-- What an administrator reads and writes. The clock as in beat.sql.

-- name: insert_jobs
-- A missing row: a job of that name is there already.
-- The ids of a batch differ in their last part alone, by which the block finds the rows that it has added.
SELECT left(UUID(), 24)
INTO @batch;

INSERT INTO Jobs (
    Id, Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, Policies, Enabled, StartAt, NextRunTime,
    LockTimeoutMinutes, CreatedAt, UpdatedAt
)
SELECT
    concat(@batch, lpad(hex(row_number() OVER (ORDER BY p.job_name)), 12, '0')), :namespace, p.job_name, p.task_name,
    p.schedule, p.time_zone, p.args, p.kwargs, p.options, p.policies, p.enabled, p.start_at, p.next_run_time,
    p.lock_timeout_minutes, :now, :now
FROM p
LEFT JOIN Jobs AS o ON o.Namespace = :namespace AND o.JobName = p.job_name
WHERE o.Id IS NULL
ON DUPLICATE KEY UPDATE Version = Jobs.Version;

SELECT j.JobName
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Namespace = :namespace AND j.JobName = p.job_name
WHERE j.Id LIKE concat(@batch, '%');

-- name: update_job
SELECT max(Enabled)
INTO @was_enabled
FROM Jobs
WHERE Namespace = :namespace AND JobName = :job_name AND OneOff = 0
FOR UPDATE;

UPDATE Jobs SET
    TaskName = :task_name,
    Schedule = :schedule,
    TimeZone = :time_zone,
    Args = :args,
    Kwargs = :kwargs,
    Options = :options,
    Policies = :policies,
    LockTimeoutMinutes = :lock_timeout_minutes,
    StartAt = :start_at,
    NextRunTime = CASE WHEN :reschedule = 1 THEN :next_run_time ELSE NextRunTime END,
    Enabled = CASE
        WHEN :enabled >= 0 THEN :enabled
        WHEN :reschedule = 1 AND DisabledReason = 'finished' THEN 1
        ELSE Enabled
    END,
    DisabledReason = CASE
        WHEN :enabled = 1 OR (:reschedule = 1 AND DisabledReason = 'finished' AND :enabled < 0) THEN NULL
        WHEN :enabled = 0 AND @was_enabled = 1 THEN :reason
        ELSE DisabledReason
    END,
    Quarantine = NULL,
    Version = Version + 1,
    UpdatedAt = :now
WHERE Namespace = :namespace AND JobName = :job_name AND OneOff = 0 AND Version = :version
    AND (:fence = -1 OR Fence = :fence);

SELECT Version FROM Jobs WHERE Namespace = :namespace AND JobName = :job_name AND row_count() > 0;

-- name: seal_job
UPDATE Jobs SET Args = :args, Kwargs = :kwargs, Version = Version + 1, UpdatedAt = :now
WHERE Namespace = :namespace AND JobName = :job_name AND Version = :version;

SELECT Version FROM Jobs WHERE Namespace = :namespace AND JobName = :job_name AND row_count() > 0;

-- name: pause_job
UPDATE Jobs SET Enabled = 0, DisabledReason = :reason, Version = Version + 1, UpdatedAt = :now
WHERE Namespace = :namespace AND JobName = :job_name AND OneOff = 0 AND Enabled = 1 AND (:version = 0 OR Version = :version);

SELECT Version FROM Jobs WHERE Namespace = :namespace AND JobName = :job_name AND row_count() > 0;

-- name: resume_job
UPDATE Jobs SET
    Enabled = CASE WHEN :finished = 1 THEN 0 ELSE 1 END,
    DisabledReason = CASE WHEN :finished = 1 THEN 'finished' END,
    NextRunTime = :next_run_time,
    Version = Version + 1,
    UpdatedAt = :now
WHERE Namespace = :namespace AND JobName = :job_name AND OneOff = 0 AND Enabled = 0 AND Version = :version
    AND (:fence = -1 OR Fence = :fence);

SELECT Version FROM Jobs WHERE Namespace = :namespace AND JobName = :job_name AND row_count() > 0;

-- name: insert_outbox
INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, DueAt, CreatedAt
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, p.kind, coalesce(p.scheduled_for, :now), p.attempt, 'scheduled',
    p.prior_state, j.Fence, :now, :now
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id AND j.Namespace = :namespace AND j.DeleteRequested = 0
LOCK IN SHARE MODE;

SELECT r.RunId
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id;

-- name: leave_dead
SELECT json_arrayagg(r.RunId)
INTO @won
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE
    r.Namespace = :namespace AND r.State = 'dlq' AND coalesce(r.Reason, '') <> 'replayed'
    AND EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.DeleteRequested = 0)
    AND NOT EXISTS (
        SELECT 1
        FROM JobRuns AS o
        WHERE
            o.JobId = r.JobId AND o.ScheduledFor = r.ScheduledFor AND o.Kind = r.Kind
            AND (o.Attempt > r.Attempt OR o.State IN ('scheduled', 'claimed', 'running') OR o.DueAt IS NOT NULL)
    )
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId
SET r.Reason = 'replayed';

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w;

-- name: request_delete
UPDATE Jobs SET
    DeleteRequested = 1,
    Enabled = 0,
    DisabledReason = 'deleted',
    Version = Version + 1,
    UpdatedAt = :now
WHERE Namespace = :namespace AND JobName = :job_name AND OneOff = 0 AND (:version = 0 OR Version = :version);

SELECT Id FROM Jobs WHERE Namespace = :namespace AND JobName = :job_name AND row_count() > 0;

-- name: list_runs_in
SELECT min(s.RunId)
INTO @page_end
FROM (
    SELECT RunId
    FROM JobRuns
    WHERE Namespace = :namespace AND RunId < :before_id
    ORDER BY RunId DESC
    LIMIT :scan_size
) AS s;

SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = :namespace AND RunId < :before_id AND RunId >= @page_end AND (State = :state OR RunId = @page_end)
ORDER BY RunId DESC;

-- name: list_dead
SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = :namespace AND Dead = 1 AND RunId > :after_id
ORDER BY RunId
LIMIT :page_size;

-- name: cancel_waiting
UPDATE JobRuns SET
    PriorState = State,
    State = 'cancelled',
    Reason = 'job deleted',
    DueAt = NULL,
    FinishedAt = :now
WHERE Namespace = :namespace AND DueAt IS NOT NULL AND JobId = :job_id AND State IN ('scheduled', 'retry', 'claimed', 'running');

UPDATE JobRuns SET
    PriorState = State,
    State = 'cancelled',
    Reason = 'job deleted',
    DueAt = NULL,
    FinishedAt = :now
WHERE RunId = :run_id AND State IN ('scheduled', 'retry', 'claimed', 'running');

-- name: purge_runs
-- Ended rows older than the history is kept; dead letters stay until they are purged by name. No slot ends before its
-- instant, so the index by instants bounds the search. A batch begins at `after`, the instant at which the last one
-- ended: what lies before is gone, or is kept. Any number of beats share the work, as each passes the rows of the others by.
SELECT json_arrayagg(o.RunId), max(o.ScheduledFor), count(*)
INTO @won, @last, @count
FROM (
    SELECT r.RunId, r.ScheduledFor
    FROM JobRuns AS r FORCE INDEX (JobRuns_Slot)
    WHERE
        r.ScheduledFor >= :after AND r.ScheduledFor < before(:now, :keep_seconds)
        AND r.FinishedAt < before(:now, :keep_seconds)
        AND r.Namespace = :namespace
        AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
        AND r.DueAt IS NULL
        AND (
            r.State <> 'retry'
            OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
        )
    ORDER BY r.ScheduledFor
    LIMIT :batch_size
    FOR UPDATE SKIP LOCKED
) AS o;

DELETE r
FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId;

SELECT CAST(@last AS datetime(6)) AS ScheduledFor, @count AS Purged;

-- name: purge_old_runs
-- Some of what `read_old_runs` gave, without those that another beat is deleting.
SELECT json_arrayagg(r.RunId)
INTO @won
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE
    r.Namespace = :namespace
    AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND r.DueAt IS NULL
    AND (
        r.State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
    )
FOR UPDATE SKIP LOCKED;

DELETE r
FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w;

-- name: purge_dead
SELECT json_arrayagg(r.RunId)
INTO @won
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE r.Namespace = :namespace AND r.State = 'dlq'
FOR UPDATE;

DELETE r
FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w;

-- name: purge_nodes
SELECT json_arrayagg(n.NodeId)
INTO @won
FROM p
STRAIGHT_JOIN Nodes AS n ON n.Namespace = :namespace AND n.NodeId = p.node_id
WHERE n.HeartbeatAt < before(:now, :keep_seconds)
FOR UPDATE;

DELETE n
FROM JSON_TABLE(@won, '$[*]' COLUMNS (NodeId varchar(200) PATH '$')) AS w
STRAIGHT_JOIN Nodes AS n ON n.Namespace = :namespace AND n.NodeId = w.NodeId;

SELECT w.NodeId FROM JSON_TABLE(@won, '$[*]' COLUMNS (NodeId varchar(200) PATH '$')) AS w;

-- name: forget_deleted_jobs
SELECT json_arrayagg(d.JobName)
INTO @won
FROM p
STRAIGHT_JOIN DeletedJobs AS d ON d.Namespace = :namespace AND d.JobName = p.job_name
WHERE
    d.DeletedAt < before(:now, :keep_seconds)
    AND d.Fence <= (SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = :namespace)
FOR UPDATE;

DELETE d
FROM JSON_TABLE(@won, '$[*]' COLUMNS (JobName varchar(200) PATH '$')) AS w
STRAIGHT_JOIN DeletedJobs AS d ON d.Namespace = :namespace AND d.JobName = w.JobName;

SELECT w.JobName FROM JSON_TABLE(@won, '$[*]' COLUMNS (JobName varchar(200) PATH '$')) AS w;

-- name: note_deleted_jobs
SELECT json_arrayagg(d.JobName)
INTO @won
FROM p
STRAIGHT_JOIN DeletedJobs AS d ON d.Namespace = :namespace AND d.JobName = p.job_name
WHERE d.DeletedAt IS NULL
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (JobName varchar(200) PATH '$')) AS w
STRAIGHT_JOIN DeletedJobs AS d ON d.Namespace = :namespace AND d.JobName = w.JobName
SET d.DeletedAt = :now;

SELECT w.JobName FROM JSON_TABLE(@won, '$[*]' COLUMNS (JobName varchar(200) PATH '$')) AS w;
