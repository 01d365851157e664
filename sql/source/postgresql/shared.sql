-- name: read_changes
SELECT
    :now AS Now,
    coalesce((SELECT c.Counter FROM Changes AS c WHERE c.Namespace = :namespace), 0) AS Counter,
    (
        SELECT o.RetryAt
        FROM Jobs AS o
        WHERE o.Namespace = :namespace AND o.OneOff = 1 AND o.Enabled = 1 AND o.Leased = 0 AND o.Quarantine IS NULL
        ORDER BY o.RetryAt
        LIMIT 1
    ) AS DueAt,
    (
        SELECT coalesce(d.RetryAt, d.NextRunTime)
        FROM Jobs AS d
        WHERE
            d.Namespace = :namespace AND d.Enabled = 1 AND d.Leased = 0 AND d.LockedBy IS NULL AND d.Quarantine IS NULL
            AND coalesce(d.RetryAt, d.NextRunTime) > :now
        ORDER BY coalesce(d.RetryAt, d.NextRunTime)
        LIMIT 1
    ) AS NextDueAt,
    (
        SELECT min(CASE WHEN l.OneOff = 1 OR l.LeaseEndsAt > :now THEN l.LeaseEndsAt END)
        FROM Jobs AS l
        WHERE l.Namespace = :namespace AND l.Leased = 1
    ) AS EndsAt;
