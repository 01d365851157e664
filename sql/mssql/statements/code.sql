-- Written by `make sql` from sql/source: change it there.
-- What a beat reads and writes to bring its beat_schedule into the table. Batches, locks and the clock as in beat.sql.
-- Rows are changed at the version that was read with their owner.

-- name: lock_releases
-- parameters: namespace text(100), code_owner text(200)
-- Imports of one owner come one after the other; the lock ends with the transaction. The name of a lock is shorter than
-- a namespace and an owner may be, so it holds their hash.
DECLARE @namespace nvarchar(100) = ?, @code_owner nvarchar(200) = ?;
DECLARE @result int;
DECLARE @resource nvarchar(255) = N'celery_sqlbeat import '
    + CONVERT(varchar(64), HASHBYTES('SHA2_256', @namespace + NCHAR(31) + @code_owner), 2);

EXEC @result = sp_getapplock @Resource = @resource, @LockMode = N'Exclusive', @LockOwner = N'Transaction';

IF @result < 0
BEGIN
    THROW 51222, N'another import of this beat_schedule did not end in time', 1;
END;

-- name: read_releases
-- parameters: live_seconds seconds, namespace text(100), code_owner text(200), code_release text(200),
--   reason text(400)
-- returns: Now instant, OwnSeenAt instant, NewestSeenAt instant, LiveRelease text, LiveSeenAt instant,
--   ImportedRelease text, ImportedAt instant, OtherBeats bigint, Jobs bigint, LeftJobs bigint
-- Always one row. Live is the newest release that has a live beat of this owner, imported the one that wrote last.
DECLARE @live_seconds float(53) = ?, @namespace nvarchar(100) = ?, @code_owner nvarchar(200) = ?,
    @code_release nvarchar(200) = ?, @reason nvarchar(400) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @since datetime2(6) = DATEADD(
    MICROSECOND, ROUND(1000000 * (-@live_seconds - FLOOR(-@live_seconds)), 0),
    DATEADD(SECOND, FLOOR(-@live_seconds), @now)
);
DECLARE @live_release nvarchar(200), @live_seen_at datetime2(6);

SELECT TOP (1) @live_release = r.CodeRelease, @live_seen_at = r.FirstSeenAt
FROM dbo.Nodes AS n
INNER JOIN dbo.Releases AS r
    ON r.Namespace = n.Namespace AND r.CodeOwner = n.CodeOwner AND r.CodeRelease = n.CodeRelease
WHERE
    n.Namespace = @namespace AND n.CodeOwner = @code_owner AND n.Kind = 'beat' AND n.StoppedAt IS NULL
    AND n.HeartbeatAt > @since
ORDER BY r.FirstSeenAt DESC;

SELECT
    @now AS Now,
    (
        SELECT o.FirstSeenAt FROM dbo.Releases AS o
        WHERE o.Namespace = @namespace AND o.CodeOwner = @code_owner AND o.CodeRelease = @code_release
    ) AS OwnSeenAt,
    (
        SELECT MAX(a.FirstSeenAt) FROM dbo.Releases AS a
        WHERE a.Namespace = @namespace AND a.CodeOwner = @code_owner
    ) AS NewestSeenAt,
    @live_release AS LiveRelease,
    @live_seen_at AS LiveSeenAt,
    (
        SELECT TOP (1) i.CodeRelease FROM dbo.Releases AS i
        WHERE i.Namespace = @namespace AND i.CodeOwner = @code_owner AND i.ImportedAt IS NOT NULL
        ORDER BY i.ImportedAt DESC
    ) AS ImportedRelease,
    (
        SELECT MAX(b.ImportedAt) FROM dbo.Releases AS b
        WHERE b.Namespace = @namespace AND b.CodeOwner = @code_owner
    ) AS ImportedAt,
    (
        SELECT COUNT(*) FROM dbo.Nodes AS m
        WHERE
            m.Namespace = @namespace AND m.Kind = 'beat' AND m.StoppedAt IS NULL AND m.HeartbeatAt > @since
            AND (m.CodeOwner <> @code_owner OR m.CodeRelease <> @code_release)
    ) AS OtherBeats,
    (SELECT COUNT(*) FROM dbo.Jobs AS j WHERE j.Namespace = @namespace AND j.CodeOwner = @code_owner) AS Jobs,
    (
        SELECT COUNT(*) FROM dbo.Jobs AS d
        WHERE d.Namespace = @namespace AND d.CodeOwner = @code_owner AND d.DisabledReason = @reason
    ) AS LeftJobs;

-- name: read_living
-- parameters: namespace text(100), live_seconds seconds
-- returns: CodeOwner text, CodeRelease text, NodeId text(200), FirstSeenAt instant, Entries text
-- Zero rows: no beat of the namespace is alive. No instant: the release's first beat has not told its entries yet.
DECLARE @namespace nvarchar(100) = ?, @live_seconds float(53) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT n.CodeOwner, n.CodeRelease, n.NodeId, r.FirstSeenAt, r.Entries
FROM (
    SELECT a.CodeOwner, a.CodeRelease, min(a.NodeId) AS NodeId
    FROM dbo.Nodes AS a
    WHERE
        a.Namespace = @namespace AND a.Kind = 'beat' AND a.StoppedAt IS NULL
        AND a.CodeOwner IS NOT NULL AND a.CodeRelease IS NOT NULL
        AND a.HeartbeatAt > DATEADD(
            MICROSECOND, ROUND(1000000 * (-@live_seconds - FLOOR(-@live_seconds)), 0),
            DATEADD(SECOND, FLOOR(-@live_seconds), @now)
        )
    GROUP BY a.CodeOwner, a.CodeRelease
) AS n
LEFT JOIN dbo.Releases AS r
    ON r.Namespace = @namespace AND r.CodeOwner = n.CodeOwner AND r.CodeRelease = n.CodeRelease
ORDER BY n.CodeOwner, n.CodeRelease;

-- name: read_owners
-- parameters: namespace text(100)
-- returns: CodeOwner text, Jobs bigint
-- Zero rows: no app has a job here. How many enabled jobs each has.
DECLARE @namespace nvarchar(100) = ?;

SELECT CodeOwner, COUNT_BIG(*) AS Jobs
FROM dbo.Jobs
WHERE Namespace = @namespace AND CodeOwner IS NOT NULL AND Enabled = 1
GROUP BY CodeOwner;

-- name: adopt_jobs
-- parameters: code_owner text(200), former_owner text(200)
-- rows: job_id id
-- returns: JobName text(200)
-- A missing row: the job is gone, or not that app's any more.
DECLARE @code_owner nvarchar(200) = ?, @former_owner nvarchar(200) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @changed TABLE (JobName nvarchar(200) NOT NULL);

UPDATE j
SET CodeOwner = @code_owner, Version = j.Version + 1, UpdatedAt = @now
OUTPUT inserted.JobName INTO @changed (JobName)
FROM OPENJSON(@rows) WITH (job_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
WHERE j.CodeOwner = @former_owner
OPTION (LOOP JOIN, FORCE ORDER);

SELECT JobName FROM @changed;

-- name: insert_release
-- parameters: namespace text(100), code_owner text(200), code_release text(200), first_seen_at instant, entries text
DECLARE @namespace nvarchar(100) = ?, @code_owner nvarchar(200) = ?, @code_release nvarchar(200) = ?,
    @first_seen_at datetime2(6) = ?, @entries nvarchar(max) = ?;

INSERT INTO dbo.Releases (Namespace, CodeOwner, CodeRelease, FirstSeenAt, Entries)
VALUES (@namespace, @code_owner, @code_release, @first_seen_at, @entries);

-- name: note_entries
-- parameters: entries text, namespace text(100), code_owner text(200), code_release text(200)
DECLARE @entries nvarchar(max) = ?, @namespace nvarchar(100) = ?, @code_owner nvarchar(200) = ?,
    @code_release nvarchar(200) = ?;

UPDATE dbo.Releases SET Entries = @entries
WHERE
    Namespace = @namespace AND CodeOwner = @code_owner AND CodeRelease = @code_release
    AND (Entries IS NULL OR Entries <> @entries);

-- name: note_import
-- parameters: imported_at instant, namespace text(100), code_owner text(200), code_release text(200)
DECLARE @imported_at datetime2(6) = ?, @namespace nvarchar(100) = ?, @code_owner nvarchar(200) = ?,
    @code_release nvarchar(200) = ?;

UPDATE dbo.Releases SET ImportedAt = @imported_at
WHERE Namespace = @namespace AND CodeOwner = @code_owner AND CodeRelease = @code_release;

-- name: read_code_jobs
-- parameters: namespace text(100), code_owner text(200)
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, Enabled flag,
--   DisabledReason text, NextRunTime instant, LastRunTime instant, ClaimedAt instant, RunId id,
--   DeleteRequested flag, CreatedAt instant, Version bigint, Fence bigint
-- Zero rows: nothing of this owner was ever imported here.
DECLARE @namespace nvarchar(100) = ?, @code_owner nvarchar(200) = ?;

SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    CodeKey, Enabled, DisabledReason, NextRunTime, LastRunTime,
    CASE WHEN LockedBy IS NOT NULL THEN ClaimedAt END AS ClaimedAt, RunId, DeleteRequested, CreatedAt,
    Version, Fence
FROM dbo.Jobs
WHERE Namespace = @namespace AND CodeOwner = @code_owner;

-- name: insert_code_jobs
-- parameters: namespace text(100), code_owner text(200), code_release text(200)
-- rows: job_id id, job_name text(200), task_name text(200), schedule text(1000), time_zone text(100), args text,
--   kwargs text, options text, code_key text(400), next_run_time instant, last_run_time instant
-- returns: JobName text(200)
-- A missing row: a job of that name is there already, and belongs to somebody else.
DECLARE @namespace nvarchar(100) = ?, @code_owner nvarchar(200) = ?, @code_release nvarchar(200) = ?,
    @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @inserted TABLE (JobName nvarchar(200) NOT NULL);

INSERT INTO dbo.Jobs (
    Id, Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, CodeOwner, CodeRelease, CodeKey,
    NextRunTime, LastRunTime, CreatedAt, UpdatedAt
)
OUTPUT inserted.JobName INTO @inserted (JobName)
SELECT
    p.job_id, @namespace, p.job_name, p.task_name, p.schedule, p.time_zone, p.args, p.kwargs, p.options, @code_owner,
    @code_release, p.code_key, p.next_run_time, p.last_run_time, @now, @now
FROM OPENJSON(@rows) WITH (
    job_id uniqueidentifier '$[0]',
    job_name nvarchar(200) '$[1]',
    task_name nvarchar(200) '$[2]',
    schedule nvarchar(1000) '$[3]',
    time_zone nvarchar(100) '$[4]',
    args nvarchar(max) '$[5]',
    kwargs nvarchar(max) '$[6]',
    options nvarchar(max) '$[7]',
    code_key nvarchar(400) '$[8]',
    next_run_time datetime2(6) '$[9]',
    last_run_time datetime2(6) '$[10]'
) AS p
WHERE NOT EXISTS (
    SELECT 1 FROM dbo.Jobs AS j WITH (INDEX (Jobs_Name), UPDLOCK, HOLDLOCK)
    WHERE j.Namespace = @namespace AND j.JobName = p.job_name COLLATE Latin1_General_BIN2
)
OPTION (LOOP JOIN);

SELECT JobName FROM @inserted;

-- name: update_code_jobs
-- parameters: code_release text(200), reason text(400)
-- rows: job_id id, task_name text(200), schedule text(1000), time_zone text(100), args text, kwargs text, options text,
--   code_key text(400), reschedule flag, next_run_time instant, version bigint, fence bigint
-- returns: Id id
-- A missing row: the job is not as it was read, or a new next run was planned and its last run is another one now.
-- What left the code comes back, and what came to its end if it has another one now; what an operator paused stays
-- paused.
DECLARE @code_release nvarchar(200) = ?, @reason nvarchar(400) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @changed TABLE (Id uniqueidentifier NOT NULL);

UPDATE j
SET
    TaskName = p.task_name,
    Schedule = p.schedule,
    TimeZone = p.time_zone,
    Args = p.args,
    Kwargs = p.kwargs,
    Options = p.options,
    CodeKey = p.code_key,
    CodeRelease = @code_release,
    NextRunTime = CASE WHEN p.reschedule = 1 THEN p.next_run_time ELSE j.NextRunTime END,
    Enabled = CASE
        WHEN j.DisabledReason = @reason OR (j.DisabledReason = N'finished' AND p.reschedule = 1) THEN 1
        ELSE j.Enabled
    END,
    DisabledReason = CASE
        WHEN j.DisabledReason = @reason OR (j.DisabledReason = N'finished' AND p.reschedule = 1) THEN NULL
        ELSE j.DisabledReason
    END,
    Quarantine = NULL,
    Version = j.Version + 1,
    UpdatedAt = @now
OUTPUT inserted.Id INTO @changed (Id)
FROM OPENJSON(@rows) WITH (
    job_id uniqueidentifier '$[0]',
    task_name nvarchar(200) '$[1]',
    schedule nvarchar(1000) '$[2]',
    time_zone nvarchar(100) '$[3]',
    args nvarchar(max) '$[4]',
    kwargs nvarchar(max) '$[5]',
    options nvarchar(max) '$[6]',
    code_key nvarchar(400) '$[7]',
    reschedule bit '$[8]',
    next_run_time datetime2(6) '$[9]',
    version bigint '$[10]',
    fence bigint '$[11]'
) AS p
INNER JOIN dbo.Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
WHERE j.Version = p.version AND j.DeleteRequested = 0 AND (p.reschedule = 0 OR j.Fence = p.fence)
OPTION (LOOP JOIN, FORCE ORDER);

SELECT Id FROM @changed;

-- name: leave_code_jobs
-- parameters: reason text(400)
-- rows: job_id id, version bigint
-- returns: Id id
-- A missing row: the job is not as it was read. A run that holds it goes on to its end.
DECLARE @reason nvarchar(400) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @changed TABLE (Id uniqueidentifier NOT NULL);

UPDATE j
SET Enabled = 0, DisabledReason = @reason, Version = j.Version + 1, UpdatedAt = @now
OUTPUT inserted.Id INTO @changed (Id)
FROM OPENJSON(@rows) WITH (job_id uniqueidentifier '$[0]', version bigint '$[1]') AS p
INNER JOIN dbo.Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
WHERE j.Version = p.version AND j.Enabled = 1
OPTION (LOOP JOIN, FORCE ORDER);

SELECT Id FROM @changed;

-- name: read_code_owners
-- parameters: namespace text(100)
-- rows: job_name text(200)
-- returns: JobName text(200), CodeOwner text
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;

SELECT j.JobName, j.CodeOwner
FROM dbo.Jobs AS j
WHERE
    j.Namespace = @namespace
    AND j.JobName IN (
        SELECT p.job_name COLLATE Latin1_General_BIN2 FROM OPENJSON(@rows) WITH (job_name nvarchar(200) '$[0]') AS p
    )
OPTION (LOOP JOIN);

-- name: read_jobs_of_tasks
-- parameters: page_size int, namespace text(100)
-- rows: task_name text(200)
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- A missing row: no enabled job has this task.
DECLARE @page_size int = ?, @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT TOP (@page_size)
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.Enabled, j.DisabledReason, j.StartAt, j.NextRunTime, j.LastRunTime, j.RetryAt, j.LockedBy,
    j.LockedAt, j.LeaseEndsAt, j.Fence, j.RunId, j.Quarantine, j.CodeKey, j.DeleteRequested, j.Version, j.CodeOwner,
    j.ClaimedAt, j.PublishedAt, j.StartedRetry, j.Republishes, @now AS Now
FROM dbo.Jobs AS j
WHERE
    j.Namespace = @namespace AND j.OneOff = 0 AND j.Enabled = 1
    AND EXISTS (
        SELECT 1
        FROM OPENJSON(@rows) WITH (task_name nvarchar(200) '$[0]') AS p
        WHERE p.task_name COLLATE Latin1_General_BIN2 = j.TaskName COLLATE Latin1_General_BIN2
    )
ORDER BY j.JobName;
