-- What beats, workers and administrators have in common. The clock as in beat.sql.

-- name: bump_changes
INSERT INTO Changes (Namespace, Counter) VALUES (:namespace, 1)
ON DUPLICATE KEY UPDATE Counter = Counter + 1;

-- name: note_node
INSERT INTO Nodes (
    NodeId, Namespace, Kind, Host, Pid, PackageVersion, CodeOwner, CodeRelease, Queues, BrokerFingerprint, SkewSeconds,
    Claimed, Tasks, Details, StartedAt, HeartbeatAt
)
VALUES (
    :node_id, :namespace, :kind, :host, :pid, :package_version, :code_owner, :code_release, :queues, :broker_fingerprint,
    :skew_seconds, :claimed, :tasks, :details, :now, :now
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

SELECT :now AS HeartbeatAt;

-- name: read_unended
SELECT r.RunId, r.JobName, r.Attempt, r.State, j.TaskName, j.Options
FROM JobRuns AS r
LEFT JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.Namespace = :namespace AND r.IsUnended = 1
    AND r.State IN ('success', 'dlq', 'dispatched', 'skipped', 'cancelled')
    AND r.FinishedAt > before(:now, :since_seconds)
LIMIT :page_size;

-- name: end_results
UPDATE p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
SET r.ResultsEndedAt = :now;

SELECT r.RunId
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id;
