-- Named locks. A row stays when its lock is free, since it has the fence that the next holder goes on from.
CREATE TABLE Locks (
    Namespace TEXT NOT NULL,
    LockKey TEXT NOT NULL,
    -- Whose it is or was: random, so that a lost answer can be asked for again.
    Token TEXT NOT NULL,
    Holder TEXT NOT NULL,
    Fence INTEGER NOT NULL,
    TakenAt TEXT NOT NULL,
    -- NULL while it is free.
    LeaseEndsAt TEXT,
    PRIMARY KEY (Namespace, LockKey)
);

UPDATE StoreInfo SET OldestRelease = '0.1.0';
