-- What a beat reads and writes to bring its beat_schedule into the table. Batches, locks and the clock as in beat.sql.
-- Rows are changed at the version that was read with their owner.

-- name: lock_releases
-- Imports of one owner come one after the other: the transaction that writes has the lock already.
SELECT :namespace AS Namespace, :code_owner AS CodeOwner;

-- name: read_releases
-- returns: Now, OwnSeenAt, NewestSeenAt, LiveRelease, LiveSeenAt, ImportedRelease, ImportedAt, OtherBeats, Jobs,
--   LeftJobs
-- Always one row. Live is the newest release that has a live beat of this owner, imported the one that wrote last.
WITH live AS (
    SELECT r.CodeRelease, r.FirstSeenAt
    FROM Nodes AS n
    INNER JOIN Releases AS r
        ON r.Namespace = n.Namespace AND r.CodeOwner = n.CodeOwner AND r.CodeRelease = n.CodeRelease
    WHERE
        n.Namespace = :namespace AND n.CodeOwner = :code_owner AND n.Kind = 'beat' AND n.StoppedAt IS NULL
        AND n.HeartbeatAt > before(:now, :live_seconds)
    ORDER BY r.FirstSeenAt DESC
    LIMIT 1
)

SELECT
    :now AS Now,
    (
        SELECT o.FirstSeenAt FROM Releases AS o
        WHERE o.Namespace = :namespace AND o.CodeOwner = :code_owner AND o.CodeRelease = :code_release
    ) AS OwnSeenAt,
    (
        SELECT max(a.FirstSeenAt) FROM Releases AS a
        WHERE a.Namespace = :namespace AND a.CodeOwner = :code_owner
    ) AS NewestSeenAt,
    (SELECT l.CodeRelease FROM live AS l) AS LiveRelease,
    (SELECT l.FirstSeenAt FROM live AS l) AS LiveSeenAt,
    (
        SELECT i.CodeRelease FROM Releases AS i
        WHERE i.Namespace = :namespace AND i.CodeOwner = :code_owner AND i.ImportedAt IS NOT NULL
        ORDER BY i.ImportedAt DESC
        LIMIT 1
    ) AS ImportedRelease,
    (
        SELECT max(b.ImportedAt) FROM Releases AS b
        WHERE b.Namespace = :namespace AND b.CodeOwner = :code_owner
    ) AS ImportedAt,
    (
        SELECT count(*) FROM Nodes AS m
        WHERE
            m.Namespace = :namespace AND m.Kind = 'beat' AND m.StoppedAt IS NULL
            AND m.HeartbeatAt > before(:now, :live_seconds)
            AND (m.CodeOwner <> :code_owner OR m.CodeRelease <> :code_release)
    ) AS OtherBeats,
    (SELECT count(*) FROM Jobs AS j WHERE j.Namespace = :namespace AND j.CodeOwner = :code_owner) AS Jobs,
    (
        SELECT count(*) FROM Jobs AS d
        WHERE d.Namespace = :namespace AND d.CodeOwner = :code_owner AND d.DisabledReason = :reason
    ) AS LeftJobs;

-- name: read_living
-- returns: CodeOwner, CodeRelease, NodeId, FirstSeenAt, Entries
-- Zero rows: no beat of the namespace is alive. No instant: the release's first beat has not told its entries yet.
SELECT n.CodeOwner, n.CodeRelease, n.NodeId, r.FirstSeenAt, r.Entries
FROM (
    SELECT a.CodeOwner, a.CodeRelease, min(a.NodeId) AS NodeId
    FROM Nodes AS a
    WHERE
        a.Namespace = :namespace AND a.Kind = 'beat' AND a.StoppedAt IS NULL
        AND a.CodeOwner IS NOT NULL AND a.CodeRelease IS NOT NULL
        AND a.HeartbeatAt > before(:now, :live_seconds)
    GROUP BY a.CodeOwner, a.CodeRelease
) AS n
LEFT JOIN Releases AS r
    ON r.Namespace = :namespace AND r.CodeOwner = n.CodeOwner AND r.CodeRelease = n.CodeRelease
ORDER BY n.CodeOwner, n.CodeRelease;

-- name: read_owners
-- returns: CodeOwner, Jobs
-- Zero rows: no app has a job here. How many enabled jobs each has.
SELECT CodeOwner, count(*) AS Jobs
FROM Jobs
WHERE Namespace = :namespace AND CodeOwner IS NOT NULL AND Enabled = 1
GROUP BY CodeOwner;

-- name: adopt_jobs
-- rows: job_id
-- returns: JobName
-- A missing row: the job is gone, or not that app's any more.
WITH p AS (:rows)

UPDATE Jobs SET CodeOwner = :code_owner, Version = Jobs.Version + 1, UpdatedAt = :now
FROM p
WHERE Jobs.Id = key(p.job_id) AND Jobs.CodeOwner = :former_owner
RETURNING JobName;

-- name: insert_release
INSERT INTO Releases (Namespace, CodeOwner, CodeRelease, FirstSeenAt, Entries)
VALUES (:namespace, :code_owner, :code_release, :first_seen_at, :entries);

-- name: note_entries
UPDATE Releases SET Entries = :entries
WHERE
    Namespace = :namespace AND CodeOwner = :code_owner AND CodeRelease = :code_release
    AND (Entries IS NULL OR Entries <> :entries);

-- name: note_import
UPDATE Releases SET ImportedAt = :imported_at
WHERE Namespace = :namespace AND CodeOwner = :code_owner AND CodeRelease = :code_release;

-- name: read_code_jobs
-- returns: Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies,
--   LockTimeoutMinutes, CodeKey, Enabled, DisabledReason, NextRunTime, LastRunTime, ClaimedAt, RunId, DeleteRequested,
--   CreatedAt, Version, Fence
-- Zero rows: nothing of this owner was ever imported here.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    CodeKey, Enabled, DisabledReason, NextRunTime, LastRunTime,
    CASE WHEN LockedBy IS NOT NULL THEN ClaimedAt END AS ClaimedAt, RunId, DeleteRequested, CreatedAt,
    Version, Fence
FROM Jobs
WHERE Namespace = :namespace AND CodeOwner = :code_owner;

-- name: insert_code_jobs
-- rows: job_id, job_name, task_name, schedule, time_zone, args, kwargs, options, code_key, next_run_time, last_run_time
-- returns: JobName
-- A missing row: a job of that name is there already, and belongs to somebody else.
WITH p AS (:rows)

INSERT INTO Jobs (
    Id, Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, CodeOwner, CodeRelease, CodeKey,
    NextRunTime, LastRunTime, CreatedAt, UpdatedAt
)
SELECT
    p.job_id, :namespace, p.job_name, p.task_name, p.schedule, p.time_zone, p.args, p.kwargs, p.options, :code_owner,
    :code_release, p.code_key, p.next_run_time, p.last_run_time, :now, :now
FROM p
WHERE true
ON CONFLICT (Namespace, JobName) DO NOTHING
RETURNING JobName;

-- name: update_code_jobs
-- rows: job_id, task_name, schedule, time_zone, args, kwargs, options, code_key, reschedule, next_run_time, version,
--   fence
-- returns: Id
-- A missing row: the job is not as it was read, or a new next run was planned and its last run is another one now.
-- What left the code comes back, and what came to its end if it has another one now; what an operator paused stays
-- paused.
WITH p AS (:rows)

UPDATE Jobs SET
    TaskName = p.task_name,
    Schedule = p.schedule,
    TimeZone = p.time_zone,
    Args = p.args,
    Kwargs = p.kwargs,
    Options = p.options,
    CodeKey = p.code_key,
    CodeRelease = :code_release,
    NextRunTime = CASE WHEN p.reschedule = 1 THEN p.next_run_time ELSE Jobs.NextRunTime END,
    Enabled = CASE
        WHEN Jobs.DisabledReason = :reason OR (Jobs.DisabledReason = 'finished' AND p.reschedule = 1) THEN 1
        ELSE Jobs.Enabled
    END,
    DisabledReason = CASE
        WHEN Jobs.DisabledReason = :reason OR (Jobs.DisabledReason = 'finished' AND p.reschedule = 1) THEN NULL
        ELSE Jobs.DisabledReason
    END,
    Quarantine = NULL,
    Version = Jobs.Version + 1,
    UpdatedAt = :now
FROM p
WHERE
    Jobs.Id = key(p.job_id) AND Jobs.Version = p.version AND Jobs.DeleteRequested = 0
    AND (p.reschedule = 0 OR Jobs.Fence = p.fence)
RETURNING Id;

-- name: leave_code_jobs
-- rows: job_id, version
-- returns: Id
-- A missing row: the job is not as it was read. A run that holds it goes on to its end.
WITH p AS (:rows)

UPDATE Jobs SET Enabled = 0, DisabledReason = :reason, Version = Jobs.Version + 1, UpdatedAt = :now
FROM p
WHERE Jobs.Id = key(p.job_id) AND Jobs.Version = p.version AND Jobs.Enabled = 1
RETURNING Id;

-- name: read_code_owners
-- rows: job_name
-- returns: JobName, CodeOwner
WITH p AS (:rows)

SELECT JobName, CodeOwner
FROM Jobs
WHERE Namespace = :namespace AND JobName IN (SELECT p.job_name FROM p);

-- name: read_jobs_of_tasks
-- rows: task_name
-- returns: Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies,
--   LockTimeoutMinutes, Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt,
--   LeaseEndsAt, Fence, RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt,
--   StartedRetry, Republishes, Now
-- A missing row: no enabled job has this task.
WITH p AS (:rows)

SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence,
    RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, :now AS Now
FROM Jobs
WHERE Namespace = :namespace AND OneOff = 0 AND Enabled = 1 AND TaskName IN (SELECT p.task_name FROM p)
ORDER BY JobName
LIMIT :page_size;
