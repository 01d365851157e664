-- name: take_lock
-- The range lock keeps a second one out between the look and the insert.
BEGIN TRANSACTION;

UPDATE Locks WITH (UPDLOCK, SERIALIZABLE)
SET
    Fence = Fence + CASE WHEN Token = :token THEN 0 ELSE 1 END,
    TakenAt = CASE WHEN Token = :token THEN TakenAt ELSE :now END,
    Token = :token,
    Holder = :holder,
    LeaseEndsAt = after(:now, :lease_seconds)
WHERE
    Namespace = :namespace AND LockKey = :lock_key AND (LeaseEndsAt IS NULL OR LeaseEndsAt <= :now OR Token = :token);

IF @@ROWCOUNT = 0
    INSERT INTO Locks (Namespace, LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt)
    SELECT
        :namespace, :lock_key, :token, :holder,
        1 + CASE
            WHEN COALESCE(c.FenceFloor, 0) > s.Epoch * CAST(1000000000 AS bigint) THEN c.FenceFloor
            ELSE s.Epoch * CAST(1000000000 AS bigint)
        END,
        :now, after(:now, :lease_seconds)
    FROM StoreInfo AS s
    LEFT OUTER JOIN Changes AS c ON c.Namespace = :namespace
    WHERE
        NOT EXISTS (
            SELECT 1 FROM Locks AS l WITH (UPDLOCK, SERIALIZABLE)
            WHERE l.Namespace = :namespace AND l.LockKey = :lock_key
        );

COMMIT TRANSACTION;

SELECT Fence, :now AS Now FROM Locks WHERE Namespace = :namespace AND LockKey = :lock_key AND Token = :token;

-- name: extend_locks
UPDATE l
SET LeaseEndsAt = after(:now, p.lease_seconds)
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Locks AS l WITH (ROWLOCK) ON l.Namespace = :namespace AND l.LockKey = p.lock_key
WHERE l.Token = p.token AND l.Fence = p.fence AND l.LeaseEndsAt > :now
OPTION (LOOP JOIN, FORCE ORDER);

-- name: release_locks
UPDATE l
SET LeaseEndsAt = NULL
OUTPUT inserted.:returns INTO @changed
FROM p
INNER JOIN Locks AS l WITH (ROWLOCK) ON l.Namespace = :namespace AND l.LockKey = p.lock_key
WHERE l.Token = p.token AND l.LeaseEndsAt IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER);

-- name: raise_lock_floor
UPDATE c
SET FenceFloor = f.Highest
FROM Changes AS c
CROSS APPLY (
    SELECT MAX(l.Fence) AS Highest
    FROM Locks AS l
    WHERE l.Namespace = :namespace AND l.TakenAt < long_before(:now, :keep_seconds)
) AS f
WHERE c.Namespace = :namespace AND c.FenceFloor < f.Highest;

-- name: purge_locks
DELETE FROM Locks
WHERE
    Namespace = :namespace AND Fence <= :floor AND TakenAt < long_before(:now, :keep_seconds)
    AND (LeaseEndsAt IS NULL OR LeaseEndsAt <= :now);
