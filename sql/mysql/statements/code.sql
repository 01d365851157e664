-- Written by `make sql` from sql/source: change it there.
-- What a beat reads and writes to bring its beat_schedule into the table. The clock as in beat.sql.
-- Rows are changed at the version that was read with their owner.

-- name: lock_releases
-- parameters: namespace text(100), code_owner text(200)
-- Imports of one owner come one after the other; the lock ends with the transaction.
SELECT get_lock(concat('sqlbeat ', sha1(concat_ws(' ', database(), %(namespace)s, %(code_owner)s))), 600) AS IsOurs;

-- name: read_releases
-- parameters: namespace text(100), code_owner text(200), live_seconds seconds, code_release text(200),
--   reason text(400)
-- returns: Now instant, OwnSeenAt instant, NewestSeenAt instant, LiveRelease text, LiveSeenAt instant,
--   ImportedRelease text, ImportedAt instant, OtherBeats bigint, Jobs bigint, LeftJobs bigint
-- Always one row. Live is the newest release that has a live beat of this owner, imported the one that wrote last.
SET @now = utc_timestamp(6);
WITH live AS (
    SELECT r.CodeRelease, r.FirstSeenAt
    FROM Nodes AS n
    INNER JOIN Releases AS r
        ON r.Namespace = n.Namespace AND r.CodeOwner = n.CodeOwner AND r.CodeRelease = n.CodeRelease
    WHERE
        n.Namespace = %(namespace)s AND n.CodeOwner = %(code_owner)s AND n.Kind = 'beat' AND n.StoppedAt IS NULL
        AND n.HeartbeatAt > CAST(@now AS datetime(6)) - INTERVAL %(live_seconds)s SECOND
    ORDER BY r.FirstSeenAt DESC
    LIMIT 1
)

SELECT
    CAST(@now AS datetime(6)) AS Now,
    (
        SELECT o.FirstSeenAt FROM Releases AS o
        WHERE o.Namespace = %(namespace)s AND o.CodeOwner = %(code_owner)s AND o.CodeRelease = %(code_release)s
    ) AS OwnSeenAt,
    (
        SELECT max(a.FirstSeenAt) FROM Releases AS a
        WHERE a.Namespace = %(namespace)s AND a.CodeOwner = %(code_owner)s
    ) AS NewestSeenAt,
    (SELECT l.CodeRelease FROM live AS l) AS LiveRelease,
    (SELECT l.FirstSeenAt FROM live AS l) AS LiveSeenAt,
    (
        SELECT i.CodeRelease FROM Releases AS i
        WHERE i.Namespace = %(namespace)s AND i.CodeOwner = %(code_owner)s AND i.ImportedAt IS NOT NULL
        ORDER BY i.ImportedAt DESC
        LIMIT 1
    ) AS ImportedRelease,
    (
        SELECT max(b.ImportedAt) FROM Releases AS b
        WHERE b.Namespace = %(namespace)s AND b.CodeOwner = %(code_owner)s
    ) AS ImportedAt,
    (
        SELECT count(*) FROM Nodes AS m
        WHERE
            m.Namespace = %(namespace)s AND m.Kind = 'beat' AND m.StoppedAt IS NULL
            AND m.HeartbeatAt > CAST(@now AS datetime(6)) - INTERVAL %(live_seconds)s SECOND
            AND (m.CodeOwner <> %(code_owner)s OR m.CodeRelease <> %(code_release)s)
    ) AS OtherBeats,
    (SELECT count(*) FROM Jobs AS j WHERE j.Namespace = %(namespace)s AND j.CodeOwner = %(code_owner)s) AS Jobs,
    (
        SELECT count(*) FROM Jobs AS d
        WHERE d.Namespace = %(namespace)s AND d.CodeOwner = %(code_owner)s AND d.DisabledReason = %(reason)s
    ) AS LeftJobs;

-- name: read_living
-- parameters: namespace text(100), live_seconds seconds
-- returns: CodeOwner text, CodeRelease text, NodeId text(200), FirstSeenAt instant, Entries text
-- Zero rows: no beat of the namespace is alive. No instant: the release's first beat has not told its entries yet.
SET @now = utc_timestamp(6);
SELECT n.CodeOwner, n.CodeRelease, n.NodeId, r.FirstSeenAt, r.Entries
FROM (
    SELECT a.CodeOwner, a.CodeRelease, min(a.NodeId) AS NodeId
    FROM Nodes AS a
    WHERE
        a.Namespace = %(namespace)s AND a.Kind = 'beat' AND a.StoppedAt IS NULL
        AND a.CodeOwner IS NOT NULL AND a.CodeRelease IS NOT NULL
        AND a.HeartbeatAt > CAST(@now AS datetime(6)) - INTERVAL %(live_seconds)s SECOND
    GROUP BY a.CodeOwner, a.CodeRelease
) AS n
LEFT JOIN Releases AS r
    ON r.Namespace = %(namespace)s AND r.CodeOwner = n.CodeOwner AND r.CodeRelease = n.CodeRelease
ORDER BY n.CodeOwner, n.CodeRelease;

-- name: read_owners
-- parameters: namespace text(100)
-- returns: CodeOwner text, Jobs bigint
-- Zero rows: no app has a job here. How many enabled jobs each has.
SELECT CodeOwner, count(*) AS Jobs
FROM Jobs
WHERE Namespace = %(namespace)s AND CodeOwner IS NOT NULL AND Enabled = 1
GROUP BY CodeOwner;

-- name: adopt_jobs
-- parameters: former_owner text(200), code_owner text(200)
-- rows: job_id id
-- returns: JobName text(200)
-- A missing row: the job is gone, or not that app's any more.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(json_array(j.Id, j.JobName))
INTO @won
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (job_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE j.CodeOwner = %(former_owner)s
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET j.CodeOwner = %(code_owner)s, j.Version = j.Version + 1, j.UpdatedAt = CAST(@now AS datetime(6));

SELECT w.JobName FROM JSON_TABLE(@won, '$[*]' COLUMNS (JobName varchar(200) PATH '$[1]')) AS w;

-- name: insert_release
-- parameters: namespace text(100), code_owner text(200), code_release text(200), first_seen_at instant, entries text
INSERT INTO Releases (Namespace, CodeOwner, CodeRelease, FirstSeenAt, Entries)
VALUES (%(namespace)s, %(code_owner)s, %(code_release)s, %(first_seen_at)s, %(entries)s);

-- name: note_entries
-- parameters: entries text, namespace text(100), code_owner text(200), code_release text(200)
UPDATE Releases SET Entries = %(entries)s
WHERE
    Namespace = %(namespace)s AND CodeOwner = %(code_owner)s AND CodeRelease = %(code_release)s
    AND (Entries IS NULL OR Entries <> %(entries)s);

-- name: note_import
-- parameters: imported_at instant, namespace text(100), code_owner text(200), code_release text(200)
UPDATE Releases SET ImportedAt = %(imported_at)s
WHERE Namespace = %(namespace)s AND CodeOwner = %(code_owner)s AND CodeRelease = %(code_release)s;

-- name: read_code_jobs
-- parameters: namespace text(100), code_owner text(200)
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, CodeKey text, Enabled flag,
--   DisabledReason text, NextRunTime instant, LastRunTime instant, ClaimedAt instant, RunId id,
--   DeleteRequested flag, CreatedAt instant, Version bigint, Fence bigint
-- Zero rows: nothing of this owner was ever imported here.
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    CodeKey, Enabled, DisabledReason, NextRunTime, LastRunTime,
    CASE WHEN LockedBy IS NOT NULL THEN ClaimedAt END AS ClaimedAt, RunId, DeleteRequested, CreatedAt,
    Version, Fence
FROM Jobs
WHERE Namespace = %(namespace)s AND CodeOwner = %(code_owner)s;

-- name: insert_code_jobs
-- parameters: namespace text(100), code_owner text(200), code_release text(200)
-- rows: job_id id, job_name text(200), task_name text(200), schedule text(1000), time_zone text(100), args text,
--   kwargs text, options text, code_key text(400), next_run_time instant, last_run_time instant
-- returns: JobName text(200)
-- A missing row: a job of that name is there already, and belongs to somebody else.
SET @now = utc_timestamp(6), @rows = %(rows)s;
INSERT INTO Jobs (
    Id, Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, CodeOwner, CodeRelease, CodeKey,
    NextRunTime, LastRunTime, CreatedAt, UpdatedAt
)
SELECT
    p.job_id, %(namespace)s, p.job_name, p.task_name, p.schedule, p.time_zone, p.args, p.kwargs, p.options, %(code_owner)s,
    %(code_release)s, p.code_key, p.next_run_time, p.last_run_time, CAST(@now AS datetime(6)), CAST(@now AS datetime(6))
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        job_name mediumtext PATH '$[1]' ERROR ON ERROR,
        task_name mediumtext PATH '$[2]' ERROR ON ERROR,
        schedule mediumtext PATH '$[3]' ERROR ON ERROR,
        time_zone mediumtext PATH '$[4]' ERROR ON ERROR,
        args mediumtext PATH '$[5]' ERROR ON ERROR,
        kwargs mediumtext PATH '$[6]' ERROR ON ERROR,
        options mediumtext PATH '$[7]' ERROR ON ERROR,
        code_key mediumtext PATH '$[8]' ERROR ON ERROR,
        next_run_time datetime(6) PATH '$[9]' ERROR ON ERROR,
        last_run_time datetime(6) PATH '$[10]' ERROR ON ERROR
    )
) AS p
LEFT JOIN Jobs AS o ON o.Namespace = %(namespace)s AND o.JobName = p.job_name
WHERE o.Id IS NULL
ON DUPLICATE KEY UPDATE Version = Jobs.Version;

SELECT j.JobName
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        job_name mediumtext PATH '$[1]' ERROR ON ERROR,
        task_name mediumtext PATH '$[2]' ERROR ON ERROR,
        schedule mediumtext PATH '$[3]' ERROR ON ERROR,
        time_zone mediumtext PATH '$[4]' ERROR ON ERROR,
        args mediumtext PATH '$[5]' ERROR ON ERROR,
        kwargs mediumtext PATH '$[6]' ERROR ON ERROR,
        options mediumtext PATH '$[7]' ERROR ON ERROR,
        code_key mediumtext PATH '$[8]' ERROR ON ERROR,
        next_run_time datetime(6) PATH '$[9]' ERROR ON ERROR,
        last_run_time datetime(6) PATH '$[10]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id;

-- name: update_code_jobs
-- parameters: code_release text(200), reason text(400)
-- rows: job_id id, task_name text(200), schedule text(1000), time_zone text(100), args text, kwargs text, options text,
--   code_key text(400), reschedule flag, next_run_time instant, version bigint, fence bigint
-- returns: Id id
-- A missing row: the job is not as it was read, or a new next run was planned and its last run is another one now.
-- What left the code comes back, and what came to its end if it has another one now; what an operator paused stays
-- paused.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(j.Id)
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        task_name mediumtext PATH '$[1]' ERROR ON ERROR,
        schedule mediumtext PATH '$[2]' ERROR ON ERROR,
        time_zone mediumtext PATH '$[3]' ERROR ON ERROR,
        args mediumtext PATH '$[4]' ERROR ON ERROR,
        kwargs mediumtext PATH '$[5]' ERROR ON ERROR,
        options mediumtext PATH '$[6]' ERROR ON ERROR,
        code_key mediumtext PATH '$[7]' ERROR ON ERROR,
        reschedule smallint PATH '$[8]' ERROR ON ERROR,
        next_run_time datetime(6) PATH '$[9]' ERROR ON ERROR,
        version bigint PATH '$[10]' ERROR ON ERROR,
        fence bigint PATH '$[11]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE j.Version = p.version AND j.DeleteRequested = 0 AND (p.reschedule = 0 OR j.Fence = p.fence)
FOR UPDATE;

UPDATE JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        task_name mediumtext PATH '$[1]' ERROR ON ERROR,
        schedule mediumtext PATH '$[2]' ERROR ON ERROR,
        time_zone mediumtext PATH '$[3]' ERROR ON ERROR,
        args mediumtext PATH '$[4]' ERROR ON ERROR,
        kwargs mediumtext PATH '$[5]' ERROR ON ERROR,
        options mediumtext PATH '$[6]' ERROR ON ERROR,
        code_key mediumtext PATH '$[7]' ERROR ON ERROR,
        reschedule smallint PATH '$[8]' ERROR ON ERROR,
        next_run_time datetime(6) PATH '$[9]' ERROR ON ERROR,
        version bigint PATH '$[10]' ERROR ON ERROR,
        fence bigint PATH '$[11]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
SET
    j.TaskName = p.task_name,
    j.Schedule = p.schedule,
    j.TimeZone = p.time_zone,
    j.Args = p.args,
    j.Kwargs = p.kwargs,
    j.Options = p.options,
    j.CodeKey = p.code_key,
    j.CodeRelease = %(code_release)s,
    j.NextRunTime = CASE WHEN p.reschedule = 1 THEN p.next_run_time ELSE j.NextRunTime END,
    j.Enabled = CASE
        WHEN j.DisabledReason = %(reason)s OR (j.DisabledReason = 'finished' AND p.reschedule = 1) THEN 1
        ELSE j.Enabled
    END,
    j.DisabledReason = CASE
        WHEN j.DisabledReason = %(reason)s OR (j.DisabledReason = 'finished' AND p.reschedule = 1) THEN NULL
        ELSE j.DisabledReason
    END,
    j.Quarantine = NULL,
    j.Version = j.Version + 1,
    j.UpdatedAt = CAST(@now AS datetime(6))
WHERE j.Version = p.version AND j.DeleteRequested = 0 AND (p.reschedule = 0 OR j.Fence = p.fence);

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$')) AS w;

-- name: leave_code_jobs
-- parameters: reason text(400)
-- rows: job_id id, version bigint
-- returns: Id id
-- A missing row: the job is not as it was read. A run that holds it goes on to its end.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(j.Id)
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_id char(36) PATH '$[0]' ERROR ON ERROR,
        version bigint PATH '$[1]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = p.job_id
WHERE j.Version = p.version AND j.Enabled = 1
FOR UPDATE;

UPDATE JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$')) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET j.Enabled = 0, j.DisabledReason = %(reason)s, j.Version = j.Version + 1, j.UpdatedAt = CAST(@now AS datetime(6));

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$')) AS w;

-- name: read_code_owners
-- parameters: namespace text(100)
-- rows: job_name text(200)
-- returns: JobName text(200), CodeOwner text
SET @rows = %(rows)s;
SELECT JobName, CodeOwner
FROM Jobs
WHERE Namespace = %(namespace)s AND JobName IN (SELECT p.job_name FROM JSON_TABLE(@rows, '$[*]' COLUMNS (job_name mediumtext PATH '$[0]' ERROR ON ERROR)) AS p);

-- name: read_jobs_of_tasks
-- parameters: namespace text(100), page_size int
-- rows: task_name text(200)
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- A missing row: no enabled job has this task.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence,
    RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, CAST(@now AS datetime(6)) AS Now
FROM Jobs
WHERE Namespace = %(namespace)s AND OneOff = 0 AND Enabled = 1 AND TaskName IN (SELECT p.task_name FROM JSON_TABLE(@rows, '$[*]' COLUMNS (task_name mediumtext PATH '$[0]' ERROR ON ERROR)) AS p)
ORDER BY JobName
LIMIT %(page_size)s;
