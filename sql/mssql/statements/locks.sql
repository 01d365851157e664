-- Written by `make sql` from sql/source: change it there.
-- Named locks: leases of their own, each with its fence. A free lock keeps its row, and so its fence.

-- name: take_lock
-- parameters: token id, holder text(400), lease_seconds seconds, namespace text(100), lock_key text(255)
-- returns: Fence bigint, Now instant
-- The range lock keeps a second one out between the look and the insert.
DECLARE @token uniqueidentifier = ?, @holder nvarchar(400) = ?, @lease_seconds float(53) = ?, @namespace nvarchar(100) = ?,
    @lock_key nvarchar(255) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

BEGIN TRANSACTION;

UPDATE dbo.Locks WITH (UPDLOCK, SERIALIZABLE)
SET
    Fence = Fence + CASE WHEN Token = @token THEN 0 ELSE 1 END,
    TakenAt = CASE WHEN Token = @token THEN TakenAt ELSE @now END,
    Token = @token,
    Holder = @holder,
    LeaseEndsAt = DATEADD(
        MICROSECOND, ROUND(1000000 * (@lease_seconds - FLOOR(@lease_seconds)), 0),
        DATEADD(SECOND, FLOOR(@lease_seconds), @now)
    )
WHERE
    Namespace = @namespace AND LockKey = @lock_key AND (LeaseEndsAt IS NULL OR LeaseEndsAt <= @now OR Token = @token);

IF @@ROWCOUNT = 0
    INSERT INTO dbo.Locks (Namespace, LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt)
    SELECT
        @namespace, @lock_key, @token, @holder,
        1 + CASE
            WHEN COALESCE(c.FenceFloor, 0) > s.Epoch * CAST(1000000000 AS bigint) THEN c.FenceFloor
            ELSE s.Epoch * CAST(1000000000 AS bigint)
        END,
        @now, DATEADD(
            MICROSECOND, ROUND(1000000 * (@lease_seconds - FLOOR(@lease_seconds)), 0),
            DATEADD(SECOND, FLOOR(@lease_seconds), @now)
        )
    FROM dbo.StoreInfo AS s
    LEFT OUTER JOIN dbo.Changes AS c ON c.Namespace = @namespace
    WHERE
        NOT EXISTS (
            SELECT 1 FROM dbo.Locks AS l WITH (UPDLOCK, SERIALIZABLE)
            WHERE l.Namespace = @namespace AND l.LockKey = @lock_key
        );

COMMIT TRANSACTION;

SELECT Fence, @now AS Now FROM dbo.Locks WHERE Namespace = @namespace AND LockKey = @lock_key AND Token = @token;

-- name: extend_locks
-- parameters: namespace text(100)
-- rows: lock_key text(255), token id, fence bigint, lease_seconds seconds
-- returns: Token id
-- A missing row: the lease has ended, or somebody else has the lock.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();
DECLARE @changed TABLE (Token uniqueidentifier NOT NULL);

UPDATE l
SET LeaseEndsAt = DATEADD(
    MICROSECOND, ROUND(1000000 * (p.lease_seconds - FLOOR(p.lease_seconds)), 0),
    DATEADD(SECOND, FLOOR(p.lease_seconds), @now)
)
OUTPUT inserted.Token INTO @changed (Token)
FROM OPENJSON(@rows) WITH (
    lock_key nvarchar(255) '$[0]',
    token uniqueidentifier '$[1]',
    fence bigint '$[2]',
    lease_seconds float(53) '$[3]'
) AS p
INNER JOIN dbo.Locks AS l WITH (ROWLOCK) ON l.Namespace = @namespace AND l.LockKey = p.lock_key
WHERE l.Token = p.token AND l.Fence = p.fence AND l.LeaseEndsAt > @now
OPTION (LOOP JOIN, FORCE ORDER);

SELECT Token FROM @changed;

-- name: release_locks
-- parameters: namespace text(100)
-- rows: lock_key text(255), token id
-- returns: Token id
-- A missing row: it was released before, or taken over.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @changed TABLE (Token uniqueidentifier NOT NULL);

UPDATE l
SET LeaseEndsAt = NULL
OUTPUT inserted.Token INTO @changed (Token)
FROM OPENJSON(@rows) WITH (lock_key nvarchar(255) '$[0]', token uniqueidentifier '$[1]') AS p
INNER JOIN dbo.Locks AS l WITH (ROWLOCK) ON l.Namespace = @namespace AND l.LockKey = p.lock_key
WHERE l.Token = p.token AND l.LeaseEndsAt IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER);

SELECT Token FROM @changed;

-- name: read_lock
-- parameters: namespace text(100), lock_key text(255)
-- returns: LockKey text, Token id, Holder text, Fence bigint, TakenAt instant, LeaseEndsAt instant, Now instant
-- Zero rows: nobody holds it.
DECLARE @namespace nvarchar(100) = ?, @lock_key nvarchar(255) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt, @now AS Now
FROM dbo.Locks
WHERE Namespace = @namespace AND LockKey = @lock_key AND LeaseEndsAt > @now;

-- name: list_locks
-- parameters: page_size int, namespace text(100), after_key text(255)
-- returns: LockKey text, Token id, Holder text, Fence bigint, TakenAt instant, LeaseEndsAt instant, Now instant
-- A page of the locks that somebody holds, by key.
DECLARE @page_size int = ?, @namespace nvarchar(100) = ?, @after_key nvarchar(255) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

SELECT TOP (@page_size) LockKey, Token, Holder, Fence, TakenAt, LeaseEndsAt, @now AS Now
FROM dbo.Locks
WHERE Namespace = @namespace AND LockKey > @after_key AND LeaseEndsAt > @now
ORDER BY LockKey;

-- name: raise_lock_floor
-- parameters: namespace text(100), keep_seconds seconds
-- So that a lock that is forgotten goes on from here when it is taken again.
DECLARE @namespace nvarchar(100) = ?, @keep_seconds float(53) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

UPDATE c
SET FenceFloor = f.Highest
FROM dbo.Changes AS c
CROSS APPLY (
    SELECT MAX(l.Fence) AS Highest
    FROM dbo.Locks AS l
    WHERE l.Namespace = @namespace AND l.TakenAt < DATEADD(
        SECOND, -@keep_seconds - 86400 * FLOOR(-@keep_seconds / 86400), DATEADD(DAY, FLOOR(-@keep_seconds / 86400), @now)
    )
) AS f
WHERE c.Namespace = @namespace AND c.FenceFloor < f.Highest;

-- name: read_fence_floor
-- parameters: namespace text(100)
-- returns: Fence bigint
-- Zero rows: nothing was ever changed in this namespace.
DECLARE @namespace nvarchar(100) = ?;

SELECT FenceFloor AS Fence FROM dbo.Changes WHERE Namespace = @namespace;

-- name: purge_locks
-- parameters: namespace text(100), floor bigint, keep_seconds seconds
-- Locks that nobody has taken for long, up to a floor that was read in an earlier pass: whoever is taking one of them now
-- has seen its row, or that floor.
DECLARE @namespace nvarchar(100) = ?, @floor bigint = ?, @keep_seconds float(53) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

DELETE FROM dbo.Locks
WHERE
    Namespace = @namespace AND Fence <= @floor AND TakenAt < DATEADD(
        SECOND, -@keep_seconds - 86400 * FLOOR(-@keep_seconds / 86400), DATEADD(DAY, FLOOR(-@keep_seconds / 86400), @now)
    )
    AND (LeaseEndsAt IS NULL OR LeaseEndsAt <= @now);

-- name: raise_lock_fences
-- parameters: floor bigint, step bigint
-- After a restore: no fence of before may come again, and who holds a lock by an old one loses it.
DECLARE @floor bigint = ?, @step bigint = ?;

UPDATE dbo.Locks SET Fence = @floor + Fence % @step WHERE Fence < @floor;
