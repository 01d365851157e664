-- name: read_keys
-- One key after the other: the planner would rather read all keys of the namespace for each of them.
WITH p AS (:rows)

SELECT
    p.run_id, k.RunId, k.TaskName, k.Digest, coalesce(r.ScheduledFor, k.CreatedAt) AS DueAt,
    CASE
        WHEN k.RunId = p.run_id OR EXISTS (SELECT 1 FROM JobRuns AS o WHERE o.RunId = p.run_id) THEN 1
        ELSE 0
    END AS IsOwn,
    :now AS Now
FROM p
CROSS JOIN LATERAL (
    SELECT i.RunId, i.TaskName, i.Digest, i.CreatedAt
    FROM IdempotencyKeys AS i
    WHERE i.Namespace = :namespace AND i.KeyText = p.key_text
    LIMIT 1
) AS k
LEFT JOIN JobRuns AS r ON r.RunId = k.RunId;

-- name: purge_keys
WITH ended AS MATERIALIZED (
    SELECT k.ctid AS Place
    FROM IdempotencyKeys AS k
    WHERE k.Namespace = :namespace AND k.ExpiresAt <= :now
    ORDER BY k.ExpiresAt
    LIMIT :batch_size
    FOR UPDATE SKIP LOCKED
),

-- By its place, which stays the same as long as the row is locked.
purged AS (
    DELETE FROM IdempotencyKeys
    WHERE ctid = ANY(ARRAY(SELECT ended.Place FROM ended))
    RETURNING 1
)

SELECT count(*) AS Purged FROM purged;
