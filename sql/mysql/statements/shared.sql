-- Written by `make sql` from sql/source: change it there.
-- What beats, workers and administrators have in common. The clock as in beat.sql.

-- name: read_clock
-- returns: Now instant
SET @now = utc_timestamp(6);
SELECT CAST(@now AS datetime(6)) AS Now;

-- name: read_store
-- returns: StoreId id, Epoch bigint
-- Zero rows: the schema is not there yet.
SELECT StoreId, Epoch FROM StoreInfo;

-- name: read_changes
-- parameters: namespace text(100)
-- returns: Now instant, Counter bigint, DueAt instant, NextDueAt instant, EndsAt instant
-- Always one row: a counter of zero says that nothing was ever changed through this package. What
-- it does not count: when the first one-off is due or its lease ends, or did; and of the others, when the next one will.
SET @now = utc_timestamp(6);
SELECT
    CAST(@now AS datetime(6)) AS Now,
    coalesce((SELECT c.Counter FROM Changes AS c WHERE c.Namespace = %(namespace)s), 0) AS Counter,
    (
        SELECT o.OneOffAt
        FROM Jobs AS o FORCE INDEX (Jobs_OneOffs)
        WHERE o.Namespace = %(namespace)s AND o.OneOffAt IS NOT NULL
        ORDER BY o.OneOffAt
        LIMIT 1
    ) AS DueAt,
    (
        SELECT d.ClaimableAt
        FROM Jobs AS d FORCE INDEX (Jobs_Due)
        WHERE d.Namespace = %(namespace)s AND d.ClaimableAt > CAST(@now AS datetime(6))
        ORDER BY d.ClaimableAt
        LIMIT 1
    ) AS NextDueAt,
    (
        SELECT min(CASE WHEN l.OneOff = 1 OR l.LeaseEndsAt > CAST(@now AS datetime(6)) THEN l.LeaseEndsAt END)
        FROM Jobs AS l FORCE INDEX (Jobs_Leased)
        WHERE l.Namespace = %(namespace)s AND l.Leased = 1
    ) AS EndsAt;

-- name: bump_changes
-- parameters: namespace text(100)
INSERT INTO Changes (Namespace, Counter) VALUES (%(namespace)s, 1)
ON DUPLICATE KEY UPDATE Counter = Counter + 1;

-- name: note_node
-- parameters: node_id text(200), namespace text(100), kind word(20), host text(255), pid int, package_version text(50),
--   code_owner text(200), code_release text(200), queues text, broker_fingerprint text(200),
--   skew_seconds seconds, claimed bigint, tasks text, details text
-- returns: HeartbeatAt instant
-- A beat or worker says that it is alive. Tasks and details that are not given stay as they are.
SET @now = utc_timestamp(6);
INSERT INTO Nodes (
    NodeId, Namespace, Kind, Host, Pid, PackageVersion, CodeOwner, CodeRelease, Queues, BrokerFingerprint, SkewSeconds,
    Claimed, Tasks, Details, StartedAt, HeartbeatAt
)
VALUES (
    %(node_id)s, %(namespace)s, %(kind)s, %(host)s, %(pid)s, %(package_version)s, %(code_owner)s, %(code_release)s, %(queues)s, %(broker_fingerprint)s,
    %(skew_seconds)s, %(claimed)s, %(tasks)s, %(details)s, CAST(@now AS datetime(6)), CAST(@now AS datetime(6))
)
ON DUPLICATE KEY UPDATE
    CodeOwner = VALUES(CodeOwner),
    CodeRelease = VALUES(CodeRelease),
    Queues = VALUES(Queues),
    BrokerFingerprint = VALUES(BrokerFingerprint),
    SkewSeconds = VALUES(SkewSeconds),
    Claimed = VALUES(Claimed),
    Tasks = coalesce(VALUES(Tasks), Tasks),
    Details = coalesce(VALUES(Details), Details),
    HeartbeatAt = VALUES(HeartbeatAt),
    StoppedAt = NULL;

SELECT CAST(@now AS datetime(6)) AS HeartbeatAt;

-- name: stop_node
-- parameters: namespace text(100), node_id text(200)
SET @now = utc_timestamp(6);
UPDATE Nodes SET StoppedAt = CAST(@now AS datetime(6)) WHERE Namespace = %(namespace)s AND NodeId = %(node_id)s;

-- name: read_tasks
-- parameters: namespace text(100)
-- rows: node_id text(200)
-- returns: NodeId text(200), Tasks text
-- The tasks that workers know; they change seldom, and may be many. A missing row: the worker is gone.
SET @rows = %(rows)s;
SELECT n.NodeId, n.Tasks
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (node_id mediumtext PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN Nodes AS n ON n.NodeId = p.node_id AND n.Namespace = %(namespace)s;

-- name: read_nodes
-- parameters: namespace text(100), memory_seconds seconds
-- returns: NodeId text(200), Kind text, Host text, Pid int, PackageVersion text, CodeRelease text, Queues text,
--   BrokerFingerprint text, SkewSeconds seconds, Claimed bigint, CodeOwner text, Details text,
--   StartedAt instant, HeartbeatAt instant, StoppedAt instant, Now instant
SET @now = utc_timestamp(6);
SELECT
    NodeId, Kind, Host, Pid, PackageVersion, CodeRelease, Queues, BrokerFingerprint, SkewSeconds, Claimed, CodeOwner,
    Details, StartedAt, HeartbeatAt, StoppedAt, CAST(@now AS datetime(6)) AS Now
FROM Nodes
WHERE Namespace = %(namespace)s AND HeartbeatAt > CAST(@now AS datetime(6)) - INTERVAL %(memory_seconds)s SECOND
ORDER BY Kind, NodeId;

-- name: read_unended
-- parameters: namespace text(100), since_seconds seconds, page_size int
-- returns: RunId id, JobName text(200), Attempt int, State text, TaskName text, Options text
-- Slots that ended lately with another attempt than the first, whose earlier attempts may have no final result.
-- Zero rows: there are none.
SET @now = utc_timestamp(6);
SELECT r.RunId, r.JobName, r.Attempt, r.State, j.TaskName, j.Options
FROM JobRuns AS r
LEFT JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.Namespace = %(namespace)s AND r.IsUnended = 1
    AND r.State IN ('success', 'dlq', 'dispatched', 'skipped', 'cancelled')
    AND r.FinishedAt > CAST(@now AS datetime(6)) - INTERVAL %(since_seconds)s SECOND
LIMIT %(page_size)s;

-- name: read_earlier
-- rows: run_id id
-- returns: run_id id, EarlierId id, Attempt int
-- A missing row: it is the first attempt of its slot, or their history is gone.
SET @rows = %(rows)s;
SELECT p.run_id, e.RunId AS EarlierId, e.Attempt
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (run_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
STRAIGHT_JOIN JobRuns AS e
    ON e.ScheduledFor = r.ScheduledFor AND e.JobId = r.JobId AND e.Kind = r.Kind AND e.Attempt < r.Attempt
WHERE e.ClaimedAt IS NOT NULL;

-- name: end_results
-- rows: run_id id, claim_id id
-- returns: RunId id
-- A missing row: its history is gone, or it is of another claim now; without a claim id it may be of any.
SET @now = utc_timestamp(6), @rows = %(rows)s;
UPDATE JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        claim_id char(36) PATH '$[1]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
SET r.ResultsEndedAt = CAST(@now AS datetime(6))
WHERE p.claim_id IS NULL OR r.ClaimId = p.claim_id;

SELECT r.RunId
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        claim_id char(36) PATH '$[1]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
WHERE p.claim_id IS NULL OR r.ClaimId = p.claim_id;
