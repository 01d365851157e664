-- name: lock_releases
-- Imports of one owner come one after the other; the lock ends with the transaction. The name of a lock is shorter than
-- a namespace and an owner may be, so it holds their hash.
DECLARE @result int;
DECLARE @resource nvarchar(255) = N'celery_sqlbeat import '
    + CONVERT(varchar(64), HASHBYTES('SHA2_256', :namespace + NCHAR(31) + :code_owner), 2);

EXEC @result = sp_getapplock @Resource = @resource, @LockMode = N'Exclusive', @LockOwner = N'Transaction';

IF @result < 0
BEGIN
    THROW 51222, N'another import of this beat_schedule did not end in time', 1;
END;

-- name: read_releases
DECLARE @since datetime2(6) = before(:now, :live_seconds);
DECLARE @live_release nvarchar(200), @live_seen_at datetime2(6);

SELECT TOP (1) @live_release = r.CodeRelease, @live_seen_at = r.FirstSeenAt
FROM Nodes AS n
INNER JOIN Releases AS r
    ON r.Namespace = n.Namespace AND r.CodeOwner = n.CodeOwner AND r.CodeRelease = n.CodeRelease
WHERE
    n.Namespace = :namespace AND n.CodeOwner = :code_owner AND n.Kind = 'beat' AND n.StoppedAt IS NULL
    AND n.HeartbeatAt > @since
ORDER BY r.FirstSeenAt DESC;

SELECT
    :now AS Now,
    (
        SELECT o.FirstSeenAt FROM Releases AS o
        WHERE o.Namespace = :namespace AND o.CodeOwner = :code_owner AND o.CodeRelease = :code_release
    ) AS OwnSeenAt,
    (
        SELECT MAX(a.FirstSeenAt) FROM Releases AS a
        WHERE a.Namespace = :namespace AND a.CodeOwner = :code_owner
    ) AS NewestSeenAt,
    @live_release AS LiveRelease,
    @live_seen_at AS LiveSeenAt,
    (
        SELECT TOP (1) i.CodeRelease FROM Releases AS i
        WHERE i.Namespace = :namespace AND i.CodeOwner = :code_owner AND i.ImportedAt IS NOT NULL
        ORDER BY i.ImportedAt DESC
    ) AS ImportedRelease,
    (
        SELECT MAX(b.ImportedAt) FROM Releases AS b
        WHERE b.Namespace = :namespace AND b.CodeOwner = :code_owner
    ) AS ImportedAt,
    (
        SELECT COUNT(*) FROM Nodes AS m
        WHERE
            m.Namespace = :namespace AND m.Kind = 'beat' AND m.StoppedAt IS NULL AND m.HeartbeatAt > @since
            AND (m.CodeOwner <> :code_owner OR m.CodeRelease <> :code_release)
    ) AS OtherBeats,
    (SELECT COUNT(*) FROM Jobs AS j WHERE j.Namespace = :namespace AND j.CodeOwner = :code_owner) AS Jobs,
    (
        SELECT COUNT(*) FROM Jobs AS d
        WHERE d.Namespace = :namespace AND d.CodeOwner = :code_owner AND d.DisabledReason = :reason
    ) AS LeftJobs;

-- name: adopt_jobs
UPDATE j
SET CodeOwner = :code_owner, Version = j.Version + 1, UpdatedAt = :now
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
WHERE j.CodeOwner = :former_owner
OPTION (LOOP JOIN, FORCE ORDER);

-- name: insert_code_jobs
INSERT INTO Jobs (
    Id, Namespace, JobName, TaskName, Schedule, TimeZone, Args, Kwargs, Options, CodeOwner, CodeRelease, CodeKey,
    NextRunTime, LastRunTime, CreatedAt, UpdatedAt
)
OUTPUT inserted.:returns INTO @inserted
SELECT
    p.job_id, :namespace, p.job_name, p.task_name, p.schedule, p.time_zone, p.args, p.kwargs, p.options, :code_owner,
    :code_release, p.code_key, p.next_run_time, p.last_run_time, :now, :now
FROM p
WHERE NOT EXISTS (
    SELECT 1 FROM Jobs AS j WITH (INDEX (Jobs_Name), UPDLOCK, HOLDLOCK)
    WHERE j.Namespace = :namespace AND j.JobName = p.job_name COLLATE Latin1_General_BIN2
)
OPTION (LOOP JOIN);

-- name: update_code_jobs
UPDATE j
SET
    TaskName = p.task_name,
    Schedule = p.schedule,
    TimeZone = p.time_zone,
    Args = p.args,
    Kwargs = p.kwargs,
    Options = p.options,
    CodeKey = p.code_key,
    CodeRelease = :code_release,
    NextRunTime = CASE WHEN p.reschedule = 1 THEN p.next_run_time ELSE j.NextRunTime END,
    Enabled = CASE
        WHEN j.DisabledReason = :reason OR (j.DisabledReason = N'finished' AND p.reschedule = 1) THEN 1
        ELSE j.Enabled
    END,
    DisabledReason = CASE
        WHEN j.DisabledReason = :reason OR (j.DisabledReason = N'finished' AND p.reschedule = 1) THEN NULL
        ELSE j.DisabledReason
    END,
    Quarantine = NULL,
    Version = j.Version + 1,
    UpdatedAt = :now
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
WHERE j.Version = p.version AND j.DeleteRequested = 0 AND (p.reschedule = 0 OR j.Fence = p.fence)
OPTION (LOOP JOIN, FORCE ORDER);

-- name: leave_code_jobs
UPDATE j
SET Enabled = 0, DisabledReason = :reason, Version = j.Version + 1, UpdatedAt = :now
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Jobs AS j WITH (ROWLOCK) ON j.Id = p.job_id
WHERE j.Version = p.version AND j.Enabled = 1
OPTION (LOOP JOIN, FORCE ORDER);

-- name: read_code_owners
SELECT j.JobName, j.CodeOwner
FROM Jobs AS j
WHERE
    j.Namespace = :namespace
    AND j.JobName IN (
        SELECT p.job_name COLLATE Latin1_General_BIN2 FROM p
    )
OPTION (LOOP JOIN);

-- name: read_jobs_of_tasks
SELECT TOP (:page_size)
    j.Id, j.JobName, j.TaskName, j.Schedule, j.IntervalMinutes, j.TimeZone, j.Args, j.Kwargs, j.Options, j.Policies,
    j.LockTimeoutMinutes, j.Enabled, j.DisabledReason, j.StartAt, j.NextRunTime, j.LastRunTime, j.RetryAt, j.LockedBy,
    j.LockedAt, j.LeaseEndsAt, j.Fence, j.RunId, j.Quarantine, j.CodeKey, j.DeleteRequested, j.Version, j.CodeOwner,
    j.ClaimedAt, j.PublishedAt, j.StartedRetry, j.Republishes, :now AS Now
FROM Jobs AS j
WHERE
    j.Namespace = :namespace AND j.OneOff = 0 AND j.Enabled = 1
    AND EXISTS (
        SELECT 1
        FROM p
        WHERE p.task_name COLLATE Latin1_General_BIN2 = j.TaskName COLLATE Latin1_General_BIN2
    )
ORDER BY j.JobName;
