-- One-offs: runs that somebody submits, without a job. What their leases are taken on is a row of Jobs with OneOff = 1,
-- which has the id of the run as its own and as its name. Its CodeKey is 'one_off', which keeps it from beats of releases
-- that do not know one-offs: to them it is of a schedule that only other code can build.
-- May be run again: what is there already stays as it is.
IF COL_LENGTH(N'dbo.Jobs', N'OneOff') IS NULL
    ALTER TABLE dbo.Jobs ADD OneOff bit NOT NULL CONSTRAINT Jobs_OneOff DEFAULT 0;
GO

-- The jobs by name, among however many one-offs.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.Jobs') AND name = N'Jobs_Listed')
    CREATE NONCLUSTERED INDEX Jobs_Listed ON dbo.Jobs (Namespace, JobName)
    INCLUDE (OneOff)
    WHERE OneOff = 0;
GO

-- What beats look for while they are idle: who submits one-offs counts no change.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.Jobs') AND name = N'Jobs_OneOffs')
    CREATE NONCLUSTERED INDEX Jobs_OneOffs ON dbo.Jobs (Namespace, RetryAt)
    INCLUDE (OneOff, Enabled, LockedBy, Quarantine)
    WHERE OneOff = 1 AND Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL;
GO

-- The task of a one-off, which has no job that would name it.
IF COL_LENGTH(N'dbo.JobRuns', N'TaskName') IS NULL
    ALTER TABLE dbo.JobRuns ADD TaskName nvarchar(200) NULL;
GO

-- Who asked when and why that the run be cancelled.
IF COL_LENGTH(N'dbo.JobRuns', N'CancelAt') IS NULL
    ALTER TABLE dbo.JobRuns ADD CancelAt datetime2(6) NULL;
GO

IF COL_LENGTH(N'dbo.JobRuns', N'CancelBy') IS NULL
    ALTER TABLE dbo.JobRuns ADD CancelBy nvarchar(200) NULL;
GO

IF COL_LENGTH(N'dbo.JobRuns', N'CancelReason') IS NULL
    ALTER TABLE dbo.JobRuns ADD CancelReason nvarchar(400) NULL;
GO

-- Which run a key stands for, until it ends. Digest: of the task and its arguments. A key of 255 characters, none of them
-- in the basic plane, takes twice as many places, which is too long for a clustered key.
IF OBJECT_ID(N'dbo.IdempotencyKeys', N'U') IS NULL
    CREATE TABLE dbo.IdempotencyKeys (
        Seq bigint IDENTITY (1, 1) NOT NULL,
        Namespace nvarchar(100) COLLATE Latin1_General_BIN2 NOT NULL,
        KeyText nvarchar(510) COLLATE Latin1_General_BIN2 NOT NULL,
        RunId uniqueidentifier NOT NULL,
        TaskName nvarchar(200) NOT NULL,
        Digest varchar(64) NOT NULL,
        CreatedAt datetime2(6) NOT NULL,
        ExpiresAt datetime2(6) NOT NULL,
        CONSTRAINT IdempotencyKeys_Seq UNIQUE CLUSTERED (Seq),
        CONSTRAINT IdempotencyKeys_Key PRIMARY KEY NONCLUSTERED (Namespace, KeyText)
    );
GO

IF NOT EXISTS (
    SELECT 1 FROM sys.indexes
    WHERE object_id = OBJECT_ID(N'dbo.IdempotencyKeys') AND name = N'IdempotencyKeys_Ended'
)
    CREATE NONCLUSTERED INDEX IdempotencyKeys_Ended ON dbo.IdempotencyKeys (ExpiresAt, Namespace);
GO

-- A one-off goes with its history, whoever deletes that.
IF OBJECT_ID(N'dbo.JobRuns_Deleted', N'TR') IS NULL
    EXEC sys.sp_executesql N'
CREATE TRIGGER dbo.JobRuns_Deleted ON dbo.JobRuns AFTER DELETE AS
BEGIN
    SET NOCOUNT ON;

    IF NOT EXISTS (SELECT 1 FROM deleted AS g WHERE g.Kind = ''one_off'')
        RETURN;

    DELETE j
    FROM deleted AS g
    INNER JOIN dbo.Jobs AS j WITH (ROWLOCK) ON j.Id = g.JobId
    WHERE g.Kind = ''one_off'' AND j.OneOff = 1 AND j.LockedBy IS NULL
    OPTION (LOOP JOIN, FORCE ORDER);
END;';
GO

-- As in 0002, but for one-offs: no later row has their name, so nobody needs to know their last fence.
EXEC sys.sp_executesql N'
ALTER TRIGGER dbo.Jobs_Deleted ON dbo.Jobs AFTER DELETE AS
BEGIN
    SET NOCOUNT ON;

    IF NOT EXISTS (SELECT 1 FROM deleted AS g WHERE g.Fence > 0 AND g.OneOff = 0)
        RETURN;

    UPDATE d
    SET Fence = CASE WHEN g.Fence > d.Fence THEN g.Fence ELSE d.Fence END, DeletedAt = NULL
    FROM deleted AS g
    INNER JOIN dbo.DeletedJobs AS d WITH (ROWLOCK, UPDLOCK)
        ON d.Namespace = g.Namespace AND d.JobName = g.JobName
    WHERE g.Fence > 0 AND g.OneOff = 0;

    INSERT INTO dbo.DeletedJobs (Namespace, JobName, Fence)
    SELECT g.Namespace, g.JobName, g.Fence
    FROM deleted AS g
    WHERE
        g.Fence > 0 AND g.OneOff = 0
        AND NOT EXISTS (
            SELECT 1 FROM dbo.DeletedJobs AS d WITH (UPDLOCK, HOLDLOCK)
            WHERE d.Namespace = g.Namespace AND d.JobName = g.JobName
        );
END;';
GO

EXEC sys.sp_executesql N'
ALTER TRIGGER dbo.Jobs_Added ON dbo.Jobs AFTER INSERT AS
BEGIN
    SET NOCOUNT ON;

    IF NOT EXISTS (SELECT 1 FROM inserted AS a WHERE a.OneOff = 0)
        RETURN;

    UPDATE j
    SET Fence = f.Lowest
    FROM inserted AS a
    INNER JOIN dbo.Jobs AS j ON j.Id = a.Id
    CROSS APPLY (
        SELECT MAX(each.Fence) AS Lowest
        FROM (
            SELECT d.Fence FROM dbo.DeletedJobs AS d WHERE d.Namespace = a.Namespace AND d.JobName = a.JobName
            UNION ALL
            SELECT c.FenceFloor FROM dbo.Changes AS c WHERE c.Namespace = a.Namespace
            UNION ALL
            SELECT s.Epoch * CAST(1000000000 AS bigint) FROM dbo.StoreInfo AS s
        ) AS each
    ) AS f
    WHERE a.OneOff = 0 AND j.Fence < f.Lowest;
END;';
GO

-- Where the role of grants.sql is there already, it may use the keys.
IF DATABASE_PRINCIPAL_ID(N'sqlbeat_runner') IS NOT NULL
    GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.IdempotencyKeys TO sqlbeat_runner;
GO

UPDATE dbo.StoreInfo SET OldestRelease = N'0.1.0';
GO
