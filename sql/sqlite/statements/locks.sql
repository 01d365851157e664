-- Written by `make sql` from sql/source: change it there.
-- Named locks: leases of their own, each with its fence. A free lock keeps its row, and so its fence.

-- name: take_lock
-- parameters: ?1 namespace text(100), ?2 lock_key text(255), ?3 token id, ?4 holder text(400), ?5 now instant,
--   ?6 lease_seconds seconds
-- returns: Fence bigint, Now instant
-- A missing row: somebody else holds the lock, as read_lock tells. The same token again gets the same fence, so that a
-- lost answer is no lost lock. A new row goes on from the fences of rows that were forgotten, or are from before an epoch.
INSERT INTO Locks (Namespace, LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt)
SELECT
    ?1, ?2, ?3, ?4, 1 + max(coalesce(c.FenceFloor, 0), s.Epoch * CAST(1000000000 AS bigint)),
    ?5, after(?5, ?6)
FROM StoreInfo AS s
LEFT JOIN Changes AS c ON c.Namespace = ?1
WHERE true
ON CONFLICT (Namespace, LockKey) DO UPDATE SET
    Fence = Locks.Fence + CASE WHEN Locks.Token = excluded.Token THEN 0 ELSE 1 END,
    TakenAt = CASE WHEN Locks.Token = excluded.Token THEN Locks.TakenAt ELSE excluded.TakenAt END,
    Token = excluded.Token,
    Holder = excluded.Holder,
    LeaseEndsAt = excluded.LeaseEndsAt
WHERE Locks.LeaseEndsAt IS NULL OR Locks.LeaseEndsAt <= ?5 OR Locks.Token = excluded.Token
RETURNING Fence, ?5 AS Now;

-- name: extend_locks
-- parameters: ?1 now instant, ?2 namespace text(100)
-- rows: lock_key text(255), token id, fence bigint, lease_seconds seconds
-- returns: Token id
-- A missing row: the lease has ended, or somebody else has the lock.
WITH p (lock_key, token, fence, lease_seconds) AS (:rows)

UPDATE Locks SET LeaseEndsAt = after(?1, p.lease_seconds)
FROM p
WHERE
    Locks.Namespace = ?2 AND Locks.LockKey = p.lock_key AND Locks.Token = p.token AND Locks.Fence = p.fence
    AND Locks.LeaseEndsAt > ?1
RETURNING Locks.Token;

-- name: release_locks
-- parameters: ?1 namespace text(100)
-- rows: lock_key text(255), token id
-- returns: Token id
-- A missing row: it was released before, or taken over.
WITH p (lock_key, token) AS (:rows)

UPDATE Locks SET LeaseEndsAt = NULL
FROM p
WHERE
    Locks.Namespace = ?1 AND Locks.LockKey = p.lock_key AND Locks.Token = p.token
    AND Locks.LeaseEndsAt IS NOT NULL
RETURNING Locks.Token;

-- name: read_lock
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 lock_key text(255)
-- returns: LockKey text, Token id, Holder text, Fence bigint, TakenAt instant, LeaseEndsAt instant, Now instant
-- Zero rows: nobody holds it.
SELECT LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt, ?1 AS Now
FROM Locks
WHERE Namespace = ?2 AND LockKey = ?3 AND LeaseEndsAt > ?1;

-- name: list_locks
-- parameters: ?1 now instant, ?2 namespace text(100), ?3 after_key text(255), ?4 page_size int
-- returns: LockKey text, Token id, Holder text, Fence bigint, TakenAt instant, LeaseEndsAt instant, Now instant
-- A page of the locks that somebody holds, by key.
SELECT LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt, ?1 AS Now
FROM Locks
WHERE Namespace = ?2 AND LockKey > ?3 AND LeaseEndsAt > ?1
ORDER BY LockKey
LIMIT ?4;

-- name: raise_lock_floor
-- parameters: ?1 namespace text(100), ?2 now instant, ?3 keep_seconds seconds
-- So that a lock that is forgotten goes on from here when it is taken again.
UPDATE Changes SET FenceFloor = (
    SELECT max(l.Fence) FROM Locks AS l
    WHERE l.Namespace = ?1 AND l.TakenAt < after(?2, -?3)
)
WHERE Namespace = ?1 AND FenceFloor < (
    SELECT max(l.Fence) FROM Locks AS l
    WHERE l.Namespace = ?1 AND l.TakenAt < after(?2, -?3)
);

-- name: read_fence_floor
-- parameters: ?1 namespace text(100)
-- returns: Fence bigint
-- Zero rows: nothing was ever changed in this namespace.
SELECT FenceFloor AS Fence FROM Changes WHERE Namespace = ?1;

-- name: purge_locks
-- parameters: ?1 namespace text(100), ?2 floor bigint, ?3 now instant, ?4 keep_seconds seconds
-- Locks that nobody has taken for long, up to a floor that was read in an earlier pass: whoever is taking one of them now
-- has seen its row, or that floor.
DELETE FROM Locks
WHERE
    Namespace = ?1 AND Fence <= ?2 AND TakenAt < after(?3, -?4)
    AND (LeaseEndsAt IS NULL OR LeaseEndsAt <= ?3);

-- name: raise_lock_fences
-- parameters: ?1 floor bigint, ?2 step bigint
-- After a restore: no fence of before may come again, and who holds a lock by an old one loses it.
UPDATE Locks SET Fence = ?1 + Fence % ?2 WHERE Fence < ?1;
