-- What beats, workers and administrators have in common. Batches, locks and the clock as in beat.sql.

-- name: read_clock
-- returns: Now
SELECT :now AS Now;

-- name: read_store
-- returns: StoreId, Epoch
-- Zero rows: the schema is not there yet.
SELECT StoreId, Epoch FROM StoreInfo;

-- name: read_changes
-- returns: Now, Counter, DueAt, NextDueAt, EndsAt
-- Always one row: a counter of zero says that nothing was ever changed through this package. What
-- it does not count: when the first one-off is due or its lease ends, or did; and of the others, when the next one will.
SELECT
    :now AS Now,
    coalesce((SELECT c.Counter FROM Changes AS c WHERE c.Namespace = :namespace), 0) AS Counter,
    (
        SELECT o.RetryAt
        FROM Jobs AS o INDEXED BY Jobs_OneOffs
        WHERE
            o.Namespace = :namespace AND o.OneOff = 1 AND o.Enabled = 1 AND o.LockedBy IS NULL AND o.Quarantine IS NULL
        ORDER BY o.RetryAt
        LIMIT 1
    ) AS DueAt,
    (
        SELECT min(coalesce(d.RetryAt, d.NextRunTime))
        FROM Jobs AS d INDEXED BY Jobs_Due
        WHERE
            d.Namespace = :namespace AND d.Enabled = 1 AND d.LockedBy IS NULL AND d.Quarantine IS NULL
            AND coalesce(d.RetryAt, d.NextRunTime) > :now
    ) AS NextDueAt,
    (
        SELECT min(CASE WHEN l.OneOff = 1 OR l.LeaseEndsAt > :now THEN l.LeaseEndsAt END)
        FROM Jobs AS l INDEXED BY Jobs_Leased
        WHERE l.Namespace = :namespace AND l.LockedBy IS NOT NULL
    ) AS EndsAt;

-- name: bump_changes
INSERT INTO Changes (Namespace, Counter) VALUES (:namespace, 1)
ON CONFLICT (Namespace) DO UPDATE SET Counter = Changes.Counter + 1;

-- name: note_node
-- returns: HeartbeatAt
-- A beat or worker says that it is alive. Tasks and details that are not given stay as they are.
INSERT INTO Nodes (
    NodeId, Namespace, Kind, Host, Pid, PackageVersion, CodeOwner, CodeRelease, Queues, BrokerFingerprint, SkewSeconds,
    Claimed, Tasks, Details, StartedAt, HeartbeatAt
)
VALUES (
    :node_id, :namespace, :kind, :host, :pid, :package_version, :code_owner, :code_release, :queues, :broker_fingerprint,
    :skew_seconds, :claimed, :tasks, :details, :now, :now
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
UPDATE Nodes SET StoppedAt = :now WHERE Namespace = :namespace AND NodeId = :node_id;

-- name: read_tasks
-- rows: node_id
-- returns: NodeId, Tasks
-- The tasks that workers know; they change seldom, and may be many. A missing row: the worker is gone.
WITH p AS (:rows)

SELECT n.NodeId, n.Tasks
FROM p
LOOP JOIN Nodes AS n ON n.NodeId = p.node_id AND n.Namespace = :namespace;

-- name: read_nodes
-- returns: NodeId, Kind, Host, Pid, PackageVersion, CodeRelease, Queues, BrokerFingerprint, SkewSeconds, Claimed,
--   CodeOwner, Details, StartedAt, HeartbeatAt, StoppedAt, Now
SELECT
    NodeId, Kind, Host, Pid, PackageVersion, CodeRelease, Queues, BrokerFingerprint, SkewSeconds, Claimed, CodeOwner,
    Details, StartedAt, HeartbeatAt, StoppedAt, :now AS Now
FROM Nodes
WHERE Namespace = :namespace AND HeartbeatAt > before(:now, :memory_seconds)
ORDER BY Kind, NodeId;

-- name: read_unended
-- returns: RunId, JobName, Attempt, State, TaskName, Options
-- Slots that ended lately with another attempt than the first, whose earlier attempts may have no final result.
-- Zero rows: there are none.
SELECT r.RunId, r.JobName, r.Attempt, r.State, j.TaskName, j.Options
FROM JobRuns AS r
LEFT JOIN Jobs AS j ON j.Id = r.JobId
WHERE
    r.Namespace = :namespace AND r.Attempt > 1 AND r.ResultsEndedAt IS NULL
    AND r.State IN ('success', 'dlq', 'dispatched', 'skipped', 'cancelled')
    AND r.FinishedAt > before(:now, :since_seconds)
LIMIT :page_size;

-- name: read_earlier
-- rows: run_id
-- returns: run_id, EarlierId, Attempt
-- A missing row: it is the first attempt of its slot, or their history is gone.
WITH p AS (:rows)

SELECT p.run_id, e.RunId AS EarlierId, e.Attempt
FROM p
LOOP JOIN JobRuns AS r ON r.RunId = key(p.run_id)
LOOP JOIN JobRuns AS e
    ON e.ScheduledFor = r.ScheduledFor AND e.JobId = r.JobId AND e.Kind = r.Kind AND e.Attempt < r.Attempt
WHERE e.ClaimedAt IS NOT NULL;

-- name: end_results
-- rows: run_id, claim_id
-- returns: RunId
-- A missing row: its history is gone, or it is of another claim now; without a claim id it may be of any.
WITH p AS (:rows)

UPDATE JobRuns SET ResultsEndedAt = :now
FROM p
WHERE JobRuns.RunId = key(p.run_id) AND (p.claim_id IS NULL OR JobRuns.ClaimId = p.claim_id)
RETURNING JobRuns.RunId;
