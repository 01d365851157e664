-- Named locks. A row stays when its lock is free, since it has the fence that the next holder goes on from.
CREATE TABLE IF NOT EXISTS Locks (
    Namespace varchar(100) NOT NULL,
    LockKey varchar(255) NOT NULL,
    -- Whose it is or was: random, so that a lost answer can be asked for again.
    Token char(36) NOT NULL,
    Holder varchar(400) NOT NULL,
    Fence bigint NOT NULL,
    TakenAt datetime(6) NOT NULL,
    -- NULL while it is free.
    LeaseEndsAt datetime(6),
    PRIMARY KEY (Namespace, LockKey)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

UPDATE StoreInfo SET OldestRelease = '0.1.0';
