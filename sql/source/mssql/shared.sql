-- name: read_changes
-- READUNCOMMITTED as in read_next.
SELECT
    :now AS Now,
    COALESCE((SELECT c.Counter FROM Changes AS c WHERE c.Namespace = :namespace), 0) AS Counter,
    (
        SELECT TOP (1) o.RetryAt
        FROM Jobs AS o WITH (INDEX (Jobs_OneOffs), READUNCOMMITTED)
        WHERE
            o.Namespace = :namespace AND o.OneOff = 1 AND o.Enabled = 1 AND o.LockedBy IS NULL AND o.Quarantine IS NULL
        ORDER BY o.RetryAt
    ) AS DueAt,
    (
        SELECT TOP (1) d.DueAt
        FROM Jobs AS d WITH (INDEX (Jobs_Due), READUNCOMMITTED)
        WHERE
            d.Namespace = :namespace AND d.Enabled = 1 AND d.LockedBy IS NULL AND d.Quarantine IS NULL
            AND d.DueAt > :now
        ORDER BY d.DueAt
    ) AS NextDueAt,
    (
        SELECT MIN(CASE WHEN l.OneOff = 1 OR l.LeaseEndsAt > :now THEN l.LeaseEndsAt END)
        FROM Jobs AS l WITH (INDEX (Jobs_Leased), READUNCOMMITTED)
        WHERE l.Namespace = :namespace AND l.LockedBy IS NOT NULL
    ) AS EndsAt;

-- part: bump_changes
BEGIN TRANSACTION;

UPDATE Changes WITH (UPDLOCK, SERIALIZABLE) SET Counter = Counter + 1 WHERE Namespace = :namespace;

IF @@ROWCOUNT = 0
    INSERT INTO Changes (Namespace, Counter) VALUES (:namespace, 1);

COMMIT TRANSACTION;

-- name: bump_changes
-- The range lock keeps a second one out between the look and the insert.
-- include: bump_changes

-- name: note_node
BEGIN TRANSACTION;

UPDATE Nodes WITH (UPDLOCK, SERIALIZABLE)
SET
    CodeOwner = :code_owner,
    CodeRelease = :code_release,
    Queues = :queues,
    BrokerFingerprint = :broker_fingerprint,
    SkewSeconds = :skew_seconds,
    Claimed = :claimed,
    Tasks = COALESCE(:tasks, Tasks),
    Details = COALESCE(:details, Details),
    HeartbeatAt = :now,
    StoppedAt = NULL
WHERE Namespace = :namespace AND NodeId = :node_id;

IF @@ROWCOUNT = 0
    INSERT INTO Nodes (
        NodeId, Namespace, Kind, Host, Pid, PackageVersion, CodeOwner, CodeRelease, Queues, BrokerFingerprint,
        SkewSeconds, Claimed, Tasks, Details, StartedAt, HeartbeatAt
    )
    VALUES (
        :node_id, :namespace, :kind, :host, :pid, :package_version, :code_owner, :code_release, :queues,
        :broker_fingerprint, :skew_seconds, :claimed, :tasks, :details, :now, :now
    );

COMMIT TRANSACTION;

SELECT :now AS HeartbeatAt;

-- name: read_tasks
SELECT n.NodeId, n.Tasks
FROM p
INNER JOIN Nodes AS n ON n.NodeId = p.node_id AND n.Namespace = :namespace;

-- name: end_results
UPDATE r
SET ResultsEndedAt = :now
OUTPUT inserted.:returns INTO @ended
FROM p
INNER JOIN JobRuns AS r WITH (ROWLOCK) ON r.RunId = p.run_id
WHERE p.claim_id IS NULL OR r.ClaimId = p.claim_id
OPTION (LOOP JOIN, FORCE ORDER);
