-- What an administrator reads and writes. Batches, locks and the clock as in beat.sql.

-- name: insert_jobs
-- rows: job_name, task_name, schedule, time_zone, args, kwargs, options, policies, enabled flag, start_at,
--   next_run_time, lock_timeout_minutes
-- returns: JobName
-- A missing row: a job of that name is there already.
WITH p AS (:rows)

INSERT INTO Jobs (
    Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, Policies, Enabled, StartAt, NextRunTime,
    LockTimeoutMinutes, CreatedAt, UpdatedAt
)
SELECT
    :namespace, p.job_name, p.task_name, p.schedule, p.time_zone, p.args, p.kwargs, p.options, p.policies, p.enabled,
    p.start_at, p.next_run_time, p.lock_timeout_minutes, :now, :now
FROM p
WHERE true
ON CONFLICT (Namespace, JobName) DO NOTHING
RETURNING JobName;

-- name: update_job
-- returns: Version
-- Zero rows: the job is gone, it is no longer at this version, or its run has ended since it was read (:fence, as in
-- resume_job). :enabled is -1 where that stays as it is; a job whose schedule had come to its end goes on if it has
-- another one now.
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
        WHEN :enabled = 0 AND Enabled = 1 THEN :reason
        ELSE DisabledReason
    END,
    Quarantine = NULL,
    Version = Version + 1,
    UpdatedAt = :now
WHERE Namespace = :namespace AND JobName = :job_name AND OneOff = 0 AND Version = :version
    AND (:fence = -1 OR Fence = :fence)
RETURNING Version;

-- name: read_jobs
-- rows: job_name
-- returns: Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies,
--   LockTimeoutMinutes, Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt,
--   LeaseEndsAt, Fence, RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt,
--   StartedRetry, Republishes, Now
-- A missing row: there is no such job.
WITH p AS (:rows)

SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, :now AS Now
FROM Jobs
WHERE Namespace = :namespace AND OneOff = :one_off AND JobName IN (SELECT p.job_name FROM p);

-- name: list_jobs
-- returns: Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies,
--   LockTimeoutMinutes, Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt,
--   LeaseEndsAt, Fence, RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt,
--   StartedRetry, Republishes, Now
-- Zero rows: the last page was the last.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, :now AS Now
FROM Jobs INDEXED BY Jobs_Listed
WHERE Namespace = :namespace AND OneOff = 0 AND JobName > :after_name
ORDER BY JobName
LIMIT :page_size;

-- name: list_quarantined
-- returns: Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies,
--   LockTimeoutMinutes, Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt,
--   LeaseEndsAt, Fence, RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt,
--   StartedRetry, Republishes, Now
-- The jobs that cannot run as they are written, by name. Zero rows: the last page was the last.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, :now AS Now
FROM Jobs
WHERE Namespace = :namespace AND OneOff = 0 AND Quarantine IS NOT NULL AND JobName > :after_name
ORDER BY JobName
LIMIT :page_size;

-- name: count_jobs
-- returns: Total, Active, Held, Retrying, SetAside, Due, DueAt, Dead, Now
-- Always one row: how many jobs there are of each kind, and since when the longest waiting one is due.
SELECT
    count(*) AS Total,
    coalesce(sum(CASE WHEN Enabled = 1 THEN 1 ELSE 0 END), 0) AS Active,
    coalesce(sum(CASE WHEN LockedBy IS NOT NULL THEN 1 ELSE 0 END), 0) AS Held,
    coalesce(sum(CASE WHEN RetryAt IS NOT NULL THEN 1 ELSE 0 END), 0) AS Retrying,
    coalesce(sum(CASE WHEN Quarantine IS NOT NULL THEN 1 ELSE 0 END), 0) AS SetAside,
    coalesce(sum(CASE WHEN Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL AND coalesce(RetryAt, NextRunTime) <= :now THEN 1 ELSE 0 END), 0) AS Due,
    min(CASE WHEN Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL AND coalesce(RetryAt, NextRunTime) <= :now THEN coalesce(RetryAt, NextRunTime) END) AS DueAt,
    (SELECT count(*) FROM JobRuns AS d WHERE d.Namespace = :namespace AND d.State = 'dlq') AS Dead,
    :now AS Now
FROM Jobs INDEXED BY Jobs_Listed
WHERE Namespace = :namespace AND OneOff = 0;

-- name: read_running
-- returns: Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies,
--   LockTimeoutMinutes, RunId, StartedBy, StartedAt, Now
-- Runs that began :since_seconds ago or earlier and go on, by the indexes of held jobs and runs. Zero rows: none.
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, r.RunId, r.StartedBy, r.StartedAt, :now AS Now
FROM JobRuns AS r
INNER JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.RunId IN (
        SELECT h.RunId
        FROM Jobs AS h
        WHERE h.Namespace = :namespace AND h.LockedBy IS NOT NULL
        UNION ALL
        SELECT b.RunId
        FROM JobRuns AS b
        WHERE b.Namespace = :namespace AND b.HeldBy IS NOT NULL
    )
    AND r.State = 'running' AND r.StartedAt <= before(:now, :since_seconds)
ORDER BY r.StartedAt
LIMIT :page_size;

-- name: count_states
-- returns: State, Slots
-- How many attempts of the jobs' slots of the last :since_seconds seconds are in each state. Zero rows: nothing was due.
SELECT State, total(SlotCount) AS Slots
FROM JobRuns
WHERE ScheduledFor > before(:now, :since_seconds) AND ScheduledFor <= :now AND Namespace = :namespace AND Kind <> 'one_off'
GROUP BY State;

-- name: seal_job
-- returns: Version
-- Zero rows: the job is gone, or not at this version.
UPDATE Jobs SET Args = :args, Kwargs = :kwargs, Version = Version + 1, UpdatedAt = :now
WHERE Namespace = :namespace AND JobName = :job_name AND Version = :version
RETURNING Version;

-- name: pause_job
-- returns: Version
-- Zero rows: the job is gone or paused already, or not at this version; version 0 stands for any.
UPDATE Jobs SET Enabled = 0, DisabledReason = :reason, Version = Version + 1, UpdatedAt = :now
WHERE Namespace = :namespace AND JobName = :job_name AND OneOff = 0 AND Enabled = 1 AND (:version = 0 OR Version = :version)
RETURNING Version;

-- name: resume_job
-- returns: Version
-- Zero rows: the job is gone, it was changed since it was read, or its run has ended since then and moved its next slot
-- (every end of a run raises the fence; :fence is -1 where that does not matter).
UPDATE Jobs SET
    Enabled = CASE WHEN :finished = 1 THEN 0 ELSE 1 END,
    DisabledReason = CASE WHEN :finished = 1 THEN 'finished' END,
    NextRunTime = :next_run_time,
    Version = Version + 1,
    UpdatedAt = :now
WHERE Namespace = :namespace AND JobName = :job_name AND OneOff = 0 AND Enabled = 0 AND Version = :version
    AND (:fence = -1 OR Fence = :fence)
RETURNING Version;

-- name: insert_outbox
-- rows: run_id, job_id, kind, scheduled_for, attempt, prior_state
-- returns: RunId
-- Extra slots and replays: attempts that wait for a beat. A missing row: the job is gone, or about to go.
-- The job is locked, so that it is not deleted meanwhile: nobody would take the attempt up.
WITH p AS (:rows)

INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, DueAt, CreatedAt
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, p.kind, coalesce(p.scheduled_for, :now), p.attempt, 'scheduled',
    p.prior_state, j.Fence,
    :now, :now
FROM p
LOOP JOIN Jobs AS j ON j.Id = key(p.job_id) AND j.Namespace = :namespace AND j.DeleteRequested = 0
FOR SHARE OF j
RETURNING RunId;

-- name: leave_dead
-- rows: run_id
-- returns: RunId
-- Dead letters that are replayed keep their history; the row names its successor by its slot. A missing row: it was
-- replayed before, its job is gone, or its slot has a later attempt or an open one.
WITH p AS (:rows)

UPDATE JobRuns SET Reason = 'replayed'
WHERE
    Namespace = :namespace AND RunId IN (SELECT p.run_id FROM p) AND State = 'dlq'
    AND coalesce(Reason, '') <> 'replayed'
    AND EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = JobRuns.JobId AND j.DeleteRequested = 0)
    AND NOT EXISTS (
        SELECT 1
        FROM JobRuns AS o
        WHERE
            o.JobId = JobRuns.JobId AND o.ScheduledFor = JobRuns.ScheduledFor AND o.Kind = JobRuns.Kind
            AND (o.Attempt > JobRuns.Attempt OR o.State IN ('scheduled', 'claimed', 'running') OR o.DueAt IS NOT NULL)
    )
RETURNING RunId;

-- name: request_delete
-- returns: Id
-- Zero rows: there is no such job, or it is not at this version; version 0 stands for any.
UPDATE Jobs SET
    DeleteRequested = 1,
    Enabled = 0,
    DisabledReason = 'deleted',
    Version = Version + 1,
    UpdatedAt = :now
WHERE Namespace = :namespace AND JobName = :job_name AND OneOff = 0 AND (:version = 0 OR Version = :version)
RETURNING Id;

-- name: list_runs
-- returns: RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
--   ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
--   CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
-- Newest first. Zero rows: the last page was the last.
SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = :namespace AND RunId < uuid(:before_id)
ORDER BY RunId DESC
LIMIT :page_size;

-- name: list_runs_in
-- returns: RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
--   ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
--   CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
-- The runs in one state among the next :scan_size of list_runs, whose last one closes them in whatever state, so that the
-- next look goes on behind it. Zero rows: that was the last. An index by state would be written with every change of one.
WITH scanned AS MATERIALIZED (
    SELECT RunId
    FROM JobRuns
    WHERE Namespace = :namespace AND RunId < uuid(:before_id)
    ORDER BY RunId DESC
    LIMIT :scan_size
),

page_end AS MATERIALIZED (SELECT s.RunId FROM scanned AS s ORDER BY s.RunId LIMIT 1)

SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE
    Namespace = :namespace AND RunId < uuid(:before_id) AND RunId >= (SELECT p.RunId FROM page_end AS p)
    AND (State = :state OR RunId = (SELECT p.RunId FROM page_end AS p))
ORDER BY RunId DESC;

-- name: list_job_runs
-- returns: RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
--   ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
--   CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
-- The runs of one job, latest slot and attempt first.
SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE JobId = uuid(:job_id) AND Namespace = :namespace AND (ScheduledFor, Attempt) < (:before, :before_attempt)
ORDER BY ScheduledFor DESC, Attempt DESC
LIMIT :page_size;

-- name: list_dead
-- returns: RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
--   ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
--   CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
-- The dead letters, oldest first. Zero rows: the last page was the last.
SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = :namespace AND State = 'dlq' AND RunId > :after_id
ORDER BY RunId
LIMIT :page_size;

-- name: read_run
-- rows: run_id
-- returns: RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
--   ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
--   CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
-- A missing row: there is no such run, or it was purged.
WITH p AS (:rows)

SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = :namespace AND RunId IN (SELECT p.run_id FROM p);

-- name: read_lease_holder
-- returns: Id, RunId, ClaimId, Fence
-- Zero rows: the job is not held by any run.
SELECT Id, RunId, ClaimId, Fence
FROM Jobs
WHERE Namespace = :namespace AND JobName = :job_name AND OneOff = 0 AND LockedBy IS NOT NULL AND RunId IS NOT NULL;

-- name: read_held
-- returns: JobId, RunId, ClaimId, Fence
-- Zero rows: no run of the job goes on by itself, overlapping others.
SELECT r.JobId, r.RunId, r.ClaimId, r.Fence
FROM JobRuns AS r
INNER JOIN Jobs AS j ON j.Id = r.JobId
WHERE r.Namespace = :namespace AND r.HeldBy IS NOT NULL AND j.JobName = :job_name;

-- name: cancel_waiting
-- The attempts of a deleted job that wait for their turn get their outcome; `run_id` is the one that waited for its retry,
-- or that an unlocking by hand left behind.
UPDATE JobRuns SET
    State = 'cancelled',
    PriorState = State,
    Reason = 'job deleted',
    DueAt = NULL,
    FinishedAt = :now
WHERE
    State IN ('scheduled', 'retry', 'claimed', 'running')
    AND (
        (Namespace = :namespace AND DueAt IS NOT NULL AND JobId = uuid(:job_id))
        OR RunId = uuid(:run_id)
    );

-- name: purge_runs
-- returns: ScheduledFor, Purged
-- Ended rows older than the history is kept; dead letters stay until they are purged by name. No slot ends before its
-- instant, so the index by instants bounds the search. A batch begins at `after`, the instant at which the last one
-- ended: what lies before is gone, or is kept.
DELETE FROM JobRuns
WHERE
    RunId IN (
        SELECT r.RunId
        FROM JobRuns AS r
        WHERE
            r.ScheduledFor >= :after AND r.ScheduledFor < long_before(:now, :keep_seconds)
            AND r.FinishedAt < long_before(:now, :keep_seconds)
            AND r.Namespace = :namespace
            AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
            AND r.DueAt IS NULL
            AND (
                r.State <> 'retry'
                OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
            )
        ORDER BY r.ScheduledFor
        LIMIT :batch_size
    )
RETURNING ScheduledFor, 1 AS Purged;

-- name: read_old_runs
-- returns: RunId, ScheduledFor
-- What `purge_runs` would delete, where the database refuses the deletion of one of them.
SELECT r.RunId, r.ScheduledFor
FROM JobRuns AS r
WHERE
    r.ScheduledFor >= :after AND r.ScheduledFor < long_before(:now, :keep_seconds)
    AND r.FinishedAt < long_before(:now, :keep_seconds)
    AND r.Namespace = :namespace
    AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND r.DueAt IS NULL
    AND (
        r.State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
    )
ORDER BY r.ScheduledFor
LIMIT :page_size;

-- name: purge_old_runs
-- rows: run_id
-- returns: RunId
-- Some of what `read_old_runs` gave.
WITH p AS (:rows)

DELETE FROM JobRuns
WHERE
    RunId IN (SELECT p.run_id FROM p) AND Namespace = :namespace
    AND State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND DueAt IS NULL
    AND (
        State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = JobRuns.JobId AND j.RetryRunId = JobRuns.RunId)
    )
RETURNING RunId;

-- name: purge_dead
-- rows: run_id
-- returns: RunId
-- A missing row: it is no dead letter any more.
WITH p AS (:rows)

DELETE FROM JobRuns
WHERE Namespace = :namespace AND RunId IN (SELECT p.run_id FROM p) AND State = 'dlq'
RETURNING RunId;

-- name: read_old_nodes
-- returns: NodeId
-- Nodes that were not alive for so long, by name. Zero rows: the last page was the last.
SELECT NodeId
FROM Nodes
WHERE
    Namespace = :namespace AND NodeId > :after_name
    AND HeartbeatAt < long_before(:now, :keep_seconds)
ORDER BY NodeId
LIMIT :page_size;

-- name: purge_nodes
-- rows: node_id
-- returns: NodeId
-- Some of what `read_old_nodes` gave. A missing row: it has come back.
WITH p AS (:rows)

DELETE FROM Nodes
WHERE
    Namespace = :namespace AND NodeId IN (SELECT p.node_id FROM p)
    AND HeartbeatAt < long_before(:now, :keep_seconds)
RETURNING NodeId;

-- name: read_namespace
-- returns: IsUsed, Total
-- Whether a job, a node or a held lock is in a namespace, and how many rows it has beside jobs, runs and nodes.
SELECT
    CASE
        WHEN
            EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Namespace = :namespace)
            OR EXISTS (SELECT 1 FROM Nodes AS n WHERE n.Namespace = :namespace)
            OR EXISTS (SELECT 1 FROM Locks AS l WHERE l.Namespace = :namespace AND l.LeaseEndsAt > :now)
            THEN 1
        ELSE 0
    END AS IsUsed,
    (SELECT count(*) FROM Releases AS r WHERE r.Namespace = :namespace)
    + (SELECT count(*) FROM DeletedJobs AS d WHERE d.Namespace = :namespace)
    + (SELECT count(*) FROM Locks AS l WHERE l.Namespace = :namespace)
    + (SELECT count(*) FROM IdempotencyKeys AS k WHERE k.Namespace = :namespace)
    + (SELECT count(*) FROM Changes AS c WHERE c.Namespace = :namespace) AS Total;

-- name: forget_releases
DELETE FROM Releases WHERE Namespace = :namespace;

-- name: forget_names
DELETE FROM DeletedJobs WHERE Namespace = :namespace;

-- name: forget_locks
DELETE FROM Locks WHERE Namespace = :namespace;

-- name: forget_keys
DELETE FROM IdempotencyKeys WHERE Namespace = :namespace;

-- name: forget_counter
DELETE FROM Changes WHERE Namespace = :namespace;

-- name: read_deleted_jobs
-- returns: JobName, IsNew, IsBelow
-- Names that were deleted and are not noted yet, and those that were noted long ago: whether the floor of their
-- namespace stands for them. By name. Zero rows: the last page was the last.
SELECT
    d.JobName,
    CASE WHEN d.DeletedAt IS NULL THEN 1 ELSE 0 END AS IsNew,
    CASE WHEN d.Fence <= coalesce(c.FenceFloor, -1) THEN 1 ELSE 0 END AS IsBelow
FROM DeletedJobs AS d
LEFT JOIN Changes AS c ON c.Namespace = d.Namespace
WHERE
    d.Namespace = :namespace AND d.JobName > :after_name
    AND (d.DeletedAt IS NULL OR d.DeletedAt < long_before(:now, :keep_seconds))
ORDER BY d.JobName
LIMIT :page_size;

-- name: forget_deleted_jobs
-- rows: job_name
-- returns: JobName
-- Names that were deleted long ago, once the floor of their namespace stands for them. A missing row: it does not.
WITH p AS (:rows)

DELETE FROM DeletedJobs
WHERE
    Namespace = :namespace AND JobName IN (SELECT p.job_name FROM p)
    AND DeletedAt < long_before(:now, :keep_seconds)
    AND Fence <= (SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = :namespace)
RETURNING JobName;

-- name: raise_fence_floor
-- To the fences of the names that the next pass forgets.
UPDATE Changes SET FenceFloor = (
    SELECT max(d.Fence) FROM DeletedJobs AS d
    WHERE d.Namespace = :namespace AND d.DeletedAt < long_before(:now, :keep_seconds)
)
WHERE Namespace = :namespace AND FenceFloor < (
    SELECT max(d.Fence) FROM DeletedJobs AS d
    WHERE d.Namespace = :namespace AND d.DeletedAt < long_before(:now, :keep_seconds)
);

-- name: note_deleted_jobs
-- rows: job_name
-- returns: JobName
-- From now on they count as deleted; the triggers know no clock. A missing row: another beat has noted it.
WITH p AS (:rows)

UPDATE DeletedJobs SET DeletedAt = :now
WHERE Namespace = :namespace AND JobName IN (SELECT p.job_name FROM p) AND DeletedAt IS NULL
RETURNING JobName;
