-- Written by `make sql` from sql/source: change it there.
-- What an administrator reads and writes. Batches, locks and the clock as in beat.sql.

-- name: insert_jobs
-- parameters: namespace text(100)
-- rows: job_name text(200), task_name text(200), schedule text(1000), time_zone text(100), args text, kwargs text,
--   options text, policies text, enabled flag, start_at instant, next_run_time instant, lock_timeout_minutes int
-- returns: JobName text(200)
-- A missing row: a job of that name is there already. The range locks keep others out between the look and the insert.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @inserted TABLE (JobName nvarchar(200) NOT NULL);

INSERT INTO dbo.Jobs (
    Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, Policies, Enabled, StartAt, NextRunTime,
    LockTimeoutMinutes, CreatedAt, UpdatedAt
)
OUTPUT inserted.JobName INTO @inserted (JobName)
SELECT
    @namespace, p.job_name, p.task_name, p.schedule, p.time_zone, p.args, p.kwargs, p.options, p.policies, p.enabled,
    p.start_at, p.next_run_time, p.lock_timeout_minutes, @now, @now
FROM (
    -- Of two rows of one name in the batch, one is taken.
    SELECT
        n.job_name COLLATE Latin1_General_BIN2 AS job_name, n.task_name, n.schedule, n.time_zone, n.args, n.kwargs,
        n.options, n.policies, n.enabled, n.start_at, n.next_run_time, n.lock_timeout_minutes,
        ROW_NUMBER() OVER (PARTITION BY n.job_name COLLATE Latin1_General_BIN2 ORDER BY (SELECT NULL)) AS Copy
    FROM OPENJSON(@rows) WITH (
        job_name nvarchar(200) '$[0]',
        task_name nvarchar(200) '$[1]',
        schedule nvarchar(1000) '$[2]',
        time_zone nvarchar(100) '$[3]',
        args nvarchar(max) '$[4]',
        kwargs nvarchar(max) '$[5]',
        options nvarchar(max) '$[6]',
        policies nvarchar(max) '$[7]',
        enabled bit '$[8]',
        start_at datetime2(6) '$[9]',
        next_run_time datetime2(6) '$[10]',
        lock_timeout_minutes int '$[11]'
    ) AS n
) AS p
WHERE
    p.Copy = 1
    AND NOT EXISTS (
        SELECT 1 FROM dbo.Jobs AS j WITH (INDEX (Jobs_Name), UPDLOCK, HOLDLOCK)
        WHERE j.Namespace = @namespace AND j.JobName = p.job_name
    )
OPTION (LOOP JOIN);

SELECT JobName FROM @inserted;

-- name: update_job
-- parameters: task_name text(200), schedule text(1000), time_zone text(100), args text, kwargs text, options text,
--   policies text, lock_timeout_minutes int, start_at instant, reschedule flag, next_run_time instant,
--   enabled int, reason text(400), namespace text(100), job_name text(200), version bigint, fence bigint
-- returns: Version bigint
-- Zero rows: the job is gone, it is no longer at this version, or its run has ended since it was read (:fence, as in
-- resume_job). :enabled is -1 where that stays as it is; a job whose schedule had come to its end goes on if it has
-- another one now.
DECLARE @task_name nvarchar(200) = ?, @schedule nvarchar(1000) = ?, @time_zone nvarchar(100) = ?, @args nvarchar(max) = ?,
    @kwargs nvarchar(max) = ?, @options nvarchar(max) = ?, @policies nvarchar(max) = ?, @lock_timeout_minutes int = ?,
    @start_at datetime2(6) = ?, @reschedule bit = ?, @next_run_time datetime2(6) = ?, @enabled int = ?,
    @reason nvarchar(400) = ?, @namespace nvarchar(100) = ?, @job_name nvarchar(200) = ?, @version bigint = ?,
    @fence bigint = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @changed TABLE (Version bigint NOT NULL);

UPDATE dbo.Jobs SET
    TaskName = @task_name,
    Schedule = @schedule,
    TimeZone = @time_zone,
    Args = @args,
    Kwargs = @kwargs,
    Options = @options,
    Policies = @policies,
    LockTimeoutMinutes = @lock_timeout_minutes,
    StartAt = @start_at,
    NextRunTime = CASE WHEN @reschedule = 1 THEN @next_run_time ELSE NextRunTime END,
    Enabled = CASE
        WHEN @enabled >= 0 THEN @enabled
        WHEN @reschedule = 1 AND DisabledReason = 'finished' THEN 1
        ELSE Enabled
    END,
    DisabledReason = CASE
        WHEN @enabled = 1 OR (@reschedule = 1 AND DisabledReason = 'finished' AND @enabled < 0) THEN NULL
        WHEN @enabled = 0 AND Enabled = 1 THEN @reason
        ELSE DisabledReason
    END,
    Quarantine = NULL,
    Version = Version + 1,
    UpdatedAt = @now
OUTPUT inserted.Version INTO @changed (Version)
WHERE Namespace = @namespace AND JobName = @job_name AND OneOff = 0 AND Version = @version
    AND (@fence = -1 OR Fence = @fence);

SELECT Version FROM @changed;

-- name: read_jobs
-- parameters: namespace text(100), one_off int
-- rows: job_name text(200)
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- A missing row: there is no such job.
DECLARE @namespace nvarchar(100) = ?, @one_off int = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.Enabled, j.DisabledReason, j.StartAt, j.NextRunTime, j.LastRunTime, j.RetryAt, j.LockedBy,
    j.LockedAt, j.LeaseEndsAt, j.Fence, j.RunId, j.Quarantine, j.CodeKey, j.DeleteRequested, j.Version, j.CodeOwner,
    j.ClaimedAt, j.PublishedAt, j.StartedRetry, j.Republishes, @now AS Now
FROM dbo.Jobs AS j
WHERE
    j.Namespace = @namespace AND j.OneOff = @one_off
    AND j.JobName IN (
        SELECT p.job_name COLLATE Latin1_General_BIN2 FROM OPENJSON(@rows) WITH (job_name nvarchar(200) '$[0]') AS p
    )
OPTION (LOOP JOIN);

-- name: list_jobs
-- parameters: page_size int, namespace text(100), after_name text(200)
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- Zero rows: the last page was the last.
DECLARE @page_size int = ?, @namespace nvarchar(100) = ?, @after_name nvarchar(200) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT TOP (@page_size)
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, @now AS Now
FROM dbo.Jobs
WHERE Namespace = @namespace AND OneOff = 0 AND JobName > @after_name
ORDER BY JobName;

-- name: list_quarantined
-- parameters: page_size int, namespace text(100), after_name text(200)
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- The jobs that cannot run as they are written, by name. Zero rows: the last page was the last.
DECLARE @page_size int = ?, @namespace nvarchar(100) = ?, @after_name nvarchar(200) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT TOP (@page_size)
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, @now AS Now
FROM dbo.Jobs
WHERE Namespace = @namespace AND OneOff = 0 AND Quarantine IS NOT NULL AND JobName > @after_name
ORDER BY JobName;

-- name: count_jobs
-- parameters: namespace text(100)
-- returns: Total bigint, Active bigint, Held bigint, Retrying bigint, SetAside bigint, Due bigint, DueAt instant,
--   Dead bigint, Now instant
-- Always one row: how many jobs there are of each kind, and since when the longest waiting one is due.
DECLARE @namespace nvarchar(100) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT
    COUNT_BIG(*) AS Total,
    coalesce(sum(CASE WHEN Enabled = 1 THEN 1 ELSE 0 END), 0) AS Active,
    coalesce(sum(CASE WHEN LockedBy IS NOT NULL THEN 1 ELSE 0 END), 0) AS Held,
    coalesce(sum(CASE WHEN RetryAt IS NOT NULL THEN 1 ELSE 0 END), 0) AS Retrying,
    coalesce(sum(CASE WHEN Quarantine IS NOT NULL THEN 1 ELSE 0 END), 0) AS SetAside,
    coalesce(sum(CASE WHEN Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL AND coalesce(RetryAt, NextRunTime) <= @now THEN 1 ELSE 0 END), 0) AS Due,
    min(CASE WHEN Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL AND coalesce(RetryAt, NextRunTime) <= @now THEN coalesce(RetryAt, NextRunTime) END) AS DueAt,
    (SELECT COUNT_BIG(*) FROM dbo.JobRuns AS d WHERE d.Namespace = @namespace AND d.State = 'dlq') AS Dead,
    @now AS Now
FROM dbo.Jobs
WHERE Namespace = @namespace AND OneOff = 0;

-- name: read_running
-- parameters: page_size int, namespace text(100), since_seconds seconds
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, RunId id, StartedBy text,
--   StartedAt instant, Now instant
-- Runs that began :since_seconds ago or earlier and go on, by the indexes of held jobs and runs. Zero rows: none.
DECLARE @page_size int = ?, @namespace nvarchar(100) = ?, @since_seconds float(53) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT TOP (@page_size)
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, r.RunId, r.StartedBy, r.StartedAt, @now AS Now
FROM dbo.JobRuns AS r
INNER JOIN dbo.Jobs AS j ON j.Id = r.JobId
WHERE
    r.RunId IN (
        SELECT h.RunId
        FROM dbo.Jobs AS h
        WHERE h.Namespace = @namespace AND h.LockedBy IS NOT NULL
        UNION ALL
        SELECT b.RunId
        FROM dbo.JobRuns AS b
        WHERE b.Namespace = @namespace AND b.HeldBy IS NOT NULL
    )
    AND r.State = 'running' AND r.StartedAt <= DATEADD(
        MICROSECOND, ROUND(1000000 * (-@since_seconds - FLOOR(-@since_seconds)), 0),
        DATEADD(SECOND, FLOOR(-@since_seconds), @now)
    )
ORDER BY r.StartedAt;

-- name: count_states
-- parameters: since_seconds seconds, namespace text(100)
-- returns: State text, Slots bigint
-- How many attempts of the jobs' slots of the last :since_seconds seconds are in each state. Zero rows: nothing was due.
DECLARE @since_seconds float(53) = ?, @namespace nvarchar(100) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT State, SUM(CAST(SlotCount AS bigint)) AS Slots
FROM dbo.JobRuns
WHERE ScheduledFor > DATEADD(
    MICROSECOND, ROUND(1000000 * (-@since_seconds - FLOOR(-@since_seconds)), 0),
    DATEADD(SECOND, FLOOR(-@since_seconds), @now)
) AND ScheduledFor <= @now AND Namespace = @namespace AND Kind <> 'one_off'
GROUP BY State;

-- name: seal_job
-- parameters: args text, kwargs text, namespace text(100), job_name text(200), version bigint
-- returns: Version bigint
-- Zero rows: the job is gone, or not at this version.
DECLARE @args nvarchar(max) = ?, @kwargs nvarchar(max) = ?, @namespace nvarchar(100) = ?, @job_name nvarchar(200) = ?,
    @version bigint = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @changed TABLE (Version bigint NOT NULL);

UPDATE dbo.Jobs SET Args = @args, Kwargs = @kwargs, Version = Version + 1, UpdatedAt = @now
OUTPUT inserted.Version INTO @changed (Version)
WHERE Namespace = @namespace AND JobName = @job_name AND Version = @version;

SELECT Version FROM @changed;

-- name: pause_job
-- parameters: reason text(400), namespace text(100), job_name text(200), version bigint
-- returns: Version bigint
-- Zero rows: the job is gone or paused already, or not at this version; version 0 stands for any.
DECLARE @reason nvarchar(400) = ?, @namespace nvarchar(100) = ?, @job_name nvarchar(200) = ?, @version bigint = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @changed TABLE (Version bigint NOT NULL);

UPDATE dbo.Jobs SET Enabled = 0, DisabledReason = @reason, Version = Version + 1, UpdatedAt = @now
OUTPUT inserted.Version INTO @changed (Version)
WHERE Namespace = @namespace AND JobName = @job_name AND OneOff = 0 AND Enabled = 1 AND (@version = 0 OR Version = @version);

SELECT Version FROM @changed;

-- name: resume_job
-- parameters: finished flag, next_run_time instant, namespace text(100), job_name text(200), version bigint,
--   fence bigint
-- returns: Version bigint
-- Zero rows: the job is gone, it was changed since it was read, or its run has ended since then and moved its next slot
-- (every end of a run raises the fence; :fence is -1 where that does not matter).
DECLARE @finished bit = ?, @next_run_time datetime2(6) = ?, @namespace nvarchar(100) = ?, @job_name nvarchar(200) = ?,
    @version bigint = ?, @fence bigint = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @changed TABLE (Version bigint NOT NULL);

UPDATE dbo.Jobs SET
    Enabled = CASE WHEN @finished = 1 THEN 0 ELSE 1 END,
    DisabledReason = CASE WHEN @finished = 1 THEN 'finished' END,
    NextRunTime = @next_run_time,
    Version = Version + 1,
    UpdatedAt = @now
OUTPUT inserted.Version INTO @changed (Version)
WHERE Namespace = @namespace AND JobName = @job_name AND OneOff = 0 AND Enabled = 0 AND Version = @version
    AND (@fence = -1 OR Fence = @fence);

SELECT Version FROM @changed;

-- name: insert_outbox
-- parameters: namespace text(100)
-- rows: run_id id, job_id id, kind word(20), scheduled_for instant, attempt int, prior_state word(20)
-- returns: RunId id
-- Extra slots and replays: attempts that wait for a beat. A missing row: the job is gone, or about to go.
-- The job is locked, so that it is not deleted meanwhile: nobody would take the attempt up.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @inserted TABLE (RunId uniqueidentifier NOT NULL);

INSERT INTO dbo.JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, DueAt, CreatedAt
)
OUTPUT inserted.RunId INTO @inserted (RunId)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, p.kind, COALESCE(p.scheduled_for, @now), p.attempt, 'scheduled',
    p.prior_state, j.Fence, @now, @now
FROM OPENJSON(@rows) WITH (
    run_id uniqueidentifier '$[0]',
    job_id uniqueidentifier '$[1]',
    kind varchar(20) '$[2]',
    scheduled_for datetime2(6) '$[3]',
    attempt int '$[4]',
    prior_state varchar(20) '$[5]'
) AS p
INNER JOIN dbo.Jobs AS j WITH (UPDLOCK, ROWLOCK)
    ON j.Id = p.job_id AND j.Namespace = @namespace AND j.DeleteRequested = 0
OPTION (LOOP JOIN, FORCE ORDER);

SELECT RunId FROM @inserted;

-- name: leave_dead
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- Dead letters that are replayed keep their history; the row names its successor by its slot. A missing row: it was
-- replayed before, its job is gone, or its slot has a later attempt or an open one.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @changed TABLE (RunId uniqueidentifier NOT NULL);

UPDATE r
SET Reason = N'replayed'
OUTPUT inserted.RunId INTO @changed (RunId)
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE
    r.Namespace = @namespace AND r.State = 'dlq' AND COALESCE(r.Reason, N'') <> N'replayed'
    AND EXISTS (SELECT 1 FROM dbo.Jobs AS j WHERE j.Id = r.JobId AND j.DeleteRequested = 0)
    AND NOT EXISTS (
        SELECT 1
        FROM dbo.JobRuns AS o
        WHERE
            o.JobId = r.JobId AND o.ScheduledFor = r.ScheduledFor AND o.Kind = r.Kind
            AND (o.Attempt > r.Attempt OR o.State IN ('scheduled', 'claimed', 'running') OR o.DueAt IS NOT NULL)
    )
OPTION (LOOP JOIN, FORCE ORDER);

SELECT RunId FROM @changed;

-- name: request_delete
-- parameters: namespace text(100), job_name text(200), version bigint
-- returns: Id id
-- Zero rows: there is no such job, or it is not at this version; version 0 stands for any.
DECLARE @namespace nvarchar(100) = ?, @job_name nvarchar(200) = ?, @version bigint = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @changed TABLE (Id uniqueidentifier NOT NULL);

UPDATE dbo.Jobs SET
    DeleteRequested = 1,
    Enabled = 0,
    DisabledReason = 'deleted',
    Version = Version + 1,
    UpdatedAt = @now
OUTPUT inserted.Id INTO @changed (Id)
WHERE Namespace = @namespace AND JobName = @job_name AND OneOff = 0 AND (@version = 0 OR Version = @version);

SELECT Id FROM @changed;

-- name: list_runs
-- parameters: before_id word(36), page_size int, namespace text(100)
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- Newest first. Zero rows: the last page was the last. A uniqueidentifier does not sort by its time here, Seq does;
-- the highest id stands for the first page.
DECLARE @before_id varchar(36) = ?, @page_size int = ?, @namespace nvarchar(100) = ?;
DECLARE @before_seq bigint = CASE
    WHEN @before_id = 'ffffffff-ffff-ffff-ffff-ffffffffffff' THEN 9223372036854775807
    ELSE (SELECT b.Seq FROM dbo.JobRuns AS b WHERE b.RunId = @before_id)
END;

SELECT TOP (@page_size)
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM dbo.JobRuns
WHERE Namespace = @namespace AND Seq < @before_seq
ORDER BY Seq DESC;

-- name: list_runs_in
-- parameters: before_id word(36), scan_size int, namespace text(100), state word(20)
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- The runs in one state among the next :scan_size of list_runs, whose last one closes them in whatever state, so that the
-- next look goes on behind it. Zero rows: that was the last. An index by state would be written with every change of one.
DECLARE @before_id varchar(36) = ?, @scan_size int = ?, @namespace nvarchar(100) = ?, @state varchar(20) = ?;
DECLARE @before_seq bigint = CASE
    WHEN @before_id = 'ffffffff-ffff-ffff-ffff-ffffffffffff' THEN 9223372036854775807
    ELSE (SELECT b.Seq FROM dbo.JobRuns AS b WHERE b.RunId = @before_id)
END;
DECLARE @last_seq bigint = (
    SELECT MIN(p.Seq)
    FROM (
        SELECT TOP (@scan_size) r.Seq
        FROM dbo.JobRuns AS r
        WHERE r.Namespace = @namespace AND r.Seq < @before_seq
        ORDER BY r.Seq DESC
    ) AS p
);

SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM dbo.JobRuns
WHERE Namespace = @namespace AND Seq < @before_seq AND Seq >= @last_seq AND (State = @state OR Seq = @last_seq)
ORDER BY Seq DESC;

-- name: list_job_runs
-- parameters: page_size int, job_id id, namespace text(100), before instant, before_attempt int
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- The runs of one job, latest slot and attempt first.
DECLARE @page_size int = ?, @job_id uniqueidentifier = ?, @namespace nvarchar(100) = ?, @before datetime2(6) = ?,
    @before_attempt int = ?;

SELECT TOP (@page_size)
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM dbo.JobRuns
WHERE
    JobId = @job_id AND Namespace = @namespace AND ScheduledFor <= @before
    AND (ScheduledFor < @before OR Attempt < @before_attempt)
ORDER BY ScheduledFor DESC, Attempt DESC;

-- name: list_dead
-- parameters: page_size int, namespace text(100), after_id word(36)
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- The dead letters, oldest first. Zero rows: the last page was the last. The text of an id sorts by its time; there are
-- few dead letters, and their index holds nothing but ids.
DECLARE @page_size int = ?, @namespace nvarchar(100) = ?, @after_id varchar(36) = ?;

SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt,
    r.CancelBy, r.CancelReason, r.EffectsDone
FROM (
    SELECT TOP (@page_size) d.RunId, CONVERT(char(36), d.RunId) COLLATE Latin1_General_BIN2 AS IdText
    FROM dbo.JobRuns AS d WITH (INDEX (JobRuns_Dead))
    WHERE
        d.Namespace = @namespace AND d.State = 'dlq'
        AND CONVERT(char(36), d.RunId) COLLATE Latin1_General_BIN2 > UPPER(@after_id)
    ORDER BY CONVERT(char(36), d.RunId) COLLATE Latin1_General_BIN2
) AS dead
INNER JOIN dbo.JobRuns AS r ON r.RunId = dead.RunId
ORDER BY dead.IdText
OPTION (LOOP JOIN);

-- name: read_run
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- A missing row: there is no such run, or it was purged.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;

SELECT
    r.RunId, r.JobId, r.JobName, r.Kind, r.ScheduledFor, r.LastSlot, r.SlotCount, r.Attempt, r.State, r.PriorState,
    r.Reason, r.Fence, r.ClaimedBy, r.ClaimedAt, r.PublishedAt, r.StartedBy, r.StartedAt, r.FinishedAt, r.Failures,
    r.LostLeases, r.DueAt, r.Error, r.Traceback, r.CreatedAt, r.CheckIn, r.TaskName, r.CancelAt,
    r.CancelBy, r.CancelReason, r.EffectsDone
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.JobRuns AS r ON r.RunId = p.run_id
WHERE r.Namespace = @namespace
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_lease_holder
-- parameters: namespace text(100), job_name text(200)
-- returns: Id id, RunId id, ClaimId id, Fence bigint
-- Zero rows: the job is not held by any run.
DECLARE @namespace nvarchar(100) = ?, @job_name nvarchar(200) = ?;

SELECT Id, RunId, ClaimId, Fence
FROM dbo.Jobs
WHERE Namespace = @namespace AND JobName = @job_name AND OneOff = 0 AND LockedBy IS NOT NULL AND RunId IS NOT NULL;

-- name: read_held
-- parameters: namespace text(100), job_name text(200)
-- returns: JobId id, RunId id, ClaimId id, Fence bigint
-- Zero rows: no run of the job goes on by itself, overlapping others.
DECLARE @namespace nvarchar(100) = ?, @job_name nvarchar(200) = ?;

SELECT r.JobId, r.RunId, r.ClaimId, r.Fence
FROM dbo.JobRuns AS r WITH (INDEX (JobRuns_Held))
INNER JOIN dbo.Jobs AS j ON j.Id = r.JobId
WHERE r.Namespace = @namespace AND r.HeldBy IS NOT NULL AND j.JobName = @job_name;

-- name: cancel_waiting
-- parameters: namespace text(100), job_id id, run_id id
-- The attempts of a deleted job that wait for their turn get their outcome; :run_id is the one that waited for its retry,
-- or that an unlocking by hand left behind.
DECLARE @namespace nvarchar(100) = ?, @job_id uniqueidentifier = ?, @run_id uniqueidentifier = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

UPDATE r
SET
    State = 'cancelled',
    PriorState = r.State,
    Reason = N'job deleted',
    DueAt = NULL,
    FinishedAt = @now
FROM (
    SELECT w.RunId
    FROM dbo.JobRuns AS w WITH (INDEX (JobRuns_Outbox))
    WHERE w.Namespace = @namespace AND w.DueAt IS NOT NULL AND w.JobId = @job_id
    UNION
    SELECT @run_id
) AS waiting
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = waiting.RunId
WHERE r.State IN ('scheduled', 'retry', 'claimed', 'running')
OPTION (LOOP JOIN);

-- name: purge_runs
-- parameters: keep_seconds seconds, batch_size int, after instant, namespace text(100)
-- returns: ScheduledFor instant, Purged bigint
-- Ended rows older than the history is kept; dead letters stay until they are purged by name. No slot ends before its
-- instant, so the index by instants bounds the search. A batch begins at `after`, the instant at which the last one
-- ended: what lies before is gone, or is kept. Any number of beats share the work, as each passes the rows of the others by.
DECLARE @keep_seconds float(53) = ?, @batch_size int = ?, @after datetime2(6) = ?, @namespace nvarchar(100) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = DATEADD(
    SECOND, -@keep_seconds - 86400 * FLOOR(-@keep_seconds / 86400), DATEADD(DAY, FLOOR(-@keep_seconds / 86400), @now)
);
DECLARE @purged TABLE (ScheduledFor datetime2(6) NOT NULL);

WITH old AS (
    SELECT TOP (@batch_size) r.ScheduledFor
    FROM dbo.JobRuns AS r WITH (INDEX (JobRuns_Slot), UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE
        r.ScheduledFor >= @after AND r.ScheduledFor < @cutoff AND r.FinishedAt < @cutoff AND r.Namespace = @namespace
        AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
        AND r.DueAt IS NULL
        AND (
            r.State <> 'retry'
            OR NOT EXISTS (SELECT 1 FROM dbo.Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
        )
    ORDER BY r.ScheduledFor
)

DELETE FROM old
OUTPUT deleted.ScheduledFor INTO @purged (ScheduledFor)
OPTION (LOOP JOIN);

SELECT MAX(ScheduledFor) AS ScheduledFor, COUNT(*) AS Purged FROM @purged;

-- name: read_old_runs
-- parameters: keep_seconds seconds, page_size int, after instant, namespace text(100)
-- returns: RunId id, ScheduledFor instant
-- What `purge_runs` would delete, where the database refuses the deletion of one of them.
DECLARE @keep_seconds float(53) = ?, @page_size int = ?, @after datetime2(6) = ?, @namespace nvarchar(100) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = DATEADD(
    SECOND, -@keep_seconds - 86400 * FLOOR(-@keep_seconds / 86400), DATEADD(DAY, FLOOR(-@keep_seconds / 86400), @now)
);

SELECT TOP (@page_size) r.RunId, r.ScheduledFor
FROM dbo.JobRuns AS r WITH (INDEX (JobRuns_Slot), READPAST, READCOMMITTEDLOCK)
WHERE
    r.ScheduledFor >= @after AND r.ScheduledFor < @cutoff AND r.FinishedAt < @cutoff AND r.Namespace = @namespace
    AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND r.DueAt IS NULL
    AND (
        r.State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM dbo.Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
    )
ORDER BY r.ScheduledFor
OPTION (LOOP JOIN);

-- name: purge_old_runs
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- Some of what `read_old_runs` gave, without those that another beat is deleting.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @purged TABLE (RunId uniqueidentifier NOT NULL);

DELETE r
OUTPUT deleted.RunId INTO @purged (RunId)
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.JobRuns AS r WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.RunId = p.run_id
WHERE
    r.Namespace = @namespace
    AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND r.DueAt IS NULL
    AND (
        r.State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM dbo.Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
    )
OPTION (LOOP JOIN, FORCE ORDER);

SELECT RunId FROM @purged;

-- name: purge_dead
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- A missing row: it is no dead letter any more.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @purged TABLE (RunId uniqueidentifier NOT NULL);

DELETE r
OUTPUT deleted.RunId INTO @purged (RunId)
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE r.Namespace = @namespace AND r.State = 'dlq'
OPTION (LOOP JOIN, FORCE ORDER);

SELECT RunId FROM @purged;

-- name: read_old_nodes
-- parameters: page_size int, namespace text(100), after_name text(200), keep_seconds seconds
-- returns: NodeId text(200)
-- Nodes that were not alive for so long, by name. Zero rows: the last page was the last.
DECLARE @page_size int = ?, @namespace nvarchar(100) = ?, @after_name nvarchar(200) = ?, @keep_seconds float(53) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT TOP (@page_size) NodeId
FROM dbo.Nodes
WHERE
    Namespace = @namespace AND NodeId > @after_name
    AND HeartbeatAt < DATEADD(
        SECOND, -@keep_seconds - 86400 * FLOOR(-@keep_seconds / 86400), DATEADD(DAY, FLOOR(-@keep_seconds / 86400), @now)
    )
ORDER BY NodeId;

-- name: purge_nodes
-- parameters: keep_seconds seconds, namespace text(100)
-- rows: node_id text(200)
-- returns: NodeId text(200)
-- Some of what `read_old_nodes` gave. A missing row: it has come back.
DECLARE @keep_seconds float(53) = ?, @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = DATEADD(
    SECOND, -@keep_seconds - 86400 * FLOOR(-@keep_seconds / 86400), DATEADD(DAY, FLOOR(-@keep_seconds / 86400), @now)
);
DECLARE @purged TABLE (NodeId nvarchar(200) NOT NULL);

DELETE n
OUTPUT deleted.NodeId INTO @purged (NodeId)
FROM OPENJSON(@rows) WITH (node_id nvarchar(200) '$[0]') AS p
INNER JOIN dbo.Nodes AS n WITH (ROWLOCK)
    ON n.NodeId = p.node_id COLLATE Latin1_General_BIN2 AND n.Namespace = @namespace
WHERE n.HeartbeatAt < @cutoff
OPTION (LOOP JOIN, FORCE ORDER);

SELECT NodeId FROM @purged;

-- name: read_namespace
-- parameters: namespace text(100)
-- returns: IsUsed int, Total bigint
-- Whether a job, a node or a held lock is in a namespace, and how many rows it has beside jobs, runs and nodes.
DECLARE @namespace nvarchar(100) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT
    CASE
        WHEN
            EXISTS (SELECT 1 FROM dbo.Jobs AS j WHERE j.Namespace = @namespace)
            OR EXISTS (SELECT 1 FROM dbo.Nodes AS n WHERE n.Namespace = @namespace)
            OR EXISTS (SELECT 1 FROM dbo.Locks AS l WHERE l.Namespace = @namespace AND l.LeaseEndsAt > @now)
            THEN 1
        ELSE 0
    END AS IsUsed,
    (SELECT COUNT_BIG(*) FROM dbo.Releases AS r WHERE r.Namespace = @namespace)
    + (SELECT COUNT_BIG(*) FROM dbo.DeletedJobs AS d WHERE d.Namespace = @namespace)
    + (SELECT COUNT_BIG(*) FROM dbo.Locks AS l WHERE l.Namespace = @namespace)
    + (SELECT COUNT_BIG(*) FROM dbo.IdempotencyKeys AS k WHERE k.Namespace = @namespace)
    + (SELECT COUNT_BIG(*) FROM dbo.Changes AS c WHERE c.Namespace = @namespace) AS Total;

-- name: forget_releases
-- parameters: namespace text(100)
DECLARE @namespace nvarchar(100) = ?;

DELETE FROM dbo.Releases WHERE Namespace = @namespace;

-- name: forget_names
-- parameters: namespace text(100)
DECLARE @namespace nvarchar(100) = ?;

DELETE FROM dbo.DeletedJobs WHERE Namespace = @namespace;

-- name: forget_locks
-- parameters: namespace text(100)
DECLARE @namespace nvarchar(100) = ?;

DELETE FROM dbo.Locks WHERE Namespace = @namespace;

-- name: forget_keys
-- parameters: namespace text(100)
DECLARE @namespace nvarchar(100) = ?;

DELETE FROM dbo.IdempotencyKeys WHERE Namespace = @namespace;

-- name: forget_counter
-- parameters: namespace text(100)
DECLARE @namespace nvarchar(100) = ?;

DELETE FROM dbo.Changes WHERE Namespace = @namespace;

-- name: read_deleted_jobs
-- parameters: page_size int, namespace text(100), after_name text(200), keep_seconds seconds
-- returns: JobName text(200), IsNew int, IsBelow int
-- Names that were deleted and are not noted yet, and those that were noted long ago: whether the floor of their
-- namespace stands for them. By name. Zero rows: the last page was the last.
DECLARE @page_size int = ?, @namespace nvarchar(100) = ?, @after_name nvarchar(200) = ?, @keep_seconds float(53) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT TOP (@page_size)
    d.JobName,
    CASE WHEN d.DeletedAt IS NULL THEN 1 ELSE 0 END AS IsNew,
    CASE WHEN d.Fence <= coalesce(c.FenceFloor, -1) THEN 1 ELSE 0 END AS IsBelow
FROM dbo.DeletedJobs AS d
LEFT JOIN dbo.Changes AS c ON c.Namespace = d.Namespace
WHERE
    d.Namespace = @namespace AND d.JobName > @after_name
    AND (d.DeletedAt IS NULL OR d.DeletedAt < DATEADD(
        SECOND, -@keep_seconds - 86400 * FLOOR(-@keep_seconds / 86400), DATEADD(DAY, FLOOR(-@keep_seconds / 86400), @now)
    ))
ORDER BY d.JobName;

-- name: forget_deleted_jobs
-- parameters: keep_seconds seconds, namespace text(100)
-- rows: job_name text(200)
-- returns: JobName text(200)
-- Names that were deleted long ago, once the floor of their namespace stands for them. A missing row: it does not.
DECLARE @keep_seconds float(53) = ?, @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = DATEADD(
    SECOND, -@keep_seconds - 86400 * FLOOR(-@keep_seconds / 86400), DATEADD(DAY, FLOOR(-@keep_seconds / 86400), @now)
);
DECLARE @forgotten TABLE (JobName nvarchar(200) NOT NULL);

DELETE d
OUTPUT deleted.JobName INTO @forgotten (JobName)
FROM OPENJSON(@rows) WITH (job_name nvarchar(200) '$[0]') AS p
INNER JOIN dbo.DeletedJobs AS d WITH (ROWLOCK)
    ON d.Namespace = @namespace AND d.JobName = p.job_name COLLATE Latin1_General_BIN2
INNER JOIN dbo.Changes AS c ON c.Namespace = d.Namespace
WHERE d.DeletedAt < @cutoff AND d.Fence <= c.FenceFloor
OPTION (LOOP JOIN, FORCE ORDER);

SELECT JobName FROM @forgotten;

-- name: raise_fence_floor
-- parameters: keep_seconds seconds, namespace text(100)
-- To the fences of the names that the next pass forgets.
DECLARE @keep_seconds float(53) = ?, @namespace nvarchar(100) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @cutoff datetime2(6) = DATEADD(
    SECOND, -@keep_seconds - 86400 * FLOOR(-@keep_seconds / 86400), DATEADD(DAY, FLOOR(-@keep_seconds / 86400), @now)
);

UPDATE c
SET FenceFloor = f.Highest
FROM dbo.Changes AS c
CROSS APPLY (
    SELECT MAX(d.Fence) AS Highest
    FROM dbo.DeletedJobs AS d
    WHERE d.Namespace = c.Namespace AND d.DeletedAt < @cutoff
) AS f
WHERE c.Namespace = @namespace AND c.FenceFloor < f.Highest;

-- name: note_deleted_jobs
-- parameters: namespace text(100)
-- rows: job_name text(200)
-- returns: JobName text(200)
-- From now on they count as deleted; the triggers know no clock. A missing row: another beat has noted it.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @noted TABLE (JobName nvarchar(200) NOT NULL);

UPDATE d
SET DeletedAt = @now
OUTPUT inserted.JobName INTO @noted (JobName)
FROM OPENJSON(@rows) WITH (job_name nvarchar(200) '$[0]') AS p
INNER JOIN dbo.DeletedJobs AS d WITH (ROWLOCK)
    ON d.Namespace = @namespace AND d.JobName = p.job_name COLLATE Latin1_General_BIN2
WHERE d.DeletedAt IS NULL
OPTION (LOOP JOIN, FORCE ORDER);

SELECT JobName FROM @noted;
