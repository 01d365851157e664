-- Whether the effects of the run were committed in this database, with this mark (`current_run().transaction()`).
IF COL_LENGTH(N'dbo.JobRuns', N'EffectsDone') IS NULL
    ALTER TABLE dbo.JobRuns ADD EffectsDone bit NOT NULL CONSTRAINT JobRuns_EffectsDone DEFAULT 0;
GO

-- What `current_run().transaction()` needs in a database of the shop: a row of its own for each slot whose effects were
-- done, and one for each job (its Slot is empty). Old rows go with later transactions, so the table stays small.
IF OBJECT_ID(N'dbo.SqlbeatGuard', N'U') IS NULL
    CREATE TABLE dbo.SqlbeatGuard (
        StoreId uniqueidentifier NOT NULL,
        Namespace nvarchar(100) COLLATE Latin1_General_BIN2 NOT NULL,
        JobName nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL,
        -- Its kind and its instant.
        Slot varchar(60) NOT NULL,
        -- The highest that has done something here.
        Fence bigint NOT NULL,
        -- By which the effects of the slot were done.
        Attempt int NULL,
        TouchedAt datetime2(6) NOT NULL,
        CONSTRAINT SqlbeatGuard_Key PRIMARY KEY CLUSTERED (StoreId, Namespace, JobName, Slot)
    );
GO

IF NOT EXISTS (
    SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.SqlbeatGuard') AND name = N'SqlbeatGuard_Old'
)
    CREATE NONCLUSTERED INDEX SqlbeatGuard_Old ON dbo.SqlbeatGuard (TouchedAt);
GO

-- Where the role of grants.sql is there already, it may use the table.
IF DATABASE_PRINCIPAL_ID(N'sqlbeat_runner') IS NOT NULL
    GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.SqlbeatGuard TO sqlbeat_runner;
GO

UPDATE dbo.StoreInfo SET OldestRelease = N'0.1.0';
GO
