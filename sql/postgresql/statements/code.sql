-- Written by `make sql` from sql/source: change it there.
-- What a beat reads and writes to bring its beat_schedule into the table. Batches, locks and the clock as in beat.sql.
-- Rows are changed at the version that was read with their owner.

-- name: lock_releases
-- parameters: $1 namespace text(100), $2 code_owner text(200)
-- Imports of one owner come one after the other; the lock ends with the transaction.
SELECT
    pg_advisory_xact_lock(
        hashtext('celery_sqlbeat import'),
        hashtext(current_schema() || ' ' || CAST($1 AS text) || ' ' || CAST($2 AS text))
    );

-- name: read_releases
-- parameters: $1 namespace text(100), $2 code_owner text(200), $3 live_seconds seconds, $4 code_release text(200),
--   $5 reason text(400)
-- returns: Now instant, OwnSeenAt instant, NewestSeenAt instant, LiveRelease text, LiveSeenAt instant,
--   ImportedRelease text, ImportedAt instant, OtherBeats bigint, Jobs bigint, LeftJobs bigint
-- Always one row. Live is the newest release that has a live beat of this owner, imported the one that wrote last.
WITH live AS (
    SELECT r.CodeRelease, r.FirstSeenAt
    FROM Nodes AS n
    INNER JOIN Releases AS r
        ON r.Namespace = n.Namespace AND r.CodeOwner = n.CodeOwner AND r.CodeRelease = n.CodeRelease
    WHERE
        n.Namespace = $1 AND n.CodeOwner = $2 AND n.Kind = 'beat' AND n.StoppedAt IS NULL
        AND n.HeartbeatAt > statement_timestamp() - $3 * interval '1 second'
    ORDER BY r.FirstSeenAt DESC
    LIMIT 1
)

SELECT
    statement_timestamp() AS Now,
    (
        SELECT o.FirstSeenAt FROM Releases AS o
        WHERE o.Namespace = $1 AND o.CodeOwner = $2 AND o.CodeRelease = $4
    ) AS OwnSeenAt,
    (
        SELECT max(a.FirstSeenAt) FROM Releases AS a
        WHERE a.Namespace = $1 AND a.CodeOwner = $2
    ) AS NewestSeenAt,
    (SELECT l.CodeRelease FROM live AS l) AS LiveRelease,
    (SELECT l.FirstSeenAt FROM live AS l) AS LiveSeenAt,
    (
        SELECT i.CodeRelease FROM Releases AS i
        WHERE i.Namespace = $1 AND i.CodeOwner = $2 AND i.ImportedAt IS NOT NULL
        ORDER BY i.ImportedAt DESC
        LIMIT 1
    ) AS ImportedRelease,
    (
        SELECT max(b.ImportedAt) FROM Releases AS b
        WHERE b.Namespace = $1 AND b.CodeOwner = $2
    ) AS ImportedAt,
    (
        SELECT count(*) FROM Nodes AS m
        WHERE
            m.Namespace = $1 AND m.Kind = 'beat' AND m.StoppedAt IS NULL
            AND m.HeartbeatAt > statement_timestamp() - $3 * interval '1 second'
            AND (m.CodeOwner <> $2 OR m.CodeRelease <> $4)
    ) AS OtherBeats,
    (SELECT count(*) FROM Jobs AS j WHERE j.Namespace = $1 AND j.CodeOwner = $2) AS Jobs,
    (
        SELECT count(*) FROM Jobs AS d
        WHERE d.Namespace = $1 AND d.CodeOwner = $2 AND d.DisabledReason = $5
    ) AS LeftJobs;

-- name: read_living
-- parameters: $1 namespace text(100), $2 live_seconds seconds
-- returns: CodeOwner text, CodeRelease text, NodeId text(200), FirstSeenAt instant, Entries text
-- Zero rows: no beat of the namespace is alive. No instant: the release's first beat has not told its entries yet.
SELECT n.CodeOwner, n.CodeRelease, n.NodeId, r.FirstSeenAt, r.Entries
FROM (
    SELECT a.CodeOwner, a.CodeRelease, min(a.NodeId) AS NodeId
    FROM Nodes AS a
    WHERE
        a.Namespace = $1 AND a.Kind = 'beat' AND a.StoppedAt IS NULL
        AND a.CodeOwner IS NOT NULL AND a.CodeRelease IS NOT NULL
        AND a.HeartbeatAt > statement_timestamp() - $2 * interval '1 second'
    GROUP BY a.CodeOwner, a.CodeRelease
) AS n
LEFT JOIN Releases AS r
    ON r.Namespace = $1 AND r.CodeOwner = n.CodeOwner AND r.CodeRelease = n.CodeRelease
ORDER BY n.CodeOwner, n.CodeRelease;

-- name: read_owners
-- parameters: $1 namespace text(100)
-- returns: CodeOwner text, Jobs bigint
-- Zero rows: no app has a job here. How many enabled jobs each has.
SELECT CodeOwner, count(*) AS Jobs
FROM Jobs
WHERE Namespace = $1 AND CodeOwner IS NOT NULL AND Enabled = 1
GROUP BY CodeOwner;

-- name: adopt_jobs
-- parameters: $2 code_owner text(200), $3 former_owner text(200)
-- rows: $1 job_id id
-- returns: JobName text(200)
-- A missing row: the job is gone, or not that app's any more.
WITH p (job_id) AS (SELECT * FROM unnest($1::uuid[]))

UPDATE Jobs SET CodeOwner = $2, Version = Jobs.Version + 1, UpdatedAt = statement_timestamp()
FROM p
WHERE Jobs.Id = ANY(ARRAY[p.job_id]) AND Jobs.CodeOwner = $3
RETURNING JobName;

-- name: insert_release
-- parameters: $1 namespace text(100), $2 code_owner text(200), $3 code_release text(200), $4 first_seen_at instant,
--   $5 entries text
INSERT INTO Releases (Namespace, CodeOwner, CodeRelease, FirstSeenAt, Entries)
VALUES ($1, $2, $3, $4, $5);

-- name: note_entries
-- parameters: $1 entries text, $2 namespace text(100), $3 code_owner text(200), $4 code_release text(200)
UPDATE Releases SET Entries = $1
WHERE
    Namespace = $2 AND CodeOwner = $3 AND CodeRelease = $4
    AND (Entries IS NULL OR Entries <> $1);

-- name: note_import
-- parameters: $1 imported_at instant, $2 namespace text(100), $3 code_owner text(200), $4 code_release text(200)
UPDATE Releases SET ImportedAt = $1
WHERE Namespace = $2 AND CodeOwner = $3 AND CodeRelease = $4;

-- name: read_code_jobs
-- parameters: $1 namespace text(100), $2 code_owner text(200)
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
WHERE Namespace = $1 AND CodeOwner = $2;

-- name: insert_code_jobs
-- parameters: $12 namespace text(100), $13 code_owner text(200), $14 code_release text(200)
-- rows: $1 job_id id, $2 job_name text(200), $3 task_name text(200), $4 schedule text(1000), $5 time_zone text(100),
--   $6 args text, $7 kwargs text, $8 options text, $9 code_key text(400), $10 next_run_time instant,
--   $11 last_run_time instant
-- returns: JobName text(200)
-- A missing row: a job of that name is there already, and belongs to somebody else.
WITH p (
    job_id, job_name, task_name, schedule, time_zone, args, kwargs, options, code_key, next_run_time, last_run_time
) AS (SELECT * FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::timestamptz[], $11::timestamptz[]
))

INSERT INTO Jobs (
    Id, Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, CodeOwner, CodeRelease, CodeKey,
    NextRunTime, LastRunTime, CreatedAt, UpdatedAt
)
SELECT
    p.job_id, $12, p.job_name, p.task_name, p.schedule, p.time_zone, p.args, p.kwargs, p.options, $13,
    $14, p.code_key, p.next_run_time, p.last_run_time, statement_timestamp(), statement_timestamp()
FROM p
WHERE true
ON CONFLICT (Namespace, JobName) DO NOTHING
RETURNING JobName;

-- name: update_code_jobs
-- parameters: $13 code_release text(200), $14 reason text(400)
-- rows: $1 job_id id, $2 task_name text(200), $3 schedule text(1000), $4 time_zone text(100), $5 args text,
--   $6 kwargs text, $7 options text, $8 code_key text(400), $9 reschedule flag, $10 next_run_time instant,
--   $11 version bigint, $12 fence bigint
-- returns: Id id
-- A missing row: the job is not as it was read, or a new next run was planned and its last run is another one now.
-- What left the code comes back, and what came to its end if it has another one now; what an operator paused stays
-- paused.
WITH p (
    job_id, task_name, schedule, time_zone, args, kwargs, options, code_key, reschedule, next_run_time, version, fence
) AS (SELECT * FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::smallint[],
    $10::timestamptz[], $11::bigint[], $12::bigint[]
))

UPDATE Jobs SET
    TaskName = p.task_name,
    Schedule = p.schedule,
    TimeZone = p.time_zone,
    Args = p.args,
    Kwargs = p.kwargs,
    Options = p.options,
    CodeKey = p.code_key,
    CodeRelease = $13,
    NextRunTime = CASE WHEN p.reschedule = 1 THEN p.next_run_time ELSE Jobs.NextRunTime END,
    Enabled = CASE
        WHEN Jobs.DisabledReason = $14 OR (Jobs.DisabledReason = 'finished' AND p.reschedule = 1) THEN 1
        ELSE Jobs.Enabled
    END,
    DisabledReason = CASE
        WHEN Jobs.DisabledReason = $14 OR (Jobs.DisabledReason = 'finished' AND p.reschedule = 1) THEN NULL
        ELSE Jobs.DisabledReason
    END,
    Quarantine = NULL,
    Version = Jobs.Version + 1,
    UpdatedAt = statement_timestamp()
FROM p
WHERE
    Jobs.Id = ANY(ARRAY[p.job_id]) AND Jobs.Version = p.version AND Jobs.DeleteRequested = 0
    AND (p.reschedule = 0 OR Jobs.Fence = p.fence)
RETURNING Id;

-- name: leave_code_jobs
-- parameters: $3 reason text(400)
-- rows: $1 job_id id, $2 version bigint
-- returns: Id id
-- A missing row: the job is not as it was read. A run that holds it goes on to its end.
WITH p (job_id, version) AS (SELECT * FROM unnest($1::uuid[], $2::bigint[]))

UPDATE Jobs SET Enabled = 0, DisabledReason = $3, Version = Jobs.Version + 1, UpdatedAt = statement_timestamp()
FROM p
WHERE Jobs.Id = ANY(ARRAY[p.job_id]) AND Jobs.Version = p.version AND Jobs.Enabled = 1
RETURNING Id;

-- name: read_code_owners
-- parameters: $2 namespace text(100)
-- rows: $1 job_name text(200)
-- returns: JobName text(200), CodeOwner text
WITH p (job_name) AS (SELECT * FROM unnest($1::text[]))

SELECT JobName, CodeOwner
FROM Jobs
WHERE Namespace = $2 AND JobName IN (SELECT p.job_name FROM p);

-- name: read_jobs_of_tasks
-- parameters: $2 namespace text(100), $3 page_size int
-- rows: $1 task_name text(200)
-- returns: Id id, JobName text(200), TaskName text, Schedule text, IntervalMinutes int, TimeZone text, Args text,
--   Kwargs text, Options text, Policies text, LockTimeoutMinutes int, Enabled flag, DisabledReason text,
--   StartAt instant, NextRunTime instant, LastRunTime instant, RetryAt instant, LockedBy text, LockedAt instant,
--   LeaseEndsAt instant, Fence bigint, RunId id, Quarantine text, CodeKey text, DeleteRequested flag,
--   Version bigint, CodeOwner text, ClaimedAt instant, PublishedAt instant, StartedRetry int, Republishes int,
--   Now instant
-- A missing row: no enabled job has this task.
WITH p (task_name) AS (SELECT * FROM unnest($1::text[]))

SELECT
    Id, JobName, TaskName, Schedule, IntervalMinutes, TimeZone, Args, Kwargs, Options, Policies, LockTimeoutMinutes,
    Enabled, DisabledReason, StartAt, NextRunTime, LastRunTime, RetryAt, LockedBy, LockedAt, LeaseEndsAt, Fence,
    RunId, Quarantine, CodeKey, DeleteRequested, Version, CodeOwner, ClaimedAt, PublishedAt, StartedRetry,
    Republishes, statement_timestamp() AS Now
FROM Jobs
WHERE Namespace = $2 AND OneOff = 0 AND Enabled = 1 AND TaskName IN (SELECT p.task_name FROM p)
ORDER BY JobName
LIMIT $3;
