-- Written by `make sql` from sql/source: change it there.
-- What beats, workers and administrators have in common. Batches, locks and the clock as in beat.sql.

-- name: read_clock
-- returns: Now instant
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT @now AS Now;

-- name: read_store
-- returns: StoreId id, Epoch bigint
-- Zero rows: the schema is not there yet.
SELECT StoreId, Epoch FROM dbo.StoreInfo;

-- name: read_changes
-- parameters: namespace text(100)
-- returns: Now instant, Counter bigint, DueAt instant, NextDueAt instant, EndsAt instant
-- READUNCOMMITTED as in read_next.
DECLARE @namespace nvarchar(100) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT
    @now AS Now,
    COALESCE((SELECT c.Counter FROM dbo.Changes AS c WHERE c.Namespace = @namespace), 0) AS Counter,
    (
        SELECT TOP (1) o.RetryAt
        FROM dbo.Jobs AS o WITH (INDEX (Jobs_OneOffs), READUNCOMMITTED)
        WHERE
            o.Namespace = @namespace AND o.OneOff = 1 AND o.Enabled = 1 AND o.LockedBy IS NULL AND o.Quarantine IS NULL
        ORDER BY o.RetryAt
    ) AS DueAt,
    (
        SELECT TOP (1) d.DueAt
        FROM dbo.Jobs AS d WITH (INDEX (Jobs_Due), READUNCOMMITTED)
        WHERE
            d.Namespace = @namespace AND d.Enabled = 1 AND d.LockedBy IS NULL AND d.Quarantine IS NULL
            AND d.DueAt > @now
        ORDER BY d.DueAt
    ) AS NextDueAt,
    (
        SELECT MIN(CASE WHEN l.OneOff = 1 OR l.LeaseEndsAt > @now THEN l.LeaseEndsAt END)
        FROM dbo.Jobs AS l WITH (INDEX (Jobs_Leased), READUNCOMMITTED)
        WHERE l.Namespace = @namespace AND l.LockedBy IS NOT NULL
    ) AS EndsAt;

-- name: bump_changes
-- parameters: namespace text(100)
-- The range lock keeps a second one out between the look and the insert.
DECLARE @namespace nvarchar(100) = ?;

BEGIN TRANSACTION;

UPDATE dbo.Changes WITH (UPDLOCK, SERIALIZABLE) SET Counter = Counter + 1 WHERE Namespace = @namespace;

IF @@ROWCOUNT = 0
    INSERT INTO dbo.Changes (Namespace, Counter) VALUES (@namespace, 1);

COMMIT TRANSACTION;

-- name: note_node
-- parameters: code_owner text(200), code_release text(200), queues text, broker_fingerprint text(200),
--   skew_seconds seconds, claimed bigint, tasks text, details text, namespace text(100), node_id text(200),
--   kind word(20), host text(255), pid int, package_version text(50)
-- returns: HeartbeatAt instant
-- A beat or worker says that it is alive. Tasks and details that are not given stay as they are.
DECLARE @code_owner nvarchar(200) = ?, @code_release nvarchar(200) = ?, @queues nvarchar(max) = ?,
    @broker_fingerprint nvarchar(200) = ?, @skew_seconds float(53) = ?, @claimed bigint = ?, @tasks nvarchar(max) = ?,
    @details nvarchar(max) = ?, @namespace nvarchar(100) = ?, @node_id nvarchar(200) = ?, @kind varchar(20) = ?,
    @host nvarchar(255) = ?, @pid int = ?, @package_version nvarchar(50) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

BEGIN TRANSACTION;

UPDATE dbo.Nodes WITH (UPDLOCK, SERIALIZABLE)
SET
    CodeOwner = @code_owner,
    CodeRelease = @code_release,
    Queues = @queues,
    BrokerFingerprint = @broker_fingerprint,
    SkewSeconds = @skew_seconds,
    Claimed = @claimed,
    Tasks = COALESCE(@tasks, Tasks),
    Details = COALESCE(@details, Details),
    HeartbeatAt = @now,
    StoppedAt = NULL
WHERE Namespace = @namespace AND NodeId = @node_id;

IF @@ROWCOUNT = 0
    INSERT INTO dbo.Nodes (
        NodeId, Namespace, Kind, Host, Pid, PackageVersion, CodeOwner, CodeRelease, Queues, BrokerFingerprint,
        SkewSeconds, Claimed, Tasks, Details, StartedAt, HeartbeatAt
    )
    VALUES (
        @node_id, @namespace, @kind, @host, @pid, @package_version, @code_owner, @code_release, @queues,
        @broker_fingerprint, @skew_seconds, @claimed, @tasks, @details, @now, @now
    );

COMMIT TRANSACTION;

SELECT @now AS HeartbeatAt;

-- name: stop_node
-- parameters: namespace text(100), node_id text(200)
DECLARE @namespace nvarchar(100) = ?, @node_id nvarchar(200) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

UPDATE dbo.Nodes SET StoppedAt = @now WHERE Namespace = @namespace AND NodeId = @node_id;

-- name: read_tasks
-- parameters: namespace text(100)
-- rows: node_id text(200)
-- returns: NodeId text(200), Tasks text
-- The tasks that workers know; they change seldom, and may be many. A missing row: the worker is gone.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;

SELECT n.NodeId, n.Tasks
FROM OPENJSON(@rows) WITH (node_id nvarchar(200) '$[0]') AS p
INNER JOIN dbo.Nodes AS n ON n.NodeId = p.node_id AND n.Namespace = @namespace;

-- name: read_nodes
-- parameters: namespace text(100), memory_seconds seconds
-- returns: NodeId text(200), Kind text, Host text, Pid int, PackageVersion text, CodeRelease text, Queues text,
--   BrokerFingerprint text, SkewSeconds seconds, Claimed bigint, CodeOwner text, Details text,
--   StartedAt instant, HeartbeatAt instant, StoppedAt instant, Now instant
DECLARE @namespace nvarchar(100) = ?, @memory_seconds float(53) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT
    NodeId, Kind, Host, Pid, PackageVersion, CodeRelease, Queues, BrokerFingerprint, SkewSeconds, Claimed, CodeOwner,
    Details, StartedAt, HeartbeatAt, StoppedAt, @now AS Now
FROM dbo.Nodes
WHERE Namespace = @namespace AND HeartbeatAt > DATEADD(
    MICROSECOND, ROUND(1000000 * (-@memory_seconds - FLOOR(-@memory_seconds)), 0),
    DATEADD(SECOND, FLOOR(-@memory_seconds), @now)
)
ORDER BY Kind, NodeId;

-- name: read_unended
-- parameters: page_size int, namespace text(100), since_seconds seconds
-- returns: RunId id, JobName text(200), Attempt int, State text, TaskName text, Options text
-- Slots that ended lately with another attempt than the first, whose earlier attempts may have no final result.
-- Zero rows: there are none.
DECLARE @page_size int = ?, @namespace nvarchar(100) = ?, @since_seconds float(53) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT TOP (@page_size) r.RunId, r.JobName, r.Attempt, r.State, j.TaskName, j.Options
FROM dbo.JobRuns AS r
LEFT JOIN dbo.Jobs AS j ON j.Id = r.JobId
WHERE
    r.Namespace = @namespace AND r.Attempt > 1 AND r.ResultsEndedAt IS NULL
    AND r.State IN ('success', 'dlq', 'dispatched', 'skipped', 'cancelled')
    AND r.FinishedAt > DATEADD(
        MICROSECOND, ROUND(1000000 * (-@since_seconds - FLOOR(-@since_seconds)), 0),
        DATEADD(SECOND, FLOOR(-@since_seconds), @now)
    );

-- name: read_earlier
-- rows: run_id id
-- returns: run_id id, EarlierId id, Attempt int
-- A missing row: it is the first attempt of its slot, or their history is gone.
DECLARE @rows nvarchar(max) = ?;

SELECT p.run_id, e.RunId AS EarlierId, e.Attempt
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]') AS p
INNER JOIN dbo.JobRuns AS r ON r.RunId = p.run_id
INNER JOIN dbo.JobRuns AS e
    ON e.ScheduledFor = r.ScheduledFor AND e.JobId = r.JobId AND e.Kind = r.Kind AND e.Attempt < r.Attempt
WHERE e.ClaimedAt IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER);

-- name: end_results
-- rows: run_id id, claim_id id
-- returns: RunId id
-- A missing row: its history is gone, or it is of another claim now; without a claim id it may be of any.
DECLARE @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @ended TABLE (RunId uniqueidentifier NOT NULL);

UPDATE r
SET ResultsEndedAt = @now
OUTPUT inserted.RunId INTO @ended (RunId)
FROM OPENJSON(@rows) WITH (run_id uniqueidentifier '$[0]', claim_id uniqueidentifier '$[1]') AS p
INNER JOIN dbo.JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE p.claim_id IS NULL OR r.ClaimId = p.claim_id
OPTION (LOOP JOIN, FORCE ORDER);

SELECT RunId FROM @ended;
