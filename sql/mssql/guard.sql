-- What `current_run().transaction()` needs in a database of the shop: a row of its own for each slot whose effects were
-- done, and one for each job (its Slot is empty). Old rows go with later transactions, so the table stays small.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET QUOTED_IDENTIFIER ON;
GO

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
