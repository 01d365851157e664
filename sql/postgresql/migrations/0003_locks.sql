-- Named locks. A row stays when its lock is free, since it has the fence that the next holder goes on from. Rows are
-- updated in place all the time, so each page keeps room for their next versions.
CREATE TABLE Locks (
    Namespace text NOT NULL,
    LockKey text NOT NULL,
    -- Whose it is or was: random, so that a lost answer can be asked for again.
    Token uuid NOT NULL,
    Holder text NOT NULL,
    Fence bigint NOT NULL,
    TakenAt timestamptz NOT NULL,
    -- NULL while it is free.
    LeaseEndsAt timestamptz,
    PRIMARY KEY (Namespace, LockKey)
) WITH (fillfactor = 50);

-- Where the role of grants.sql is there already, it may use them.
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'sqlbeat_runner') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON Locks TO sqlbeat_runner;
    END IF;
END;
$$;

UPDATE StoreInfo SET OldestRelease = '0.1.0';
