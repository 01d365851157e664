-- What beats, workers and administrators have in common. The clock as in beat.sql.

-- name: read_changes
SELECT
    :now AS Now,
    coalesce((SELECT c.Counter FROM Changes AS c WHERE c.Namespace = :namespace), 0) AS Counter,
    (
        SELECT o.OneOffAt
        FROM Jobs AS o FORCE INDEX (Jobs_OneOffs)
        WHERE o.Namespace = :namespace AND o.OneOffAt IS NOT NULL
        ORDER BY o.OneOffAt
        LIMIT 1
    ) AS DueAt,
    (
        SELECT d.ClaimableAt
        FROM Jobs AS d FORCE INDEX (Jobs_Due)
        WHERE d.Namespace = :namespace AND d.ClaimableAt > :now
        ORDER BY d.ClaimableAt
        LIMIT 1
    ) AS NextDueAt,
    (
        SELECT min(CASE WHEN l.OneOff = 1 OR l.LeaseEndsAt > :now THEN l.LeaseEndsAt END)
        FROM Jobs AS l FORCE INDEX (Jobs_Leased)
        WHERE l.Namespace = :namespace AND l.Leased = 1
    ) AS EndsAt;

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
SET r.ResultsEndedAt = :now
WHERE p.claim_id IS NULL OR r.ClaimId = p.claim_id;

SELECT r.RunId
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE p.claim_id IS NULL OR r.ClaimId = p.claim_id;
