-- Written by `make sql` from sql/source: change it there.
-- What an administrator reads and writes. The clock as in beat.sql.

-- name: insert_jobs
-- parameters: namespace text(100)
-- rows: job_name text(200), task_name text(200), schedule text(1000), time_zone text(100), args text, kwargs text,
--   options text, policies text, enabled flag, start_at instant, next_run_time instant, lock_timeout_minutes int
-- returns: JobName text(200)
-- A missing row: a job of that name is there already.
-- The ids of a batch differ in their last part alone, by which the block finds the rows that it has added.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT left(UUID(), 24)
INTO @batch;

INSERT INTO Jobs (
    Id, Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, Policies, Enabled, StartAt, NextRunTime,
    LockTimeoutMinutes, CreatedAt, UpdatedAt
)
SELECT
    concat(@batch, lpad(hex(row_number() OVER (ORDER BY p.job_name)), 12, '0')), %(namespace)s, p.job_name, p.task_name,
    p.schedule, p.time_zone, p.args, p.kwargs, p.options, p.policies, p.enabled, p.start_at, p.next_run_time,
    p.lock_timeout_minutes, CAST(@now AS datetime(6)), CAST(@now AS datetime(6))
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_name mediumtext PATH '$[0]' ERROR ON ERROR,
        task_name mediumtext PATH '$[1]' ERROR ON ERROR,
        schedule mediumtext PATH '$[2]' ERROR ON ERROR,
        time_zone mediumtext PATH '$[3]' ERROR ON ERROR,
        args mediumtext PATH '$[4]' ERROR ON ERROR,
        kwargs mediumtext PATH '$[5]' ERROR ON ERROR,
        options mediumtext PATH '$[6]' ERROR ON ERROR,
        policies mediumtext PATH '$[7]' ERROR ON ERROR,
        enabled smallint PATH '$[8]' ERROR ON ERROR,
        start_at datetime(6) PATH '$[9]' ERROR ON ERROR,
        next_run_time datetime(6) PATH '$[10]' ERROR ON ERROR,
        lock_timeout_minutes integer PATH '$[11]' ERROR ON ERROR
    )
) AS p
LEFT JOIN Jobs AS o ON o.Namespace = %(namespace)s AND o.JobName = p.job_name
WHERE o.Id IS NULL
ON DUPLICATE KEY UPDATE Version = Jobs.Version;

SELECT j.JobName
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_name mediumtext PATH '$[0]' ERROR ON ERROR,
        task_name mediumtext PATH '$[1]' ERROR ON ERROR,
        schedule mediumtext PATH '$[2]' ERROR ON ERROR,
        time_zone mediumtext PATH '$[3]' ERROR ON ERROR,
        args mediumtext PATH '$[4]' ERROR ON ERROR,
        kwargs mediumtext PATH '$[5]' ERROR ON ERROR,
        options mediumtext PATH '$[6]' ERROR ON ERROR,
        policies mediumtext PATH '$[7]' ERROR ON ERROR,
        enabled smallint PATH '$[8]' ERROR ON ERROR,
        start_at datetime(6) PATH '$[9]' ERROR ON ERROR,
        next_run_time datetime(6) PATH '$[10]' ERROR ON ERROR,
        lock_timeout_minutes integer PATH '$[11]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j ON j.Namespace = %(namespace)s AND j.JobName = p.job_name
WHERE j.Id LIKE concat(@batch, '%%');

-- name: update_job
-- parameters: namespace text(100), job_name text(200), task_name text(200), schedule text(1000), time_zone text(100),
--   args text, kwargs text, options text, policies text, lock_timeout_minutes int, start_at instant,
--   reschedule flag, next_run_time instant, enabled int, reason text(400), version bigint, fence bigint
-- returns: Version bigint
-- Zero rows: the job is gone, it is no longer at this version, or its run has ended since it was read (:fence, as in
-- resume_job). :enabled is -1 where that stays as it is; a job whose schedule had come to its end goes on if it has
-- another one now.
SET @now = utc_timestamp(6);
SELECT max(Enabled)
INTO @was_enabled
FROM Jobs
WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND OneOff = 0
FOR UPDATE;

UPDATE Jobs SET
    TaskName = %(task_name)s,
    Schedule = %(schedule)s,
    TimeZone = %(time_zone)s,
    Args = %(args)s,
    Kwargs = %(kwargs)s,
    Options = %(options)s,
    Policies = %(policies)s,
    LockTimeoutMinutes = %(lock_timeout_minutes)s,
    StartAt = %(start_at)s,
    NextRunTime = CASE WHEN %(reschedule)s = 1 THEN %(next_run_time)s ELSE NextRunTime END,
    Enabled = CASE
        WHEN %(enabled)s >= 0 THEN %(enabled)s
        WHEN %(reschedule)s = 1 AND DisabledReason = 'finished' THEN 1
        ELSE Enabled
    END,
    DisabledReason = CASE
        WHEN %(enabled)s = 1 OR (%(reschedule)s = 1 AND DisabledReason = 'finished' AND %(enabled)s < 0) THEN NULL
        WHEN %(enabled)s = 0 AND @was_enabled = 1 THEN %(reason)s
        ELSE DisabledReason
    END,
    Quarantine = NULL,
    Version = Version + 1,
    UpdatedAt = CAST(@now AS datetime(6))
WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND OneOff = 0 AND Version = %(version)s
    AND (%(fence)s = -1 OR Fence = %(fence)s);

SELECT Version FROM Jobs WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND row_count() > 0;

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
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, CAST(@now AS datetime(6)) AS Now
FROM Jobs
WHERE Namespace = %(namespace)s AND OneOff = %(one_off)s AND JobName IN (SELECT p.job_name FROM JSON_TABLE(@rows, '$[*]' COLUMNS (job_name mediumtext PATH '$[0]' ERROR ON ERROR)) AS p);

-- name: list_jobs
-- parameters: namespace text(100), after_name text(200), page_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- Zero rows: the last page was the last.
SET @now = utc_timestamp(6);
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, CAST(@now AS datetime(6)) AS Now
FROM Jobs FORCE INDEX (Jobs_Listed)
WHERE Namespace = %(namespace)s AND OneOff = 0 AND JobName > %(after_name)s
ORDER BY JobName
LIMIT %(page_size)s;

-- name: list_quarantined
-- parameters: namespace text(100), after_name text(200), page_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- The jobs that cannot run as they are written, by name. Zero rows: the last page was the last.
SET @now = utc_timestamp(6);
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, CAST(@now AS datetime(6)) AS Now
FROM Jobs
WHERE Namespace = %(namespace)s AND OneOff = 0 AND Quarantine IS NOT NULL AND JobName > %(after_name)s
ORDER BY JobName
LIMIT %(page_size)s;

-- name: count_jobs
-- parameters: namespace text(100)
-- returns: Total bigint, Active bigint, Held bigint, Retrying bigint, SetAside bigint, Due bigint, DueAt instant,
--   Dead bigint, Now instant
-- Always one row: how many jobs there are of each kind, and since when the longest waiting one is due.
SET @now = utc_timestamp(6);
SELECT
    count(*) AS Total,
    coalesce(sum(CASE WHEN Enabled = 1 THEN 1 ELSE 0 END), 0) AS Active,
    coalesce(sum(CASE WHEN LockedBy IS NOT NULL THEN 1 ELSE 0 END), 0) AS Held,
    coalesce(sum(CASE WHEN RetryAt IS NOT NULL THEN 1 ELSE 0 END), 0) AS Retrying,
    coalesce(sum(CASE WHEN Quarantine IS NOT NULL THEN 1 ELSE 0 END), 0) AS SetAside,
    coalesce(sum(CASE WHEN Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL AND coalesce(RetryAt, NextRunTime) <= CAST(@now AS datetime(6)) THEN 1 ELSE 0 END), 0) AS Due,
    min(CASE WHEN Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL AND coalesce(RetryAt, NextRunTime) <= CAST(@now AS datetime(6)) THEN coalesce(RetryAt, NextRunTime) END) AS DueAt,
    (SELECT count(*) FROM JobRuns AS d WHERE d.Namespace = %(namespace)s AND d.State = 'dlq') AS Dead,
    CAST(@now AS datetime(6)) AS Now
FROM Jobs FORCE INDEX (Jobs_Listed)
WHERE Namespace = %(namespace)s AND OneOff = 0;

-- name: read_running
-- parameters: namespace text(100), since_seconds seconds, page_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, RunId id, StartedBy text,
--   StartedAt instant, Now instant
-- Runs that began :since_seconds ago or earlier and go on, by the indexes of held jobs and runs. Zero rows: none.
SET @now = utc_timestamp(6);
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, r.RunId, r.StartedBy, r.StartedAt, CAST(@now AS datetime(6)) AS Now
FROM JobRuns AS r
INNER JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.RunId IN (
        SELECT h.RunId
        FROM Jobs AS h
        WHERE h.Namespace = %(namespace)s AND h.LockedBy IS NOT NULL
        UNION ALL
        SELECT b.RunId
        FROM JobRuns AS b
        WHERE b.Namespace = %(namespace)s AND b.HeldBy IS NOT NULL
    )
    AND r.State = 'running' AND r.StartedAt <= CAST(@now AS datetime(6)) - INTERVAL %(since_seconds)s SECOND
ORDER BY r.StartedAt
LIMIT %(page_size)s;

-- name: count_states
-- parameters: since_seconds seconds, namespace text(100)
-- returns: State text, Slots bigint
-- How many attempts of the jobs' slots of the last :since_seconds seconds are in each state. Zero rows: nothing was due.
SET @now = utc_timestamp(6);
SELECT State, sum(SlotCount) AS Slots
FROM JobRuns
WHERE ScheduledFor > CAST(@now AS datetime(6)) - INTERVAL %(since_seconds)s SECOND AND ScheduledFor <= CAST(@now AS datetime(6)) AND Namespace = %(namespace)s AND Kind <> 'one_off'
GROUP BY State;

-- name: seal_job
-- parameters: args text, kwargs text, namespace text(100), job_name text(200), version bigint
-- returns: Version bigint
-- Zero rows: the job is gone, or not at this version.
SET @now = utc_timestamp(6);
UPDATE Jobs SET Args = %(args)s, Kwargs = %(kwargs)s, Version = Version + 1, UpdatedAt = CAST(@now AS datetime(6))
WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND Version = %(version)s;

SELECT Version FROM Jobs WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND row_count() > 0;

-- name: pause_job
-- parameters: reason text(400), namespace text(100), job_name text(200), version bigint
-- returns: Version bigint
-- Zero rows: the job is gone or paused already, or not at this version; version 0 stands for any.
SET @now = utc_timestamp(6);
UPDATE Jobs SET Enabled = 0, DisabledReason = %(reason)s, Version = Version + 1, UpdatedAt = CAST(@now AS datetime(6))
WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND OneOff = 0 AND Enabled = 1 AND (%(version)s = 0 OR Version = %(version)s);

SELECT Version FROM Jobs WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND row_count() > 0;

-- name: resume_job
-- parameters: finished flag, next_run_time instant, namespace text(100), job_name text(200), version bigint,
--   fence bigint
-- returns: Version bigint
-- Zero rows: the job is gone, it was changed since it was read, or its run has ended since then and moved its next slot
-- (every end of a run raises the fence; :fence is -1 where that does not matter).
SET @now = utc_timestamp(6);
UPDATE Jobs SET
    Enabled = CASE WHEN %(finished)s = 1 THEN 0 ELSE 1 END,
    DisabledReason = CASE WHEN %(finished)s = 1 THEN 'finished' END,
    NextRunTime = %(next_run_time)s,
    Version = Version + 1,
    UpdatedAt = CAST(@now AS datetime(6))
WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND OneOff = 0 AND Enabled = 0 AND Version = %(version)s
    AND (%(fence)s = -1 OR Fence = %(fence)s);

SELECT Version FROM Jobs WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND row_count() > 0;

-- name: insert_outbox
-- parameters: namespace text(100)
-- rows: run_id id, job_id id, kind word(20), scheduled_for instant, attempt int, prior_state word(20)
-- returns: RunId id
-- Extra slots and replays: attempts that wait for a beat. A missing row: the job is gone, or about to go.
-- The job is locked, so that it is not deleted meanwhile: nobody would take the attempt up.
SET @now = utc_timestamp(6), @rows = %(rows)s;
INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, DueAt, CreatedAt
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, p.kind, coalesce(p.scheduled_for, CAST(@now AS datetime(6))), p.attempt, 'scheduled',
    p.prior_state, j.Fence, CAST(@now AS datetime(6)), CAST(@now AS datetime(6))
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        job_id char(36) PATH '$[1]' ERROR ON ERROR,
        kind mediumtext PATH '$[2]' ERROR ON ERROR,
        scheduled_for datetime(6) PATH '$[3]' ERROR ON ERROR,
        attempt integer PATH '$[4]' ERROR ON ERROR,
        prior_state mediumtext PATH '$[5]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id AND j.Namespace = %(namespace)s AND j.DeleteRequested = 0
LOCK IN SHARE MODE;

SELECT r.RunId
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        job_id char(36) PATH '$[1]' ERROR ON ERROR,
        kind mediumtext PATH '$[2]' ERROR ON ERROR,
        scheduled_for datetime(6) PATH '$[3]' ERROR ON ERROR,
        attempt integer PATH '$[4]' ERROR ON ERROR,
        prior_state mediumtext PATH '$[5]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id;

-- name: leave_dead
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- Dead letters that are replayed keep their history; the row names its successor by its slot. A missing row: it was
-- replayed before, its job is gone, or its slot has a later attempt or an open one.
SET @rows = %(rows)s;
SELECT json_arrayagg(r.RunId)
INTO @won
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (run_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
WHERE
    r.Namespace = %(namespace)s AND r.State = 'dlq' AND coalesce(r.Reason, '') <> 'replayed'
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
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = w.RunId
SET r.Reason = 'replayed';

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w;

-- name: request_delete
-- parameters: namespace text(100), job_name text(200), version bigint
-- returns: Id id
-- Zero rows: there is no such job, or it is not at this version; version 0 stands for any.
SET @now = utc_timestamp(6);
UPDATE Jobs SET
    DeleteRequested = 1,
    Enabled = 0,
    DisabledReason = 'deleted',
    Version = Version + 1,
    UpdatedAt = CAST(@now AS datetime(6))
WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND OneOff = 0 AND (%(version)s = 0 OR Version = %(version)s);

SELECT Id FROM Jobs WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND row_count() > 0;

-- name: list_runs
-- parameters: namespace text(100), before_id word(36), page_size int
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- Newest first. Zero rows: the last page was the last.
SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = %(namespace)s AND RunId < %(before_id)s
ORDER BY RunId DESC
LIMIT %(page_size)s;

-- name: list_runs_in
-- parameters: namespace text(100), before_id word(36), scan_size int, state word(20)
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- The runs in one state among the next :scan_size of list_runs, whose last one closes them in whatever state, so that the
-- next look goes on behind it. Zero rows: that was the last. An index by state would be written with every change of one.
SELECT min(s.RunId)
INTO @page_end
FROM (
    SELECT RunId
    FROM JobRuns
    WHERE Namespace = %(namespace)s AND RunId < %(before_id)s
    ORDER BY RunId DESC
    LIMIT %(scan_size)s
) AS s;

SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = %(namespace)s AND RunId < %(before_id)s AND RunId >= @page_end AND (State = %(state)s OR RunId = @page_end)
ORDER BY RunId DESC;

-- name: list_job_runs
-- parameters: job_id id, namespace text(100), before instant, before_attempt int, page_size int
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- The runs of one job, latest slot and attempt first.
SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE JobId = %(job_id)s AND Namespace = %(namespace)s AND (ScheduledFor, Attempt) < (%(before)s, %(before_attempt)s)
ORDER BY ScheduledFor DESC, Attempt DESC
LIMIT %(page_size)s;

-- name: list_dead
-- parameters: namespace text(100), after_id word(36), page_size int
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- The dead letters, oldest first. Zero rows: the last page was the last.
SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = %(namespace)s AND Dead = 1 AND RunId > %(after_id)s
ORDER BY RunId
LIMIT %(page_size)s;

-- name: read_run
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- A missing row: there is no such run, or it was purged.
SET @rows = %(rows)s;
SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = %(namespace)s AND RunId IN (SELECT p.run_id FROM JSON_TABLE(@rows, '$[*]' COLUMNS (run_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p);

-- name: read_lease_holder
-- parameters: namespace text(100), job_name text(200)
-- returns: Id id, RunId id, ClaimId id, Fence bigint
-- Zero rows: the job is not held by any run.
SELECT Id, RunId, ClaimId, Fence
FROM Jobs
WHERE Namespace = %(namespace)s AND JobName = %(job_name)s AND OneOff = 0 AND LockedBy IS NOT NULL AND RunId IS NOT NULL;

-- name: read_held
-- parameters: namespace text(100), job_name text(200)
-- returns: JobId id, RunId id, ClaimId id, Fence bigint
-- Zero rows: no run of the job goes on by itself, overlapping others.
SELECT r.JobId, r.RunId, r.ClaimId, r.Fence
FROM JobRuns AS r
INNER JOIN Jobs AS j ON j.Id = r.JobId
WHERE r.Namespace = %(namespace)s AND r.HeldBy IS NOT NULL AND j.JobName = %(job_name)s;

-- name: cancel_waiting
-- parameters: namespace text(100), job_id id, run_id id
-- The attempts of a deleted job that wait for their turn get their outcome; `run_id` is the one that waited for its retry,
-- or that an unlocking by hand left behind.
SET @now = utc_timestamp(6);
UPDATE JobRuns SET
    PriorState = State,
    State = 'cancelled',
    Reason = 'job deleted',
    DueAt = NULL,
    FinishedAt = CAST(@now AS datetime(6))
WHERE Namespace = %(namespace)s AND DueAt IS NOT NULL AND JobId = %(job_id)s AND State IN ('scheduled', 'retry', 'claimed', 'running');

UPDATE JobRuns SET
    PriorState = State,
    State = 'cancelled',
    Reason = 'job deleted',
    DueAt = NULL,
    FinishedAt = CAST(@now AS datetime(6))
WHERE RunId = %(run_id)s AND State IN ('scheduled', 'retry', 'claimed', 'running');

-- name: purge_runs
-- parameters: after instant, keep_seconds seconds, namespace text(100), batch_size int
-- returns: ScheduledFor instant, Purged bigint
-- Ended rows older than the history is kept; dead letters stay until they are purged by name. No slot ends before its
-- instant, so the index by instants bounds the search. A batch begins at `after`, the instant at which the last one
-- ended: what lies before is gone, or is kept. Any number of beats share the work, as each passes the rows of the others by.
SET @now = utc_timestamp(6);
SELECT json_arrayagg(o.RunId), max(o.ScheduledFor), count(*)
INTO @won, @last, @count
FROM (
    SELECT r.RunId, r.ScheduledFor
    FROM JobRuns AS r FORCE INDEX (JobRuns_Slot)
    WHERE
        r.ScheduledFor >= %(after)s AND r.ScheduledFor < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
        AND r.FinishedAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
        AND r.Namespace = %(namespace)s
        AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
        AND r.DueAt IS NULL
        AND (
            r.State <> 'retry'
            OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
        )
    ORDER BY r.ScheduledFor
    LIMIT %(batch_size)s
    FOR UPDATE SKIP LOCKED
) AS o;

DELETE r
FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = w.RunId;

SELECT CAST(@last AS datetime(6)) AS ScheduledFor, @count AS Purged;

-- name: read_old_runs
-- parameters: after instant, keep_seconds seconds, namespace text(100), page_size int
-- returns: RunId id, ScheduledFor instant
-- What `purge_runs` would delete, where the database refuses the deletion of one of them.
SET @now = utc_timestamp(6);
SELECT r.RunId, r.ScheduledFor
FROM JobRuns AS r
WHERE
    r.ScheduledFor >= %(after)s AND r.ScheduledFor < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
    AND r.FinishedAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
    AND r.Namespace = %(namespace)s
    AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND r.DueAt IS NULL
    AND (
        r.State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
    )
ORDER BY r.ScheduledFor
LIMIT %(page_size)s;

-- name: purge_old_runs
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- Some of what `read_old_runs` gave, without those that another beat is deleting.
SET @rows = %(rows)s;
SELECT json_arrayagg(r.RunId)
INTO @won
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (run_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
WHERE
    r.Namespace = %(namespace)s
    AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND r.DueAt IS NULL
    AND (
        r.State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
    )
FOR UPDATE SKIP LOCKED;

DELETE r
FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = w.RunId;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w;

-- name: purge_dead
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- A missing row: it is no dead letter any more.
SET @rows = %(rows)s;
SELECT json_arrayagg(r.RunId)
INTO @won
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (run_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
WHERE r.Namespace = %(namespace)s AND r.State = 'dlq'
FOR UPDATE;

DELETE r
FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = w.RunId;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS w;

-- name: read_old_nodes
-- parameters: namespace text(100), after_name text(200), keep_seconds seconds, page_size int
-- returns: NodeId text(200)
-- Nodes that were not alive for so long, by name. Zero rows: the last page was the last.
SET @now = utc_timestamp(6);
SELECT NodeId
FROM Nodes
WHERE
    Namespace = %(namespace)s AND NodeId > %(after_name)s
    AND HeartbeatAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
ORDER BY NodeId
LIMIT %(page_size)s;

-- name: purge_nodes
-- parameters: namespace text(100), keep_seconds seconds
-- rows: node_id text(200)
-- returns: NodeId text(200)
-- Some of what `read_old_nodes` gave. A missing row: it has come back.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(n.NodeId)
INTO @won
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (node_id mediumtext PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN Nodes AS n ON n.Namespace = %(namespace)s AND n.NodeId = p.node_id
WHERE n.HeartbeatAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
FOR UPDATE;

DELETE n
FROM JSON_TABLE(@won, '$[*]' COLUMNS (NodeId varchar(200) PATH '$')) AS w
STRAIGHT_JOIN Nodes AS n ON n.Namespace = %(namespace)s AND n.NodeId = w.NodeId;

SELECT w.NodeId FROM JSON_TABLE(@won, '$[*]' COLUMNS (NodeId varchar(200) PATH '$')) AS w;

-- name: read_namespace
-- parameters: namespace text(100)
-- returns: IsUsed int, Total bigint
-- Whether a job, a node or a held lock is in a namespace, and how many rows it has beside jobs, runs and nodes.
SET @now = utc_timestamp(6);
SELECT
    CASE
        WHEN
            EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Namespace = %(namespace)s)
            OR EXISTS (SELECT 1 FROM Nodes AS n WHERE n.Namespace = %(namespace)s)
            OR EXISTS (SELECT 1 FROM Locks AS l WHERE l.Namespace = %(namespace)s AND l.LeaseEndsAt > CAST(@now AS datetime(6)))
            THEN 1
        ELSE 0
    END AS IsUsed,
    (SELECT count(*) FROM Releases AS r WHERE r.Namespace = %(namespace)s)
    + (SELECT count(*) FROM DeletedJobs AS d WHERE d.Namespace = %(namespace)s)
    + (SELECT count(*) FROM Locks AS l WHERE l.Namespace = %(namespace)s)
    + (SELECT count(*) FROM IdempotencyKeys AS k WHERE k.Namespace = %(namespace)s)
    + (SELECT count(*) FROM Changes AS c WHERE c.Namespace = %(namespace)s) AS Total;

-- name: forget_releases
-- parameters: namespace text(100)
DELETE FROM Releases WHERE Namespace = %(namespace)s;

-- name: forget_names
-- parameters: namespace text(100)
DELETE FROM DeletedJobs WHERE Namespace = %(namespace)s;

-- name: forget_locks
-- parameters: namespace text(100)
DELETE FROM Locks WHERE Namespace = %(namespace)s;

-- name: forget_keys
-- parameters: namespace text(100)
DELETE FROM IdempotencyKeys WHERE Namespace = %(namespace)s;

-- name: forget_counter
-- parameters: namespace text(100)
DELETE FROM Changes WHERE Namespace = %(namespace)s;

-- name: read_deleted_jobs
-- parameters: namespace text(100), after_name text(200), keep_seconds seconds, page_size int
-- returns: JobName text(200), IsNew int, IsBelow int
-- Names that were deleted and are not noted yet, and those that were noted long ago: whether the floor of their
-- namespace stands for them. By name. Zero rows: the last page was the last.
SET @now = utc_timestamp(6);
SELECT
    d.JobName,
    CASE WHEN d.DeletedAt IS NULL THEN 1 ELSE 0 END AS IsNew,
    CASE WHEN d.Fence <= coalesce(c.FenceFloor, -1) THEN 1 ELSE 0 END AS IsBelow
FROM DeletedJobs AS d
LEFT JOIN Changes AS c ON c.Namespace = d.Namespace
WHERE
    d.Namespace = %(namespace)s AND d.JobName > %(after_name)s
    AND (d.DeletedAt IS NULL OR d.DeletedAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND)
ORDER BY d.JobName
LIMIT %(page_size)s;

-- name: forget_deleted_jobs
-- parameters: namespace text(100), keep_seconds seconds
-- rows: job_name text(200)
-- returns: JobName text(200)
-- Names that were deleted long ago, once the floor of their namespace stands for them. A missing row: it does not.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(d.JobName)
INTO @won
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (job_name mediumtext PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN DeletedJobs AS d ON d.Namespace = %(namespace)s AND d.JobName = p.job_name
WHERE
    d.DeletedAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
    AND d.Fence <= (SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = %(namespace)s)
FOR UPDATE;

DELETE d
FROM JSON_TABLE(@won, '$[*]' COLUMNS (JobName varchar(200) PATH '$')) AS w
STRAIGHT_JOIN DeletedJobs AS d ON d.Namespace = %(namespace)s AND d.JobName = w.JobName;

SELECT w.JobName FROM JSON_TABLE(@won, '$[*]' COLUMNS (JobName varchar(200) PATH '$')) AS w;

-- name: raise_fence_floor
-- parameters: namespace text(100), keep_seconds seconds
-- To the fences of the names that the next pass forgets.
SET @now = utc_timestamp(6);
UPDATE Changes SET FenceFloor = (
    SELECT max(d.Fence) FROM DeletedJobs AS d
    WHERE d.Namespace = %(namespace)s AND d.DeletedAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
)
WHERE Namespace = %(namespace)s AND FenceFloor < (
    SELECT max(d.Fence) FROM DeletedJobs AS d
    WHERE d.Namespace = %(namespace)s AND d.DeletedAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
);

-- name: note_deleted_jobs
-- parameters: namespace text(100)
-- rows: job_name text(200)
-- returns: JobName text(200)
-- From now on they count as deleted; the triggers know no clock. A missing row: another beat has noted it.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(d.JobName)
INTO @won
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (job_name mediumtext PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN DeletedJobs AS d ON d.Namespace = %(namespace)s AND d.JobName = p.job_name
WHERE d.DeletedAt IS NULL
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (JobName varchar(200) PATH '$')) AS w
STRAIGHT_JOIN DeletedJobs AS d ON d.Namespace = %(namespace)s AND d.JobName = w.JobName
SET d.DeletedAt = CAST(@now AS datetime(6));

SELECT w.JobName FROM JSON_TABLE(@won, '$[*]' COLUMNS (JobName varchar(200) PATH '$')) AS w;
