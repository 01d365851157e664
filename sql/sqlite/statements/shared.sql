-- Written by `make sql` from sql/source: change it there.
-- What beats, workers and administrators have in common. Batches, locks and the clock as in beat.sql.

-- name: read_clock
-- parameters: ?1 now instant
-- returns: Now instant
SELECT ?1 AS Now;

-- name: read_store
-- returns: StoreId id, Epoch bigint
-- Zero rows: the schema is not there yet.
SELECT StoreId, Epoch FROM StoreInfo;

-- name: read_changes
-- parameters: ?1 now instant, ?2 namespace text(100)
-- returns: Now instant, Counter bigint, DueAt instant, NextDueAt instant, EndsAt instant
-- Always one row: a counter of zero says that nothing was ever changed through this package. What
-- it does not count: when the first one-off is due or its lease ends, or did; and of the others, when the next one will.
SELECT
    ?1 AS Now,
    coalesce((SELECT c.Counter FROM Changes AS c WHERE c.Namespace = ?2), 0) AS Counter,
    (
        SELECT o.RetryAt
        FROM Jobs AS o INDEXED BY Jobs_OneOffs
        WHERE
            o.Namespace = ?2 AND o.OneOff = 1 AND o.Enabled = 1 AND o.LockedBy IS NULL AND o.Quarantine IS NULL
        ORDER BY o.RetryAt
        LIMIT 1
    ) AS DueAt,
    (
        SELECT min(coalesce(d.RetryAt, d.NextRunTime))
        FROM Jobs AS d INDEXED BY Jobs_Due
        WHERE
            d.Namespace = ?2 AND d.Enabled = 1 AND d.LockedBy IS NULL AND d.Quarantine IS NULL
            AND coalesce(d.RetryAt, d.NextRunTime) > ?1
    ) AS NextDueAt,
    (
        SELECT min(CASE WHEN l.OneOff = 1 OR l.LeaseEndsAt > ?1 THEN l.LeaseEndsAt END)
        FROM Jobs AS l INDEXED BY Jobs_Leased
        WHERE l.Namespace = ?2 AND l.LockedBy IS NOT NULL
    ) AS EndsAt;

-- name: bump_changes
-- parameters: ?1 namespace text(100)
INSERT INTO Changes (Namespace, Counter) VALUES (?1, 1)
ON CONFLICT (Namespace) DO UPDATE SET Counter = Changes.Counter + 1;

-- name: note_node
-- parameters: ?1 node_id text(200), ?2 namespace text(100), ?3 kind word(20), ?4 host text(255), ?5 pid int,
--   ?6 package_version text(50), ?7 code_owner text(200), ?8 code_release text(200), ?9 queues text,
--   ?10 broker_fingerprint text(200), ?11 skew_seconds seconds, ?12 claimed bigint, ?13 tasks text,
--   ?14 details text, ?15 now instant
-- returns: HeartbeatAt instant
-- A beat or worker says that it is alive. Tasks and details that are not given stay as they are.
INSERT INTO Nodes (
    NodeId, Namespace, Kind, Host, Pid, PackageVersion, CodeOwner, CodeRelease, Queues, BrokerFingerprint, SkewSeconds,
    Claimed, Tasks, Details, StartedAt, HeartbeatAt
)
VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10,
    ?11, ?12, ?13, ?14, ?15, ?15
)
ON CONFLICT (Namespace, NodeId) DO UPDATE SET
    CodeOwner = excluded.CodeOwner,
    CodeRelease = excluded.CodeRelease,
    Queues = excluded.Queues,
    BrokerFingerprint = excluded.BrokerFingerprint,
    SkewSeconds = excluded.SkewSeconds,
    Claimed = excluded.Claimed,
    Tasks = coalesce(excluded.Tasks, Nodes.Tasks),
    Details = coalesce(excluded.Details, Nodes.Details),
    HeartbeatAt = excluded.HeartbeatAt,
    StoppedAt = NULL
RETURNING HeartbeatAt;

-- name: stop_node
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 node_id text(200)
UPDATE Nodes SET StoppedAt = ?1 WHERE Namespace = ?2 AND NodeId = ?3;

-- name: read_tasks
-- parameters: ?1 namespace text(100)
-- rows: node_id text(200)
-- returns: NodeId text(200), Tasks text
-- The tasks that workers know; they change seldom, and may be many. A missing row: the worker is gone.
WITH p (node_id) AS (:rows)

SELECT n.NodeId, n.Tasks
FROM p
CROSS JOIN Nodes AS n ON n.NodeId = p.node_id AND n.Namespace = ?1;

-- name: read_nodes
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 memory_seconds seconds
-- returns: NodeId text(200), Kind text, Host text, Pid int, PackageVersion text, CodeRelease text, Queues text,
--   BrokerFingerprint text, SkewSeconds seconds, Claimed bigint, CodeOwner text, Details text,
--   StartedAt instant, HeartbeatAt instant, StoppedAt instant, Now instant
SELECT
    NodeId, Kind, Host, Pid, PackageVersion, CodeRelease, Queues, BrokerFingerprint, SkewSeconds, Claimed, CodeOwner,
    Details, StartedAt, HeartbeatAt, StoppedAt, ?1 AS Now
FROM Nodes
WHERE Namespace = ?2 AND HeartbeatAt > after(?1, -?3)
ORDER BY Kind, NodeId;

-- name: read_unended
-- parameters: ?1 namespace text(100), ?2 now instant, ?3 since_seconds seconds, ?4 page_size int
-- returns: RunId id, JobName text(200), Attempt int, State text, TaskName text, Options text
-- Slots that ended lately with another attempt than the first, whose earlier attempts may have no final result.
-- Zero rows: there are none.
SELECT r.RunId, r.JobName, r.Attempt, r.State, j.TaskName, j.Options
FROM JobRuns AS r
LEFT JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.Namespace = ?1 AND r.Attempt > 1 AND r.ResultsEndedAt IS NULL
    AND r.State IN ('success', 'dlq', 'dispatched', 'skipped', 'cancelled')
    AND r.FinishedAt > after(?2, -?3)
LIMIT ?4;

-- name: read_earlier
-- rows: run_id id
-- returns: run_id id, EarlierId id, Attempt int
-- A missing row: it is the first attempt of its slot, or their history is gone.
WITH p (run_id) AS (:rows)

SELECT p.run_id, e.RunId AS EarlierId, e.Attempt
FROM p
CROSS JOIN JobRuns AS r ON r.RunId = p.run_id
CROSS JOIN JobRuns AS e
    ON e.ScheduledFor = r.ScheduledFor AND e.JobId = r.JobId AND e.Kind = r.Kind AND e.Attempt < r.Attempt
WHERE e.ClaimedAt IS NOT NULL;

-- name: end_results
-- parameters: ?1 now instant
-- rows: run_id id, claim_id id
-- returns: RunId id
-- A missing row: its history is gone, or it is of another claim now; without a claim id it may be of any.
WITH p (run_id, claim_id) AS (:rows)

UPDATE JobRuns SET ResultsEndedAt = ?1
FROM p
WHERE JobRuns.RunId = p.run_id AND (p.claim_id IS NULL OR JobRuns.ClaimId = p.claim_id)
RETURNING JobRuns.RunId;
