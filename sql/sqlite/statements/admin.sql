-- Written by `make sql` from sql/source: change it there.
-- What an administrator reads and writes. Batches, locks and the clock as in beat.sql.

-- name: insert_jobs
-- parameters: ?1 namespace text(100), ?2 now instant
-- rows: job_name text(200), task_name text(200), schedule text(1000), time_zone text(100), args text, kwargs text,
--   options text, policies text, enabled flag, start_at instant, next_run_time instant, lock_timeout_minutes int
-- returns: JobName text(200)
-- A missing row: a job of that name is there already.
WITH p (
    job_name, task_name, schedule, time_zone, args, kwargs, options, policies, enabled, start_at, next_run_time,
    lock_timeout_minutes
) AS (:rows)

INSERT INTO Jobs (
    Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, Policies, Enabled, StartAt, NextRunTime,
    LockTimeoutMinutes, CreatedAt, UpdatedAt
)
SELECT
    ?1, p.job_name, p.task_name, p.schedule, p.time_zone, p.args, p.kwargs, p.options, p.policies, p.enabled,
    p.start_at, p.next_run_time, p.lock_timeout_minutes, ?2, ?2
FROM p
WHERE true
ON CONFLICT (Namespace, JobName) DO NOTHING
RETURNING JobName;

-- name: update_job
-- parameters: ?1 task_name text(200), ?2 schedule text(1000), ?3 time_zone text(100), ?4 args text, ?5 kwargs text,
--   ?6 options text, ?7 policies text, ?8 lock_timeout_minutes int, ?9 start_at instant, ?10 reschedule flag,
--   ?11 next_run_time instant, ?12 enabled int, ?13 reason text(400), ?14 now instant,
--   ?15 namespace text(100), ?16 job_name text(200), ?17 version bigint, ?18 fence bigint
-- returns: Version bigint
-- Zero rows: the job is gone, it is no longer at this version, or its run has ended since it was read (:fence, as in
-- resume_job). :enabled is -1 where that stays as it is; a job whose schedule had come to its end goes on if it has
-- another one now.
UPDATE Jobs SET
    TaskName = ?1,
    Schedule = ?2,
    TimeZone = ?3,
    Args = ?4,
    Kwargs = ?5,
    Options = ?6,
    Policies = ?7,
    LockTimeoutMinutes = ?8,
    StartAt = ?9,
    NextRunTime = CASE WHEN ?10 = 1 THEN ?11 ELSE NextRunTime END,
    Enabled = CASE
        WHEN ?12 >= 0 THEN ?12
        WHEN ?10 = 1 AND DisabledReason = 'finished' THEN 1
        ELSE Enabled
    END,
    DisabledReason = CASE
        WHEN ?12 = 1 OR (?10 = 1 AND DisabledReason = 'finished' AND ?12 < 0) THEN NULL
        WHEN ?12 = 0 AND Enabled = 1 THEN ?13
        ELSE DisabledReason
    END,
    Quarantine = NULL,
    Version = Version + 1,
    UpdatedAt = ?14
WHERE Namespace = ?15 AND JobName = ?16 AND OneOff = 0 AND Version = ?17
    AND (?18 = -1 OR Fence = ?18)
RETURNING Version;

-- name: read_jobs
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 one_off int
-- rows: job_name text(200)
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- A missing row: there is no such job.
WITH p (job_name) AS (:rows)

SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, ?1 AS Now
FROM Jobs
WHERE Namespace = ?2 AND OneOff = ?3 AND JobName IN (SELECT p.job_name FROM p);

-- name: list_jobs
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 after_name text(200), ?4 page_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- Zero rows: the last page was the last.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, ?1 AS Now
FROM Jobs INDEXED BY Jobs_Listed
WHERE Namespace = ?2 AND OneOff = 0 AND JobName > ?3
ORDER BY JobName
LIMIT ?4;

-- name: list_quarantined
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 after_name text(200), ?4 page_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- The jobs that cannot run as they are written, by name. Zero rows: the last page was the last.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence, RunId,
    Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, ?1 AS Now
FROM Jobs
WHERE Namespace = ?2 AND OneOff = 0 AND Quarantine IS NOT NULL AND JobName > ?3
ORDER BY JobName
LIMIT ?4;

-- name: count_jobs
-- parameters: ?1 now instant, ?2 namespace text(100)
-- returns: Total bigint, Active bigint, Held bigint, Retrying bigint, SetAside bigint, Due bigint, DueAt instant,
--   Dead bigint, Now instant
-- Always one row: how many jobs there are of each kind, and since when the longest waiting one is due.
SELECT
    count(*) AS Total,
    coalesce(sum(CASE WHEN Enabled = 1 THEN 1 ELSE 0 END), 0) AS Active,
    coalesce(sum(CASE WHEN LockedBy IS NOT NULL THEN 1 ELSE 0 END), 0) AS Held,
    coalesce(sum(CASE WHEN RetryAt IS NOT NULL THEN 1 ELSE 0 END), 0) AS Retrying,
    coalesce(sum(CASE WHEN Quarantine IS NOT NULL THEN 1 ELSE 0 END), 0) AS SetAside,
    coalesce(sum(CASE WHEN Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL AND coalesce(RetryAt, NextRunTime) <= ?1 THEN 1 ELSE 0 END), 0) AS Due,
    min(CASE WHEN Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL AND coalesce(RetryAt, NextRunTime) <= ?1 THEN coalesce(RetryAt, NextRunTime) END) AS DueAt,
    (SELECT count(*) FROM JobRuns AS d WHERE d.Namespace = ?2 AND d.State = 'dlq') AS Dead,
    ?1 AS Now
FROM Jobs INDEXED BY Jobs_Listed
WHERE Namespace = ?2 AND OneOff = 0;

-- name: read_running
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 since_seconds seconds, ?4 page_size int
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, RunId id, StartedBy text,
--   StartedAt instant, Now instant
-- Runs that began :since_seconds ago or earlier and go on, by the indexes of held jobs and runs. Zero rows: none.
SELECT
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, r.RunId, r.StartedBy, r.StartedAt, ?1 AS Now
FROM JobRuns AS r
INNER JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.RunId IN (
        SELECT h.RunId
        FROM Jobs AS h
        WHERE h.Namespace = ?2 AND h.LockedBy IS NOT NULL
        UNION ALL
        SELECT b.RunId
        FROM JobRuns AS b
        WHERE b.Namespace = ?2 AND b.HeldBy IS NOT NULL
    )
    AND r.State = 'running' AND r.StartedAt <= after(?1, -?3)
ORDER BY r.StartedAt
LIMIT ?4;

-- name: count_states
-- parameters: ?1 now instant, ?2 since_seconds seconds, ?3 namespace text(100)
-- returns: State text, Slots bigint
-- How many attempts of the jobs' slots of the last :since_seconds seconds are in each state. Zero rows: nothing was due.
SELECT State, sum(SlotCount) AS Slots
FROM JobRuns
WHERE ScheduledFor > after(?1, -?2) AND ScheduledFor <= ?1 AND Namespace = ?3 AND Kind <> 'one_off'
GROUP BY State;

-- name: seal_job
-- parameters: ?1 args text, ?2 kwargs text, ?3 now instant, ?4 namespace text(100), ?5 job_name text(200),
--   ?6 version bigint
-- returns: Version bigint
-- Zero rows: the job is gone, or not at this version.
UPDATE Jobs SET Args = ?1, Kwargs = ?2, Version = Version + 1, UpdatedAt = ?3
WHERE Namespace = ?4 AND JobName = ?5 AND Version = ?6
RETURNING Version;

-- name: pause_job
-- parameters: ?1 reason text(400), ?2 now instant, ?3 namespace text(100), ?4 job_name text(200), ?5 version bigint
-- returns: Version bigint
-- Zero rows: the job is gone or paused already, or not at this version; version 0 stands for any.
UPDATE Jobs SET Enabled = 0, DisabledReason = ?1, Version = Version + 1, UpdatedAt = ?2
WHERE Namespace = ?3 AND JobName = ?4 AND OneOff = 0 AND Enabled = 1 AND (?5 = 0 OR Version = ?5)
RETURNING Version;

-- name: resume_job
-- parameters: ?1 finished flag, ?2 next_run_time instant, ?3 now instant, ?4 namespace text(100),
--   ?5 job_name text(200), ?6 version bigint, ?7 fence bigint
-- returns: Version bigint
-- Zero rows: the job is gone, it was changed since it was read, or its run has ended since then and moved its next slot
-- (every end of a run raises the fence; :fence is -1 where that does not matter).
UPDATE Jobs SET
    Enabled = CASE WHEN ?1 = 1 THEN 0 ELSE 1 END,
    DisabledReason = CASE WHEN ?1 = 1 THEN 'finished' END,
    NextRunTime = ?2,
    Version = Version + 1,
    UpdatedAt = ?3
WHERE Namespace = ?4 AND JobName = ?5 AND OneOff = 0 AND Enabled = 0 AND Version = ?6
    AND (?7 = -1 OR Fence = ?7)
RETURNING Version;

-- name: insert_outbox
-- parameters: ?1 now instant, ?2 namespace text(100)
-- rows: run_id id, job_id id, kind word(20), scheduled_for instant, attempt int, prior_state word(20)
-- returns: RunId id
-- Extra slots and replays: attempts that wait for a beat. A missing row: the job is gone, or about to go.
-- The job is locked, so that it is not deleted meanwhile: nobody would take the attempt up.
WITH p (run_id, job_id, kind, scheduled_for, attempt, prior_state) AS (:rows)

INSERT INTO JobRuns (
    RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, DueAt, CreatedAt
)
SELECT
    p.run_id, j.Namespace, j.Id, j.JobName, p.kind, coalesce(p.scheduled_for, ?1), p.attempt, 'scheduled',
    p.prior_state, j.Fence,
    ?1, ?1
FROM p
CROSS JOIN Jobs AS j ON j.Id = p.job_id AND j.Namespace = ?2 AND j.DeleteRequested = 0
RETURNING RunId;

-- name: leave_dead
-- parameters: ?1 namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- Dead letters that are replayed keep their history; the row names its successor by its slot. A missing row: it was
-- replayed before, its job is gone, or its slot has a later attempt or an open one.
WITH p (run_id) AS (:rows)

UPDATE JobRuns SET Reason = 'replayed'
WHERE
    Namespace = ?1 AND RunId IN (SELECT p.run_id FROM p) AND State = 'dlq'
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
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 job_name text(200), ?4 version bigint
-- returns: Id id
-- Zero rows: there is no such job, or it is not at this version; version 0 stands for any.
UPDATE Jobs SET
    DeleteRequested = 1,
    Enabled = 0,
    DisabledReason = 'deleted',
    Version = Version + 1,
    UpdatedAt = ?1
WHERE Namespace = ?2 AND JobName = ?3 AND OneOff = 0 AND (?4 = 0 OR Version = ?4)
RETURNING Id;

-- name: list_runs
-- parameters: ?1 namespace text(100), ?2 before_id word(36), ?3 page_size int
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
WHERE Namespace = ?1 AND RunId < ?2
ORDER BY RunId DESC
LIMIT ?3;

-- name: list_runs_in
-- parameters: ?1 namespace text(100), ?2 before_id word(36), ?3 scan_size int, ?4 state word(20)
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- The runs in one state among the next :scan_size of list_runs, whose last one closes them in whatever state, so that the
-- next look goes on behind it. Zero rows: that was the last. An index by state would be written with every change of one.
WITH scanned AS MATERIALIZED (
    SELECT RunId
    FROM JobRuns
    WHERE Namespace = ?1 AND RunId < ?2
    ORDER BY RunId DESC
    LIMIT ?3
),

page_end AS MATERIALIZED (SELECT s.RunId FROM scanned AS s ORDER BY s.RunId LIMIT 1)

SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE
    Namespace = ?1 AND RunId < ?2 AND RunId >= (SELECT p.RunId FROM page_end AS p)
    AND (State = ?4 OR RunId = (SELECT p.RunId FROM page_end AS p))
ORDER BY RunId DESC;

-- name: list_job_runs
-- parameters: ?1 job_id id, ?2 namespace text(100), ?3 before instant, ?4 before_attempt int, ?5 page_size int
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
WHERE JobId = ?1 AND Namespace = ?2 AND (ScheduledFor, Attempt) < (?3, ?4)
ORDER BY ScheduledFor DESC, Attempt DESC
LIMIT ?5;

-- name: list_dead
-- parameters: ?1 namespace text(100), ?2 after_id word(36), ?3 page_size int
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
WHERE Namespace = ?1 AND State = 'dlq' AND RunId > ?2
ORDER BY RunId
LIMIT ?3;

-- name: read_run
-- parameters: ?1 namespace text(100)
-- rows: run_id id
-- returns: RunId id, JobId id, JobName text(200), Kind text, ScheduledFor instant, LastSlot instant, SlotCount bigint,
--   Attempt int, State text, PriorState text, Reason text, Fence bigint, ClaimedBy text, ClaimedAt instant,
--   PublishedAt instant, StartedBy text, StartedAt instant, FinishedAt instant, Failures int, LostLeases int,
--   DueAt instant, Error text, Traceback text, CreatedAt instant, CheckIn text, TaskName text, CancelAt instant,
--   CancelBy text, CancelReason text, EffectsDone flag
-- A missing row: there is no such run, or it was purged.
WITH p (run_id) AS (:rows)

SELECT
    RunId, JobId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, PriorState, Reason, Fence,
    ClaimedBy, ClaimedAt, PublishedAt, StartedBy, StartedAt, FinishedAt, Failures, LostLeases, DueAt, Error, Traceback,
    CreatedAt, CheckIn, TaskName, CancelAt, CancelBy, CancelReason, EffectsDone
FROM JobRuns
WHERE Namespace = ?1 AND RunId IN (SELECT p.run_id FROM p);

-- name: read_lease_holder
-- parameters: ?1 namespace text(100), ?2 job_name text(200)
-- returns: Id id, RunId id, ClaimId id, Fence bigint
-- Zero rows: the job is not held by any run.
SELECT Id, RunId, ClaimId, Fence
FROM Jobs
WHERE Namespace = ?1 AND JobName = ?2 AND OneOff = 0 AND LockedBy IS NOT NULL AND RunId IS NOT NULL;

-- name: read_held
-- parameters: ?1 namespace text(100), ?2 job_name text(200)
-- returns: JobId id, RunId id, ClaimId id, Fence bigint
-- Zero rows: no run of the job goes on by itself, overlapping others.
SELECT r.JobId, r.RunId, r.ClaimId, r.Fence
FROM JobRuns AS r
INNER JOIN Jobs AS j ON j.Id = r.JobId
WHERE r.Namespace = ?1 AND r.HeldBy IS NOT NULL AND j.JobName = ?2;

-- name: cancel_waiting
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 job_id id, ?4 run_id id
-- The attempts of a deleted job that wait for their turn get their outcome; `run_id` is the one that waited for its retry,
-- or that an unlocking by hand left behind.
UPDATE JobRuns SET
    State = 'cancelled',
    PriorState = State,
    Reason = 'job deleted',
    DueAt = NULL,
    FinishedAt = ?1
WHERE
    State IN ('scheduled', 'retry', 'claimed', 'running')
    AND (
        (Namespace = ?2 AND DueAt IS NOT NULL AND JobId = ?3)
        OR RunId = ?4
    );

-- name: purge_runs
-- parameters: ?1 after instant, ?2 now instant, ?3 keep_seconds seconds, ?4 namespace text(100), ?5 batch_size int
-- returns: ScheduledFor instant, Purged bigint
-- Ended rows older than the history is kept; dead letters stay until they are purged by name. No slot ends before its
-- instant, so the index by instants bounds the search. A batch begins at `after`, the instant at which the last one
-- ended: what lies before is gone, or is kept.
DELETE FROM JobRuns
WHERE
    RunId IN (
        SELECT r.RunId
        FROM JobRuns AS r
        WHERE
            r.ScheduledFor >= ?1 AND r.ScheduledFor < after(?2, -?3)
            AND r.FinishedAt < after(?2, -?3)
            AND r.Namespace = ?4
            AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
            AND r.DueAt IS NULL
            AND (
                r.State <> 'retry'
                OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
            )
        ORDER BY r.ScheduledFor
        LIMIT ?5
    )
RETURNING ScheduledFor, 1 AS Purged;

-- name: read_old_runs
-- parameters: ?1 after instant, ?2 now instant, ?3 keep_seconds seconds, ?4 namespace text(100), ?5 page_size int
-- returns: RunId id, ScheduledFor instant
-- What `purge_runs` would delete, where the database refuses the deletion of one of them.
SELECT r.RunId, r.ScheduledFor
FROM JobRuns AS r
WHERE
    r.ScheduledFor >= ?1 AND r.ScheduledFor < after(?2, -?3)
    AND r.FinishedAt < after(?2, -?3)
    AND r.Namespace = ?4
    AND r.State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND r.DueAt IS NULL
    AND (
        r.State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = r.JobId AND j.RetryRunId = r.RunId)
    )
ORDER BY r.ScheduledFor
LIMIT ?5;

-- name: purge_old_runs
-- parameters: ?1 namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- Some of what `read_old_runs` gave.
WITH p (run_id) AS (:rows)

DELETE FROM JobRuns
WHERE
    RunId IN (SELECT p.run_id FROM p) AND Namespace = ?1
    AND State IN ('success', 'dispatched', 'skipped', 'cancelled', 'retry')
    AND DueAt IS NULL
    AND (
        State <> 'retry'
        OR NOT EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = JobRuns.JobId AND j.RetryRunId = JobRuns.RunId)
    )
RETURNING RunId;

-- name: purge_dead
-- parameters: ?1 namespace text(100)
-- rows: run_id id
-- returns: RunId id
-- A missing row: it is no dead letter any more.
WITH p (run_id) AS (:rows)

DELETE FROM JobRuns
WHERE Namespace = ?1 AND RunId IN (SELECT p.run_id FROM p) AND State = 'dlq'
RETURNING RunId;

-- name: read_old_nodes
-- parameters: ?1 namespace text(100), ?2 after_name text(200), ?3 now instant, ?4 keep_seconds seconds,
--   ?5 page_size int
-- returns: NodeId text(200)
-- Nodes that were not alive for so long, by name. Zero rows: the last page was the last.
SELECT NodeId
FROM Nodes
WHERE
    Namespace = ?1 AND NodeId > ?2
    AND HeartbeatAt < after(?3, -?4)
ORDER BY NodeId
LIMIT ?5;

-- name: purge_nodes
-- parameters: ?1 namespace text(100), ?2 now instant, ?3 keep_seconds seconds
-- rows: node_id text(200)
-- returns: NodeId text(200)
-- Some of what `read_old_nodes` gave. A missing row: it has come back.
WITH p (node_id) AS (:rows)

DELETE FROM Nodes
WHERE
    Namespace = ?1 AND NodeId IN (SELECT p.node_id FROM p)
    AND HeartbeatAt < after(?2, -?3)
RETURNING NodeId;

-- name: read_namespace
-- parameters: ?1 namespace text(100), ?2 now instant
-- returns: IsUsed int, Total bigint
-- Whether a job, a node or a held lock is in a namespace, and how many rows it has beside jobs, runs and nodes.
SELECT
    CASE
        WHEN
            EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Namespace = ?1)
            OR EXISTS (SELECT 1 FROM Nodes AS n WHERE n.Namespace = ?1)
            OR EXISTS (SELECT 1 FROM Locks AS l WHERE l.Namespace = ?1 AND l.LeaseEndsAt > ?2)
            THEN 1
        ELSE 0
    END AS IsUsed,
    (SELECT count(*) FROM Releases AS r WHERE r.Namespace = ?1)
    + (SELECT count(*) FROM DeletedJobs AS d WHERE d.Namespace = ?1)
    + (SELECT count(*) FROM Locks AS l WHERE l.Namespace = ?1)
    + (SELECT count(*) FROM IdempotencyKeys AS k WHERE k.Namespace = ?1)
    + (SELECT count(*) FROM Changes AS c WHERE c.Namespace = ?1) AS Total;

-- name: forget_releases
-- parameters: ?1 namespace text(100)
DELETE FROM Releases WHERE Namespace = ?1;

-- name: forget_names
-- parameters: ?1 namespace text(100)
DELETE FROM DeletedJobs WHERE Namespace = ?1;

-- name: forget_locks
-- parameters: ?1 namespace text(100)
DELETE FROM Locks WHERE Namespace = ?1;

-- name: forget_keys
-- parameters: ?1 namespace text(100)
DELETE FROM IdempotencyKeys WHERE Namespace = ?1;

-- name: forget_counter
-- parameters: ?1 namespace text(100)
DELETE FROM Changes WHERE Namespace = ?1;

-- name: read_deleted_jobs
-- parameters: ?1 namespace text(100), ?2 after_name text(200), ?3 now instant, ?4 keep_seconds seconds,
--   ?5 page_size int
-- returns: JobName text(200), IsNew int, IsBelow int
-- Names that were deleted and are not noted yet, and those that were noted long ago: whether the floor of their
-- namespace stands for them. By name. Zero rows: the last page was the last.
SELECT
    d.JobName,
    CASE WHEN d.DeletedAt IS NULL THEN 1 ELSE 0 END AS IsNew,
    CASE WHEN d.Fence <= coalesce(c.FenceFloor, -1) THEN 1 ELSE 0 END AS IsBelow
FROM DeletedJobs AS d
LEFT JOIN Changes AS c ON c.Namespace = d.Namespace
WHERE
    d.Namespace = ?1 AND d.JobName > ?2
    AND (d.DeletedAt IS NULL OR d.DeletedAt < after(?3, -?4))
ORDER BY d.JobName
LIMIT ?5;

-- name: forget_deleted_jobs
-- parameters: ?1 namespace text(100), ?2 now instant, ?3 keep_seconds seconds
-- rows: job_name text(200)
-- returns: JobName text(200)
-- Names that were deleted long ago, once the floor of their namespace stands for them. A missing row: it does not.
WITH p (job_name) AS (:rows)

DELETE FROM DeletedJobs
WHERE
    Namespace = ?1 AND JobName IN (SELECT p.job_name FROM p)
    AND DeletedAt < after(?2, -?3)
    AND Fence <= (SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = ?1)
RETURNING JobName;

-- name: raise_fence_floor
-- parameters: ?1 namespace text(100), ?2 now instant, ?3 keep_seconds seconds
-- To the fences of the names that the next pass forgets.
UPDATE Changes SET FenceFloor = (
    SELECT max(d.Fence) FROM DeletedJobs AS d
    WHERE d.Namespace = ?1 AND d.DeletedAt < after(?2, -?3)
)
WHERE Namespace = ?1 AND FenceFloor < (
    SELECT max(d.Fence) FROM DeletedJobs AS d
    WHERE d.Namespace = ?1 AND d.DeletedAt < after(?2, -?3)
);

-- name: note_deleted_jobs
-- parameters: ?1 now instant, ?2 namespace text(100)
-- rows: job_name text(200)
-- returns: JobName text(200)
-- From now on they count as deleted; the triggers know no clock. A missing row: another beat has noted it.
WITH p (job_name) AS (:rows)

UPDATE DeletedJobs SET DeletedAt = ?1
WHERE Namespace = ?2 AND JobName IN (SELECT p.job_name FROM p) AND DeletedAt IS NULL
RETURNING JobName;
