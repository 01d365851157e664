-- Named locks. A row stays when its lock is free, since it has the fence that the next holder goes on from.
-- May be run again: what is there already stays as it is.
IF OBJECT_ID(N'dbo.Locks', N'U') IS NULL
    CREATE TABLE dbo.Locks (
        Namespace nvarchar(100) COLLATE Latin1_General_BIN2 NOT NULL,
        LockKey nvarchar(255) COLLATE Latin1_General_BIN2 NOT NULL,
        -- Whose it is or was: random, so that a lost answer can be asked for again.
        Token uniqueidentifier NOT NULL,
        Holder nvarchar(400) NOT NULL,
        Fence bigint NOT NULL,
        TakenAt datetime2(6) NOT NULL,
        -- NULL while it is free.
        LeaseEndsAt datetime2(6) NULL,
        CONSTRAINT Locks_Key PRIMARY KEY CLUSTERED (Namespace, LockKey)
    );
GO

-- Where the role of grants.sql is there already, it may use them.
IF DATABASE_PRINCIPAL_ID(N'sqlbeat_runner') IS NOT NULL
    GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.Locks TO sqlbeat_runner;
GO

UPDATE dbo.StoreInfo SET OldestRelease = N'0.1.0';
GO
