-- Written by `make sql` from sql/source: change it there.
-- Named locks: leases of their own, each with its fence. A free lock keeps its row, and so its fence.

-- name: take_lock
-- parameters: token id, holder text(400), lease_seconds seconds, namespace text(100), lock_key text(255)
-- returns: Fence bigint, Now instant
-- The fence is set first: each assignment of MySQL sees those before it.
SET @now = utc_timestamp(6);
UPDATE Locks SET
    Fence = Fence + CASE WHEN Token = %(token)s THEN 0 ELSE 1 END,
    TakenAt = CASE WHEN Token = %(token)s THEN TakenAt ELSE CAST(@now AS datetime(6)) END,
    Token = %(token)s,
    Holder = %(holder)s,
    LeaseEndsAt = CAST(@now AS datetime(6)) + INTERVAL %(lease_seconds)s SECOND
WHERE
    Namespace = %(namespace)s AND LockKey = %(lock_key)s AND (LeaseEndsAt IS NULL OR LeaseEndsAt <= CAST(@now AS datetime(6)) OR Token = %(token)s);

INSERT INTO Locks (Namespace, LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt)
SELECT
    %(namespace)s, %(lock_key)s, %(token)s, %(holder)s, 1 + greatest(coalesce(c.FenceFloor, 0), s.Epoch * 1000000000),
    CAST(@now AS datetime(6)), CAST(@now AS datetime(6)) + INTERVAL %(lease_seconds)s SECOND
FROM StoreInfo AS s
LEFT JOIN Changes AS c ON c.Namespace = %(namespace)s
WHERE NOT EXISTS (SELECT 1 FROM Locks AS l WHERE l.Namespace = %(namespace)s AND l.LockKey = %(lock_key)s)
-- Somebody else was faster, and has it.
ON DUPLICATE KEY UPDATE Fence = Locks.Fence;

SELECT Fence, CAST(@now AS datetime(6)) AS Now FROM Locks WHERE Namespace = %(namespace)s AND LockKey = %(lock_key)s AND Token = %(token)s;

-- name: extend_locks
-- parameters: namespace text(100)
-- rows: lock_key text(255), token id, fence bigint, lease_seconds seconds
-- returns: Token id
-- A missing row: the lease has ended, or somebody else has the lock.
SET @now = utc_timestamp(6), @rows = %(rows)s;
UPDATE JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        lock_key mediumtext PATH '$[0]' ERROR ON ERROR,
        token char(36) PATH '$[1]' ERROR ON ERROR,
        fence bigint PATH '$[2]' ERROR ON ERROR,
        lease_seconds double PATH '$[3]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Locks AS l FORCE INDEX (PRIMARY) ON l.Namespace = %(namespace)s AND l.LockKey = p.lock_key
SET l.LeaseEndsAt = CAST(@now AS datetime(6)) + INTERVAL p.lease_seconds SECOND
WHERE l.Token = p.token AND l.Fence = p.fence AND l.LeaseEndsAt > CAST(@now AS datetime(6));

SELECT l.Token
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        lock_key mediumtext PATH '$[0]' ERROR ON ERROR,
        token char(36) PATH '$[1]' ERROR ON ERROR,
        fence bigint PATH '$[2]' ERROR ON ERROR,
        lease_seconds double PATH '$[3]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Locks AS l FORCE INDEX (PRIMARY) ON l.Namespace = %(namespace)s AND l.LockKey = p.lock_key
WHERE l.Token = p.token AND l.Fence = p.fence AND l.LeaseEndsAt > CAST(@now AS datetime(6));

-- name: release_locks
-- parameters: namespace text(100)
-- rows: lock_key text(255), token id
-- returns: Token id
-- A missing row: it was released before, or taken over.
SET @rows = %(rows)s;
SELECT json_arrayagg(json_array(l.LockKey, l.Token))
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        lock_key mediumtext PATH '$[0]' ERROR ON ERROR,
        token char(36) PATH '$[1]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Locks AS l FORCE INDEX (PRIMARY) ON l.Namespace = %(namespace)s AND l.LockKey = p.lock_key
WHERE l.Token = p.token AND l.LeaseEndsAt IS NOT NULL
FOR UPDATE;

UPDATE
    JSON_TABLE(@won, '$[*]' COLUMNS (LockKey varchar(255) PATH '$[0]', Token char(36) PATH '$[1]')) AS w
STRAIGHT_JOIN Locks AS l FORCE INDEX (PRIMARY) ON l.Namespace = %(namespace)s AND l.LockKey = w.LockKey AND l.Token = w.Token
SET l.LeaseEndsAt = NULL;

SELECT w.Token
FROM JSON_TABLE(@won, '$[*]' COLUMNS (Token char(36) PATH '$[1]')) AS w;

-- name: read_lock
-- parameters: namespace text(100), lock_key text(255)
-- returns: LockKey text, Token id, Holder text, Fence bigint, TakenAt instant, LeaseEndsAt instant, Now instant
-- Zero rows: nobody holds it.
SET @now = utc_timestamp(6);
SELECT LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt, CAST(@now AS datetime(6)) AS Now
FROM Locks
WHERE Namespace = %(namespace)s AND LockKey = %(lock_key)s AND LeaseEndsAt > CAST(@now AS datetime(6));

-- name: list_locks
-- parameters: namespace text(100), after_key text(255), page_size int
-- returns: LockKey text, Token id, Holder text, Fence bigint, TakenAt instant, LeaseEndsAt instant, Now instant
-- A page of the locks that somebody holds, by key.
SET @now = utc_timestamp(6);
SELECT LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt, CAST(@now AS datetime(6)) AS Now
FROM Locks
WHERE Namespace = %(namespace)s AND LockKey > %(after_key)s AND LeaseEndsAt > CAST(@now AS datetime(6))
ORDER BY LockKey
LIMIT %(page_size)s;

-- name: raise_lock_floor
-- parameters: namespace text(100), keep_seconds seconds
-- So that a lock that is forgotten goes on from here when it is taken again.
SET @now = utc_timestamp(6);
UPDATE Changes AS c
INNER JOIN (
    SELECT max(l.Fence) AS Highest FROM Locks AS l
    WHERE l.Namespace = %(namespace)s AND l.TakenAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
) AS f
SET c.FenceFloor = f.Highest
WHERE c.Namespace = %(namespace)s AND c.FenceFloor < f.Highest;

-- name: read_fence_floor
-- parameters: namespace text(100)
-- returns: Fence bigint
-- Zero rows: nothing was ever changed in this namespace.
SELECT FenceFloor AS Fence FROM Changes WHERE Namespace = %(namespace)s;

-- name: purge_locks
-- parameters: namespace text(100), floor bigint, keep_seconds seconds
-- Locks that nobody has taken for long, up to a floor that was read in an earlier pass: whoever is taking one of them now
-- has seen its row, or that floor.
SET @now = utc_timestamp(6);
DELETE FROM Locks
WHERE
    Namespace = %(namespace)s AND Fence <= %(floor)s AND TakenAt < CAST(@now AS datetime(6)) - INTERVAL %(keep_seconds)s SECOND
    AND (LeaseEndsAt IS NULL OR LeaseEndsAt <= CAST(@now AS datetime(6)));

-- name: raise_lock_fences
-- parameters: floor bigint, step bigint
-- After a restore: no fence of before may come again, and who holds a lock by an old one loses it.
UPDATE Locks SET Fence = %(floor)s + mod(Fence, %(step)s) WHERE Fence < %(floor)s;
