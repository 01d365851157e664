-- name: insert_jobs
-- A missing row: a job of that name is there already. The range locks keep others out between the look and the insert.
INSERT INTO Jobs (
    Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, Policies, Enabled, StartAt, NextRunTime,
    LockTimeoutMinutes, CreatedAt, UpdatedAt
)
OUTPUT inserted.:returns INTO @inserted
SELECT
    :namespace, p.job_name, p.task_name, p.schedule, p.time_zone, p.args, p.kwargs, p.options, p.policies, p.enabled,
    p.start_at, p.next_run_time, p.lock_timeout_minutes, :now, :now
FROM (
    -- Of two rows of one name in the batch, one is taken.
    SELECT
        n.job_name COLLATE Latin1_General_BIN2 AS job_name, n.task_name, n.schedule, n.time_zone, n.args, n.kwargs,
        n.options, n.policies, n.enabled, n.start_at, n.next_run_time, n.lock_timeout_minutes,
        ROW_NUMBER() OVER (PARTITION BY n.job_name COLLATE Latin1_General_BIN2 ORDER BY (SELECT NULL)) AS Copy
    FROM p AS n
) AS p
WHERE
    p.Copy = 1
    AND NOT EXISTS (
        SELECT 1 FROM Jobs AS j WITH (INDEX (Jobs_Name), UPDLOCK, HOLDLOCK)
        WHERE j.Namespace = :namespace AND j.JobName = p.job_name
    )
OPTION (LOOP JOIN);

-- name: read_jobs
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.Enabled, j.DisabledReason, j.StartAt, j.NextRunTime, j.LastRunTime, j.RetryAt, j.LockedBy,
    j.LockedAt, j.LeaseEndsAt, j.Fence, j.RunId, j.Quarantine, j.CodeKey, j.DeleteRequested, j.Version, j.CodeOwner,
    j.ClaimedAt, j.PublishedAt, j.StartedRetry, j.Republishes, :now AS Now
FROM Jobs AS j
WHERE
    j.Namespace = :namespace AND j.OneOff = :one_off
    AND j.JobName IN (
        SELECT p.job_name COLLATE Latin1_General_BIN2 FROM p
    )
OPTION (LOOP JOIN);

-- name: insert_outbox
INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, DueAt, CreatedAt
)
OUTPUT inserted.:returns INTO @inserted
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, p.kind, COALESCE(p.scheduled_for, :now), p.attempt, 'scheduled',
    p.prior_state, j.Fence, :now, :now
FROM p
INNER JOIN Jobs AS j WITH (UPDLOCK, ROWLOCK)
    ON j.Id = p.job_id AND j.Namespace = :namespace AND j.DeleteRequested = 0
OPTION (LOOP JOIN, FORCE ORDER);

-- name: leave_dead
UPDATE r
SET Reason = N'replayed'
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE
    r.Namespace = :namespace AND r.State = 'dlq' AND COALESCE(r.Reason, N'') <> N'replayed'
    AND EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.DeleteRequested = 0)
    AND NOT EXISTS (
        SELECT 1
        FROM JobRuns AS o
        WHERE
            o.JobId = r.JobId AND o.ScheduledFor = r.ScheduledFor AND o.Kind = r.Kind
            AND (o.Attempt > r.Attempt OR o.State IN ('scheduled', 'claimed', 'running') OR o.DueAt IS NOT NULL)
    )
OPTION (LOOP JOIN, FORCE ORDER);

-- name: list_runs
-- Newest first. Zero rows: the last page was the last. A uniqueidentifier does not sort by its time here, Seq does;
-- the highest id stands for the first page.
DECLARE @before_seq bigint = CASE
    WHEN :before_id = 'ffffffff-ffff-ffff-ffff-ffffffffffff' THEN 9223372036854775807
    ELSE (SELECT b.Seq FROM JobRuns AS b WHERE b.RunId = :before_id)
END;

SELECT TOP (:page_size)
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = :namespace AND Seq < @before_seq
ORDER BY Seq DESC;

-- name: list_runs_in
DECLARE @before_seq bigint = CASE
    WHEN :before_id = 'ffffffff-ffff-ffff-ffff-ffffffffffff' THEN 9223372036854775807
    ELSE (SELECT b.Seq FROM JobRuns AS b WHERE b.RunId = :before_id)
END;
DECLARE @last_seq bigint = (
    SELECT MIN(p.Seq)
    FROM (
        SELECT TOP (:scan_size) r.Seq
        FROM JobRuns AS r
        WHERE r.Namespace = :namespace AND r.Seq < @before_seq
        ORDER BY r.Seq DESC
    ) AS p
);

SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = :namespace AND Seq < @before_seq AND Seq >= @last_seq AND (State = :state OR Seq = @last_seq)
ORDER BY Seq DESC;

-- name: list_job_runs
SELECT TOP (:page_size)
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE
    JobId = :job_id AND Namespace = :namespace AND ScheduledFor <= :before
    AND (ScheduledFor < :before OR Attempt < :before_attempt)
ORDER BY ScheduledFor DESC, Attempt DESC;

-- name: list_dead
-- The dead letters, oldest first. Zero rows: the last page was the last. The text of an id sorts by its time; there are
-- few dead letters, and their index holds nothing but ids.
SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt,
    r.CancelBy, r.CancelReason, r.EffectsDone
FROM (
    SELECT TOP (:page_size) d.RunId, CONVERT(char(36), d.RunId) COLLATE Latin1_General_BIN2 AS IdText
    FROM JobRuns AS d WITH (INDEX (JobRuns_Dead))
    WHERE
        d.Namespace = :namespace AND d.State = 'dlq'
        AND CONVERT(char(36), d.RunId) COLLATE Latin1_General_BIN2 > UPPER(:after_id)
    ORDER BY CONVERT(char(36), d.RunId) COLLATE Latin1_General_BIN2
) AS dead
INNER JOIN JobRuns AS r ON r.RunId = dead.RunId
ORDER BY dead.IdText
OPTION (LOOP JOIN);

-- name: read_run
SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt,
    r.CancelBy, r.CancelReason, r.EffectsDone
FROM p
INNER JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE r.Namespace = :namespace
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_held
SELECT r.JobId, r.RunId, r.ClaimId, r.Fence
FROM JobRuns AS r WITH (INDEX (JobRuns_Held))
INNER JOIN Jobs AS j ON j.Id = r.JobId
WHERE r.Namespace = :namespace AND r.HeldBy IS NOT NULL AND j.JobName = :job_name;

-- name: cancel_waiting
-- The attempts of a deleted job that wait for their turn get their outcome; :run_id is the one that waited for its retry,
-- or that an unlocking by hand left behind.
UPDATE r
SET
    State = 'cancelled',
    PriorState = r.State,
    Reason = N'job deleted',
    DueAt = NULL,
    FinishedAt = :now
FROM (
    SELECT w.RunId
    FROM JobRuns AS w WITH (INDEX (JobRuns_Outbox))
    WHERE w.Namespace = :namespace AND w.DueAt IS NOT NULL AND w.JobId = :job_id
    UNION
    SELECT :run_id
) AS waiting
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = waiting.RunId
WHERE r.State IN ('scheduled', 'retry', 'claimed', 'running')
OPTION (LOOP JOIN);

-- name: purge_runs
-- Ended rows older than the history is kept; dead letters stay until they are purged by name. No slot ends before its
-- instant, so the index by instants bounds the search. A batch begins at `after`, the instant at which the last one
-- ended: what lies before is gone, or is kept. Any number of beats share the work, as each passes the rows of the others by.
DECLARE @cutoff datetime2(6) = long_before(:now, :keep_seconds);
DECLARE @purged TABLE (ScheduledFor datetime2(6) NOT NULL);

WITH old AS (
    SELECT TOP (:batch_size) r.ScheduledFor
    FROM JobRuns AS r WITH (INDEX (JobRuns_Slot), UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE
        r.ScheduledFor >= :after AND r.ScheduledFor < @cutoff AND r.FinishedAt < @cutoff AND r.Namespace = :namespace
        AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
        AND r.DueAt IS NULL
        AND (
            r.State <> 'retry'
            OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
        )
    ORDER BY r.ScheduledFor
)

DELETE FROM old
OUTPUT deleted.ScheduledFor INTO @purged (ScheduledFor)
OPTION (LOOP JOIN);

SELECT MAX(ScheduledFor) AS ScheduledFor, COUNT(*) AS Purged FROM @purged;

-- name: read_old_runs
-- What `purge_runs` would delete, where the database refuses the deletion of one of them.
DECLARE @cutoff datetime2(6) = long_before(:now, :keep_seconds);

SELECT TOP (:page_size) r.RunId, r.ScheduledFor
FROM JobRuns AS r WITH (INDEX (JobRuns_Slot), READPAST, READCOMMITTEDLOCK)
WHERE
    r.ScheduledFor >= :after AND r.ScheduledFor < @cutoff AND r.FinishedAt < @cutoff AND r.Namespace = :namespace
    AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND r.DueAt IS NULL
    AND (
        r.State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
    )
ORDER BY r.ScheduledFor
OPTION (LOOP JOIN);

-- name: purge_old_runs
-- Some of what `read_old_runs` gave, without those that another beat is deleting.
DELETE r
OUTPUT deleted.:returns INTO @purged
FROM p
INNER JOIN JobRuns AS r WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.RunId = p.run_id
WHERE
    r.Namespace = :namespace
    AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND r.DueAt IS NULL
    AND (
        r.State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
    )
OPTION (LOOP JOIN, FORCE ORDER);

-- name: purge_dead
DELETE r
OUTPUT deleted.:returns INTO @purged
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.Namespace = :namespace AND r.State = 'dlq'
OPTION (LOOP JOIN, FORCE ORDER);

-- name: purge_nodes
DECLARE @cutoff datetime2(6) = long_before(:now, :keep_seconds);

DELETE n
OUTPUT deleted.:returns INTO @purged
FROM p
INNER JOIN Nodes AS n WITH (ROWLOCK)
    ON n.NodeId = p.node_id COLLATE Latin1_General_BIN2 AND n.Namespace = :namespace
WHERE n.HeartbeatAt < @cutoff
OPTION (LOOP JOIN, FORCE ORDER);

-- name: forget_deleted_jobs
DECLARE @cutoff datetime2(6) = long_before(:now, :keep_seconds);

DELETE d
OUTPUT deleted.:returns INTO @forgotten
FROM p
INNER JOIN DeletedJobs AS d WITH (ROWLOCK)
    ON d.Namespace = :namespace AND d.JobName = p.job_name COLLATE Latin1_General_BIN2
INNER JOIN Changes AS c ON c.Namespace = d.Namespace
WHERE d.DeletedAt < @cutoff AND d.Fence <= c.FenceFloor
OPTION (LOOP JOIN, FORCE ORDER);

-- name: raise_fence_floor
DECLARE @cutoff datetime2(6) = long_before(:now, :keep_seconds);

UPDATE c
SET FenceFloor = f.Highest
FROM Changes AS c
CROSS APPLY (
    SELECT MAX(d.Fence) AS Highest
    FROM DeletedJobs AS d
    WHERE d.Namespace = c.Namespace AND d.DeletedAt < @cutoff
) AS f
WHERE c.Namespace = :namespace AND c.FenceFloor < f.Highest;

-- name: note_deleted_jobs
UPDATE d
SET DeletedAt = :now
OUTPUT inserted.:returns INTO @noted
FROM p
INNER JOIN DeletedJobs AS d WITH (ROWLOCK)
    ON d.Namespace = :namespace AND d.JobName = p.job_name COLLATE Latin1_General_BIN2
WHERE d.DeletedAt IS NULL
OPTION (LOOP JOIN, FORCE ORDER);
