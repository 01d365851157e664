-- Named locks: leases of their own, each with its fence. A free lock keeps its row, and so its fence.

-- name: take_lock
-- returns: Fence, Now
-- A missing row: somebody else holds the lock, as read_lock tells. The same token again gets the same fence, so that a
-- lost answer is no lost lock. A new row goes on from the fences of rows that were forgotten, or are from before an epoch.
INSERT INTO Locks (Namespace, LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt)
SELECT
    :namespace, :lock_key, :token, :holder, 1 + later(coalesce(c.FenceFloor, 0), s.Epoch * CAST(1000000000 AS bigint)),
    :now, after(:now, :lease_seconds)
FROM StoreInfo AS s
LEFT JOIN Changes AS c ON c.Namespace = :namespace
WHERE true
ON CONFLICT (Namespace, LockKey) DO UPDATE SET
    Fence = Locks.Fence + CASE WHEN Locks.Token = excluded.Token THEN 0 ELSE 1 END,
    TakenAt = CASE WHEN Locks.Token = excluded.Token THEN Locks.TakenAt ELSE excluded.TakenAt END,
    Token = excluded.Token,
    Holder = excluded.Holder,
    LeaseEndsAt = excluded.LeaseEndsAt
WHERE Locks.LeaseEndsAt IS NULL OR Locks.LeaseEndsAt <= :now OR Locks.Token = excluded.Token
RETURNING Fence, :now AS Now;

-- name: extend_locks
-- rows: lock_key, token, fence, lease_seconds
-- returns: Token
-- A missing row: the lease has ended, or somebody else has the lock.
WITH p AS (:rows)

UPDATE Locks SET LeaseEndsAt = after(:now, p.lease_seconds)
FROM p
WHERE
    Locks.Namespace = :namespace AND Locks.LockKey = p.lock_key AND Locks.Token = p.token AND Locks.Fence = p.fence
    AND Locks.LeaseEndsAt > :now
RETURNING Locks.Token;

-- name: release_locks
-- rows: lock_key, token
-- returns: Token
-- A missing row: it was released before, or taken over.
WITH p AS (:rows)

UPDATE Locks SET LeaseEndsAt = NULL
FROM p
WHERE
    Locks.Namespace = :namespace AND Locks.LockKey = p.lock_key AND Locks.Token = p.token
    AND Locks.LeaseEndsAt IS NOT NULL
RETURNING Locks.Token;

-- name: read_lock
-- returns: LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt, Now
-- Zero rows: nobody holds it.
SELECT LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt, :now AS Now
FROM Locks
WHERE Namespace = :namespace AND LockKey = :lock_key AND LeaseEndsAt > :now;

-- name: list_locks
-- returns: LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt, Now
-- A page of the locks that somebody holds, by key.
SELECT LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt, :now AS Now
FROM Locks
WHERE Namespace = :namespace AND LockKey > :after_key AND LeaseEndsAt > :now
ORDER BY LockKey
LIMIT :page_size;

-- name: raise_lock_floor
-- So that a lock that is forgotten goes on from here when it is taken again.
UPDATE Changes SET FenceFloor = (
    SELECT max(l.Fence) FROM Locks AS l
    WHERE l.Namespace = :namespace AND l.TakenAt < long_before(:now, :keep_seconds)
)
WHERE Namespace = :namespace AND FenceFloor < (
    SELECT max(l.Fence) FROM Locks AS l
    WHERE l.Namespace = :namespace AND l.TakenAt < long_before(:now, :keep_seconds)
);

-- name: read_fence_floor
-- returns: Fence
-- Zero rows: nothing was ever changed in this namespace.
SELECT FenceFloor AS Fence FROM Changes WHERE Namespace = :namespace;

-- name: purge_locks
-- Locks that nobody has taken for long, up to a floor that was read in an earlier pass: whoever is taking one of them now
-- has seen its row, or that floor.
DELETE FROM Locks
WHERE
    Namespace = :namespace AND Fence <= :floor AND TakenAt < long_before(:now, :keep_seconds)
    AND (LeaseEndsAt IS NULL OR LeaseEndsAt <= :now);

-- name: raise_lock_fences
-- After a restore: no fence of before may come again, and who holds a lock by an old one loses it.
UPDATE Locks SET Fence = :floor + Fence % :step WHERE Fence < :floor;
