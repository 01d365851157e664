-- What beats, workers and administrators have in common. The clock as in beat.sql.

-- name: read_clock
SELECT statement_timestamp() AS Now;

-- name: read_store
-- Zero rows: the schema is not there yet.
SELECT StoreId, Epoch FROM StoreInfo;

-- name: read_changes
-- Zero rows: nothing was ever changed through this package.
SELECT Counter FROM Changes WHERE Namespace = :namespace;

-- name: bump_changes
INSERT INTO Changes (Namespace, Counter) VALUES (:namespace, 1)
ON CONFLICT (Namespace) DO UPDATE SET Counter = Changes.Counter + 1;

-- name: note_node
-- A beat or worker says that it is alive. Tasks and details that are not given stay as they are.
INSERT INTO Nodes (
    NodeId, Namespace, Kind, Host, Pid, PackageVersion, CodeOwner, CodeRelease, Queues, BrokerFingerprint, SkewSeconds,
    Claimed, Tasks, Details, StartedAt, HeartbeatAt
)
VALUES (
    :node_id, :namespace, :kind, :host, :pid, :package_version, :code_owner, :code_release, :queues, :broker_fingerprint,
    :skew_seconds, :claimed, :tasks, :details, statement_timestamp(), statement_timestamp()
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
UPDATE Nodes SET StoppedAt = statement_timestamp() WHERE NodeId = :node_id AND Namespace = :namespace;

-- name: read_tasks
-- rows: node_id text
-- The tasks that workers know; they change seldom, and may be many. A missing row: the worker is gone.
WITH p (node_id) AS (:rows)

SELECT n.NodeId, n.Tasks
FROM p
INNER JOIN Nodes AS n ON n.NodeId = p.node_id AND n.Namespace = :namespace;

-- name: read_nodes
SELECT
    NodeId, Kind, Host, Pid, PackageVersion, CodeRelease, Queues, BrokerFingerprint, SkewSeconds, Claimed, CodeOwner,
    Details, StartedAt, HeartbeatAt, StoppedAt, statement_timestamp() AS Now
FROM Nodes
WHERE Namespace = :namespace AND HeartbeatAt > statement_timestamp() - :memory_seconds * interval '1 second'
ORDER BY Kind, NodeId;
