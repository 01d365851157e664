-- name: take_lock
-- The fence is set first: each assignment of MySQL sees those before it.
UPDATE Locks SET
    Fence = Fence + CASE WHEN Token = :token THEN 0 ELSE 1 END,
    TakenAt = CASE WHEN Token = :token THEN TakenAt ELSE :now END,
    Token = :token,
    Holder = :holder,
    LeaseEndsAt = after(:now, :lease_seconds)
WHERE
    Namespace = :namespace AND LockKey = :lock_key AND (LeaseEndsAt IS NULL OR LeaseEndsAt <= :now OR Token = :token);

INSERT INTO Locks (Namespace, LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt)
SELECT
    :namespace, :lock_key, :token, :holder, 1 + greatest(coalesce(c.FenceFloor, 0), s.Epoch * 1000000000),
    :now, after(:now, :lease_seconds)
FROM StoreInfo AS s
LEFT JOIN Changes AS c ON c.Namespace = :namespace
WHERE NOT EXISTS (SELECT 1 FROM Locks AS l WHERE l.Namespace = :namespace AND l.LockKey = :lock_key)
-- Somebody else was faster, and has it.
ON DUPLICATE KEY UPDATE Fence = Locks.Fence;

SELECT Fence, :now AS Now FROM Locks WHERE Namespace = :namespace AND LockKey = :lock_key AND Token = :token;

-- name: extend_locks
UPDATE p
STRAIGHT_JOIN Locks AS l ON l.Namespace = :namespace AND l.LockKey = p.lock_key
SET l.LeaseEndsAt = after(:now, p.lease_seconds)
WHERE l.Token = p.token AND l.Fence = p.fence AND l.LeaseEndsAt > :now;

SELECT l.Token
FROM p
STRAIGHT_JOIN Locks AS l ON l.Namespace = :namespace AND l.LockKey = p.lock_key
WHERE l.Token = p.token AND l.Fence = p.fence AND l.LeaseEndsAt > :now;

-- name: release_locks
SELECT json_arrayagg(json_array(l.LockKey, l.Token))
INTO @won
FROM p
STRAIGHT_JOIN Locks AS l ON l.Namespace = :namespace AND l.LockKey = p.lock_key
WHERE l.Token = p.token AND l.LeaseEndsAt IS NOT NULL
FOR UPDATE;

UPDATE
    JSON_TABLE(@won, '$[*]' COLUMNS (LockKey varchar(255) PATH '$[0]', Token char(36) PATH '$[1]')) AS w
STRAIGHT_JOIN Locks AS l ON l.Namespace = :namespace AND l.LockKey = w.LockKey AND l.Token = w.Token
SET l.LeaseEndsAt = NULL;

SELECT w.Token
FROM JSON_TABLE(@won, '$[*]' COLUMNS (Token char(36) PATH '$[1]')) AS w;

-- name: raise_lock_floor
UPDATE Changes AS c
INNER JOIN (
    SELECT max(l.Fence) AS Highest FROM Locks AS l
    WHERE l.Namespace = :namespace AND l.TakenAt < long_before(:now, :keep_seconds)
) AS f
SET c.FenceFloor = f.Highest
WHERE c.Namespace = :namespace AND c.FenceFloor < f.Highest;

-- name: raise_lock_fences
UPDATE Locks SET Fence = :floor + mod(Fence, :step) WHERE Fence < :floor;
