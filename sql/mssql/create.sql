-- All tables and indexes of celery-sqlbeat: what `celery -A app sqlbeat init` runs, and `--sql` prints.
SET XACT_ABORT ON;
SET QUOTED_IDENTIFIER ON;
SET NOCOUNT ON;
GO

IF OBJECT_ID(N'dbo.SchemaMigrations', N'U') IS NULL
    CREATE TABLE dbo.SchemaMigrations (
        Number int NOT NULL,
        Name nvarchar(200) NOT NULL,
        Checksum varchar(64) NOT NULL,
        AppliedAt datetime2(6) NOT NULL,
        CONSTRAINT SchemaMigrations_Key PRIMARY KEY CLUSTERED (Number)
    );
GO

-- The tables of celery-sqlbeat on SQL Server 2017 and later, and on Azure SQL, in the schema dbo.
-- Needs compatibility level 130 or higher. May be run again: what is there already stays as it is.
--
-- Ids are uniqueidentifier, as everywhere, but no table is ordered by them: the clustered key is a narrow number that
-- only grows. What one process writes and another reads back by name is compared exactly (BIN2), in any database.
-- No index holds an instant that a heartbeat moves.
-- In nvarchar(n) a character outside the basic plane takes two places; columns that a program fills leave room for it.

-- What filtered indexes and computed columns need, in this session and in every one that writes.
SET ANSI_NULLS ON;
SET ANSI_PADDING ON;
SET ANSI_WARNINGS ON;
SET ARITHABORT ON;
SET CONCAT_NULL_YIELDS_NULL ON;
SET QUOTED_IDENTIFIER ON;
SET NUMERIC_ROUNDABORT OFF;
SET XACT_ABORT ON;
SET NOCOUNT ON;
GO

IF OBJECT_ID(N'dbo.StoreInfo', N'U') IS NULL
    CREATE TABLE dbo.StoreInfo (
        OnlyRow tinyint NOT NULL,
        StoreId uniqueidentifier NOT NULL,
        Epoch bigint NOT NULL CONSTRAINT StoreInfo_Epoch DEFAULT 0,
        CreatedAt datetime2(6) NOT NULL,
        CONSTRAINT StoreInfo_Key PRIMARY KEY CLUSTERED (OnlyRow),
        CONSTRAINT StoreInfo_IsOneRow CHECK (OnlyRow = 1)
    );
GO

INSERT INTO dbo.StoreInfo (OnlyRow, StoreId, CreatedAt)
SELECT 1, NEWID(), SYSUTCDATETIME()
WHERE NOT EXISTS (SELECT 1 FROM dbo.StoreInfo);
GO

IF OBJECT_ID(N'dbo.Jobs', N'U') IS NULL
    CREATE TABLE dbo.Jobs (
        Seq bigint IDENTITY (1, 1) NOT NULL,
        Id uniqueidentifier NOT NULL CONSTRAINT Jobs_NewId DEFAULT NEWSEQUENTIALID(),
        Namespace nvarchar(100) COLLATE Latin1_General_BIN2 NOT NULL CONSTRAINT Jobs_Namespace DEFAULT N'default',
        JobName nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL,
        TaskName nvarchar(200) NULL,
        Schedule nvarchar(1000) NULL,
        IntervalMinutes int NULL CONSTRAINT Jobs_IntervalMinutes DEFAULT 10,
        TimeZone nvarchar(100) NULL,
        Args nvarchar(max) NULL,
        Kwargs nvarchar(max) NULL,
        Options nvarchar(max) NULL,
        Policies nvarchar(max) NULL,
        Enabled bit NOT NULL CONSTRAINT Jobs_Enabled DEFAULT 1,
        DisabledReason nvarchar(400) NULL,
        StartAt datetime2(6) NULL,
        NextRunTime datetime2(6) NULL,
        LastRunTime datetime2(6) NULL,
        LockTimeoutMinutes int NULL,
        -- The slot that waits for another attempt.
        RetryAt datetime2(6) NULL,
        RetryRunId uniqueidentifier NULL,
        -- The claim and the lease. LockedBy IS NULL alone means unlocked.
        LockedBy nvarchar(200) NULL,
        LockedAt datetime2(6) NULL,
        LeaseEndsAt datetime2(6) NULL,
        ClaimedAt datetime2(6) NULL,
        PublishedAt datetime2(6) NULL,
        PlannedAt datetime2(6) NULL,
        Fence bigint NOT NULL CONSTRAINT Jobs_Fence DEFAULT 0,
        RunId uniqueidentifier NULL,
        ClaimId uniqueidentifier NULL,
        StartedRetry int NULL,
        Republishes int NOT NULL CONSTRAINT Jobs_Republishes DEFAULT 0,
        -- Why the row cannot run as it was written.
        Quarantine nvarchar(1000) NULL,
        -- Entries of a beat_schedule: who defined them, and what only that code can build.
        CodeOwner nvarchar(200) COLLATE Latin1_General_BIN2 NULL,
        CodeRelease nvarchar(200) COLLATE Latin1_General_BIN2 NULL,
        CodeKey nvarchar(400) COLLATE Latin1_General_BIN2 NULL,
        DeleteRequested bit NOT NULL CONSTRAINT Jobs_DeleteRequested DEFAULT 0,
        Version bigint NOT NULL CONSTRAINT Jobs_Version DEFAULT 1,
        CreatedAt datetime2(6) NOT NULL CONSTRAINT Jobs_CreatedAt DEFAULT SYSUTCDATETIME(),
        UpdatedAt datetime2(6) NOT NULL CONSTRAINT Jobs_UpdatedAt DEFAULT SYSUTCDATETIME(),
        DueAt AS COALESCE(RetryAt, NextRunTime) PERSISTED,
        CONSTRAINT Jobs_Seq UNIQUE CLUSTERED (Seq),
        CONSTRAINT Jobs_Key PRIMARY KEY NONCLUSTERED (Id),
        CONSTRAINT Jobs_Name UNIQUE NONCLUSTERED (Namespace, JobName),
        CONSTRAINT Jobs_StartAtInRange CHECK (StartAt >= '0002-01-01' AND StartAt < '9999-01-01'),
        CONSTRAINT Jobs_NextRunTimeInRange CHECK (NextRunTime >= '0002-01-01' AND NextRunTime < '9999-01-01'),
        CONSTRAINT Jobs_LastRunTimeInRange CHECK (LastRunTime >= '0002-01-01' AND LastRunTime < '9999-01-01'),
        CONSTRAINT Jobs_RetryAtInRange CHECK (RetryAt >= '0002-01-01' AND RetryAt < '9999-01-01')
    );
GO

-- The included columns are those of the filter, so that the optimizer need not look at the row to know them again,
-- and the one that decides whether a beat can build the job.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.Jobs') AND name = N'Jobs_Due')
    CREATE NONCLUSTERED INDEX Jobs_Due ON dbo.Jobs (Namespace, DueAt)
    INCLUDE (Enabled, LockedBy, Quarantine, CodeKey)
    WHERE Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL;
GO

-- No instant is in this index, so a heartbeat does not touch it.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.Jobs') AND name = N'Jobs_Leased')
    CREATE NONCLUSTERED INDEX Jobs_Leased ON dbo.Jobs (Namespace)
    INCLUDE (LockedBy)
    WHERE LockedBy IS NOT NULL;
GO

-- The entries of one beat_schedule.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.Jobs') AND name = N'Jobs_Code')
    CREATE NONCLUSTERED INDEX Jobs_Code ON dbo.Jobs (Namespace, CodeOwner)
    WHERE CodeOwner IS NOT NULL;
GO

-- Rows to look at again, to delete or to fill in; nearly empty. A filter takes no OR, so there are three.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.Jobs') AND name = N'Jobs_Quarantined')
    CREATE NONCLUSTERED INDEX Jobs_Quarantined ON dbo.Jobs (Namespace, Id)
    WHERE Quarantine IS NOT NULL;
GO

IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.Jobs') AND name = N'Jobs_ToDelete')
    CREATE NONCLUSTERED INDEX Jobs_ToDelete ON dbo.Jobs (Namespace, Id)
    WHERE DeleteRequested = 1;
GO

IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.Jobs') AND name = N'Jobs_Unplanned')
    CREATE NONCLUSTERED INDEX Jobs_Unplanned ON dbo.Jobs (Namespace, Id)
    INCLUDE (Enabled, NextRunTime, RetryAt)
    WHERE Enabled = 1 AND NextRunTime IS NULL AND RetryAt IS NULL;
GO

IF OBJECT_ID(N'dbo.JobRuns', N'U') IS NULL
    CREATE TABLE dbo.JobRuns (
        Seq bigint IDENTITY (1, 1) NOT NULL,
        RunId uniqueidentifier NOT NULL,
        Namespace nvarchar(100) COLLATE Latin1_General_BIN2 NOT NULL,
        JobId uniqueidentifier NOT NULL,
        JobName nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL,
        Kind varchar(20) NOT NULL,
        ScheduledFor datetime2(6) NOT NULL,
        -- A gap of skipped slots is one row: its first slot above, its last one and their number here.
        LastSlot datetime2(6) NULL,
        SlotCount bigint NOT NULL CONSTRAINT JobRuns_SlotCount DEFAULT 1,
        Attempt int NOT NULL,
        State varchar(20) NOT NULL,
        PriorState varchar(20) NOT NULL CONSTRAINT JobRuns_PriorState DEFAULT 'new',
        Reason nvarchar(400) NULL,
        Fence bigint NOT NULL,
        ClaimId uniqueidentifier NULL,
        ClaimedBy nvarchar(200) NULL,
        ClaimedAt datetime2(6) NULL,
        PublishedAt datetime2(6) NULL,
        StartedBy nvarchar(200) NULL,
        StartId uniqueidentifier NULL,
        StartedAt datetime2(6) NULL,
        StartedRetry int NULL,
        FinishedAt datetime2(6) NULL,
        PlannedAt datetime2(6) NULL,
        DelaySeconds float(53) NULL,
        SeenNextRunTime datetime2(6) NULL,
        LeaseSeconds float(53) NOT NULL CONSTRAINT JobRuns_LeaseSeconds DEFAULT 0,
        MaxRetries int NOT NULL CONSTRAINT JobRuns_MaxRetries DEFAULT 0,
        Failures int NOT NULL CONSTRAINT JobRuns_Failures DEFAULT 0,
        LostLeases int NOT NULL CONSTRAINT JobRuns_LostLeases DEFAULT 0,
        Exclusive bit NOT NULL CONSTRAINT JobRuns_Exclusive DEFAULT 1,
        Advances bit NOT NULL CONSTRAINT JobRuns_Advances DEFAULT 0,
        -- The outbox: when beat must take this attempt up.
        DueAt datetime2(6) NULL,
        -- The lease of a run that overlaps others and so has none on its job.
        HeldBy nvarchar(200) NULL,
        LeaseEndsAt datetime2(6) NULL,
        Error nvarchar(max) NULL,
        Traceback nvarchar(max) NULL,
        CreatedAt datetime2(6) NOT NULL,
        CONSTRAINT JobRuns_Seq UNIQUE CLUSTERED (Seq),
        CONSTRAINT JobRuns_Key PRIMARY KEY NONCLUSTERED (RunId),
        -- The legal ways into each state; the same table as in lifecycle.py, the most frequent first.
        CONSTRAINT JobRuns_Transitions CHECK (
            (State = 'running' AND PriorState IN ('claimed', 'dispatched'))
            OR (State = 'success' AND PriorState IN ('running', 'dispatched'))
            OR (State = 'claimed' AND PriorState IN ('scheduled'))
            OR (State = 'dispatched' AND PriorState IN ('claimed'))
            OR (State = 'scheduled' AND PriorState IN ('new', 'claimed', 'running', 'failed', 'retry', 'dlq'))
            OR (State = 'retry' AND PriorState IN ('running', 'failed'))
            OR (State = 'failed' AND PriorState IN ('running', 'dispatched'))
            OR (State = 'dlq' AND PriorState IN ('failed'))
            OR (State = 'skipped' AND PriorState IN ('scheduled', 'claimed', 'running', 'retry', 'failed'))
            OR (State = 'cancelled' AND PriorState IN ('scheduled', 'claimed', 'running', 'retry', 'failed'))
        )
    );
GO

-- The instant comes first, so that the runs of one moment lie together and a claim writes few pages.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.JobRuns') AND name = N'JobRuns_Slot')
    CREATE UNIQUE NONCLUSTERED INDEX JobRuns_Slot ON dbo.JobRuns (ScheduledFor, JobId, Kind, Attempt);
GO

IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.JobRuns') AND name = N'JobRuns_Outbox')
    CREATE NONCLUSTERED INDEX JobRuns_Outbox ON dbo.JobRuns (Namespace, DueAt)
    INCLUDE (JobId)
    WHERE DueAt IS NOT NULL;
GO

IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.JobRuns') AND name = N'JobRuns_Held')
    CREATE NONCLUSTERED INDEX JobRuns_Held ON dbo.JobRuns (Namespace)
    INCLUDE (HeldBy)
    WHERE HeldBy IS NOT NULL;
GO

IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.JobRuns') AND name = N'JobRuns_Dead')
    CREATE NONCLUSTERED INDEX JobRuns_Dead ON dbo.JobRuns (Namespace, RunId)
    WHERE State = 'dlq';
GO

IF OBJECT_ID(N'dbo.Nodes', N'U') IS NULL
    CREATE TABLE dbo.Nodes (
        NodeId nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL,
        Namespace nvarchar(100) COLLATE Latin1_General_BIN2 NOT NULL,
        Kind varchar(20) NOT NULL,
        Host nvarchar(255) NOT NULL,
        Pid int NOT NULL,
        PackageVersion nvarchar(50) NOT NULL,
        CodeOwner nvarchar(200) COLLATE Latin1_General_BIN2 NULL,
        CodeRelease nvarchar(200) COLLATE Latin1_General_BIN2 NULL,
        Queues nvarchar(max) NULL,
        BrokerFingerprint nvarchar(200) NULL,
        SkewSeconds float(53) NULL,
        Claimed bigint NOT NULL CONSTRAINT Nodes_Claimed DEFAULT 0,
        StartedAt datetime2(6) NOT NULL,
        HeartbeatAt datetime2(6) NOT NULL,
        StoppedAt datetime2(6) NULL,
        CONSTRAINT Nodes_Key PRIMARY KEY CLUSTERED (Namespace, NodeId),
        CONSTRAINT Nodes_KnownKind CHECK (Kind IN ('beat', 'worker'))
    );
GO

-- Which beat_schedule was seen when, and which of them was imported last.
IF OBJECT_ID(N'dbo.Releases', N'U') IS NULL
    CREATE TABLE dbo.Releases (
        Seq bigint IDENTITY (1, 1) NOT NULL,
        Namespace nvarchar(100) COLLATE Latin1_General_BIN2 NOT NULL,
        CodeOwner nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL,
        CodeRelease nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL,
        FirstSeenAt datetime2(6) NOT NULL,
        ImportedAt datetime2(6) NULL,
        CONSTRAINT Releases_Seq UNIQUE CLUSTERED (Seq),
        CONSTRAINT Releases_Key PRIMARY KEY NONCLUSTERED (Namespace, CodeOwner, CodeRelease)
    );
GO

IF OBJECT_ID(N'dbo.Changes', N'U') IS NULL
    CREATE TABLE dbo.Changes (
        Namespace nvarchar(100) COLLATE Latin1_General_BIN2 NOT NULL,
        Counter bigint NOT NULL,
        CONSTRAINT Changes_Key PRIMARY KEY CLUSTERED (Namespace)
    );
GO

DECLARE @now datetime2(6) = SYSUTCDATETIME();

INSERT INTO dbo.SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 1, 'schema', '0a00bdba07bb1d4e3f2cd5d560c39da3a6fc6405f8083b85efde71d6c5e609f2', @now
WHERE NOT EXISTS (SELECT 1 FROM dbo.SchemaMigrations WHERE Number = 1);
GO

-- What shops need that run plain workers, several apps and several releases beside each other.
-- May be run again: what is there already stays as it is.

-- A worker: the names of the tasks that it knows, a JSON list. Beats and workers: what else others should know of
-- them, a JSON object with a key for each concern.
IF COL_LENGTH(N'dbo.Nodes', N'Tasks') IS NULL
    ALTER TABLE dbo.Nodes ADD Tasks nvarchar(max) NULL;
GO

IF COL_LENGTH(N'dbo.Nodes', N'Details') IS NULL
    ALTER TABLE dbo.Nodes ADD Details nvarchar(max) NULL;
GO

-- The names of the entries of this beat_schedule, a JSON list.
IF COL_LENGTH(N'dbo.Releases', N'Entries') IS NULL
    ALTER TABLE dbo.Releases ADD Entries nvarchar(max) NULL;
GO

-- No fence of a name that DeletedJobs has forgotten is above this one.
IF COL_LENGTH(N'dbo.Changes', N'FenceFloor') IS NULL
    ALTER TABLE dbo.Changes ADD FenceFloor bigint NOT NULL CONSTRAINT Changes_FenceFloor DEFAULT 0;
GO

-- The oldest release of this package that may work on this schema; each migration sets it.
IF COL_LENGTH(N'dbo.StoreInfo', N'OldestRelease') IS NULL
    ALTER TABLE dbo.StoreInfo ADD OldestRelease nvarchar(50) NULL;
GO

UPDATE dbo.StoreInfo SET OldestRelease = N'0.1.0';
GO

-- A claim may fail for good, and a run that was fired and forgotten may be skipped or cancelled before it starts. The new
-- rule is wider than the old one, so that the rows which are there need no scan.
IF OBJECT_ID(N'dbo.JobRuns_Transitions', N'C') IS NOT NULL
    ALTER TABLE dbo.JobRuns DROP CONSTRAINT JobRuns_Transitions;
GO

ALTER TABLE dbo.JobRuns WITH NOCHECK ADD CONSTRAINT JobRuns_Transitions CHECK (
    (State = 'running' AND PriorState IN ('claimed', 'dispatched'))
    OR (State = 'success' AND PriorState IN ('running', 'dispatched'))
    OR (State = 'claimed' AND PriorState IN ('scheduled'))
    OR (State = 'dispatched' AND PriorState IN ('claimed'))
    OR (State = 'scheduled' AND PriorState IN ('new', 'claimed', 'running', 'failed', 'retry', 'dlq'))
    OR (State = 'retry' AND PriorState IN ('running', 'failed'))
    OR (State = 'failed' AND PriorState IN ('claimed', 'running', 'dispatched'))
    OR (State = 'dlq' AND PriorState IN ('failed'))
    OR (State = 'skipped' AND PriorState IN ('scheduled', 'claimed', 'dispatched', 'running', 'retry', 'failed'))
    OR (State = 'cancelled' AND PriorState IN ('scheduled', 'claimed', 'dispatched', 'running', 'retry', 'failed'))
);
GO

-- When the last run that had begun let go of the job: slots that came due until then came due while it ran.
IF COL_LENGTH(N'dbo.Jobs', N'RanUntil') IS NULL
    ALTER TABLE dbo.Jobs ADD RanUntil datetime2(6) NULL;
GO

-- When the run that holds the job is to make room for the next slot (overlap = replace).
IF COL_LENGTH(N'dbo.Jobs', N'ReplaceAt') IS NULL
    ALTER TABLE dbo.Jobs ADD ReplaceAt datetime2(6) NULL;
GO

-- How many runs of its job may go on beside each other, this one among them (overlap = allow).
IF COL_LENGTH(N'dbo.JobRuns', N'MaxParallel') IS NULL
    ALTER TABLE dbo.JobRuns ADD MaxParallel int NULL;
GO

-- How long the body of the run may take; NULL: for as long as it likes.
IF COL_LENGTH(N'dbo.JobRuns', N'MaxRuntimeSeconds') IS NULL
    ALTER TABLE dbo.JobRuns ADD MaxRuntimeSeconds float(53) NULL;
GO

-- The check-in that a monitor has opened for the slot, JSON: later messages of the slot carry it on.
IF COL_LENGTH(N'dbo.JobRuns', N'CheckIn') IS NULL
    ALTER TABLE dbo.JobRuns ADD CheckIn nvarchar(max) NULL;
GO

-- When the results of the slot's earlier attempts were ended in Celery's result backend.
IF COL_LENGTH(N'dbo.JobRuns', N'ResultsEndedAt') IS NULL
    ALTER TABLE dbo.JobRuns ADD ResultsEndedAt datetime2(6) NULL;
GO

-- Few: attempts that follow another one, until the results of those before are ended.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.JobRuns') AND name = N'JobRuns_Results')
    CREATE NONCLUSTERED INDEX JobRuns_Results ON dbo.JobRuns (Namespace)
    WHERE Attempt > 1 AND ResultsEndedAt IS NULL;
GO

IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.JobRuns') AND name = N'JobRuns_Beside')
    CREATE NONCLUSTERED INDEX JobRuns_Beside ON dbo.JobRuns (JobId, State)
    INCLUDE (MaxParallel)
    WHERE MaxParallel IS NOT NULL;
GO

-- The last fence of each job that was deleted: whoever checks fences by the name of a job must never see one again,
-- whoever deletes and adds the row. What is old is gathered in FenceFloor. DeletedAt is set by clean-up.
IF OBJECT_ID(N'dbo.DeletedJobs', N'U') IS NULL
    CREATE TABLE dbo.DeletedJobs (
        Namespace nvarchar(100) COLLATE Latin1_General_BIN2 NOT NULL,
        JobName nvarchar(200) COLLATE Latin1_General_BIN2 NOT NULL,
        Fence bigint NOT NULL,
        DeletedAt datetime2(6) NULL,
        CONSTRAINT DeletedJobs_Key PRIMARY KEY CLUSTERED (Namespace, JobName)
    );
GO

-- By way of sp_executesql, since CREATE TRIGGER must be a batch of its own and this script may be run again. A trigger on
-- these two alone costs claims and heartbeats nothing: they insert and delete no job.
IF OBJECT_ID(N'dbo.Jobs_Deleted', N'TR') IS NULL
    EXEC sys.sp_executesql N'
CREATE TRIGGER dbo.Jobs_Deleted ON dbo.Jobs AFTER DELETE AS
BEGIN
    SET NOCOUNT ON;

    IF NOT EXISTS (SELECT 1 FROM deleted AS g WHERE g.Fence > 0)
        RETURN;

    UPDATE d
    SET Fence = CASE WHEN g.Fence > d.Fence THEN g.Fence ELSE d.Fence END, DeletedAt = NULL
    FROM deleted AS g
    INNER JOIN dbo.DeletedJobs AS d WITH (ROWLOCK, UPDLOCK)
        ON d.Namespace = g.Namespace AND d.JobName = g.JobName
    WHERE g.Fence > 0;

    INSERT INTO dbo.DeletedJobs (Namespace, JobName, Fence)
    SELECT g.Namespace, g.JobName, g.Fence
    FROM deleted AS g
    WHERE
        g.Fence > 0
        AND NOT EXISTS (
            SELECT 1 FROM dbo.DeletedJobs AS d WITH (UPDLOCK, HOLDLOCK)
            WHERE d.Namespace = g.Namespace AND d.JobName = g.JobName
        );
END;';
GO

-- A new row goes on from the last fence of its name; 1000000000 is the step of an epoch.
IF OBJECT_ID(N'dbo.Jobs_Added', N'TR') IS NULL
    EXEC sys.sp_executesql N'
CREATE TRIGGER dbo.Jobs_Added ON dbo.Jobs AFTER INSERT AS
BEGIN
    SET NOCOUNT ON;

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
    WHERE j.Fence < f.Lowest;
END;';
GO

-- Where the role of grants.sql is there already, it gets what clean-up needs; triggers write by the right of their owner.
IF DATABASE_PRINCIPAL_ID(N'sqlbeat_runner') IS NOT NULL
    GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.DeletedJobs TO sqlbeat_runner;
GO

DECLARE @now datetime2(6) = SYSUTCDATETIME();

INSERT INTO dbo.SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 2, 'foreign_shops', '8391d88f49422b425ca194b66afcea1aac338cd8d3ff6643f6ff6d6838cb7d0c', @now
WHERE NOT EXISTS (SELECT 1 FROM dbo.SchemaMigrations WHERE Number = 2);
GO

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

DECLARE @now datetime2(6) = SYSUTCDATETIME();

INSERT INTO dbo.SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 3, 'locks', '153458c203ca123c8033c0924c68b977a3aecc3cd689f27743513bcc183baea9', @now
WHERE NOT EXISTS (SELECT 1 FROM dbo.SchemaMigrations WHERE Number = 3);
GO

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

DECLARE @now datetime2(6) = SYSUTCDATETIME();

INSERT INTO dbo.SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 4, 'one_offs', '441a8eafbc3e5766663c5bd468dc46ada31fc6b047734fc7db1dff7a2a3ddff0', @now
WHERE NOT EXISTS (SELECT 1 FROM dbo.SchemaMigrations WHERE Number = 4);
GO

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

DECLARE @now datetime2(6) = SYSUTCDATETIME();

INSERT INTO dbo.SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 5, 'effects', '676e32d5358fde56e47b4188734b2fa1b6472ca3035f94e1b2a5fc3292b51aa8', @now
WHERE NOT EXISTS (SELECT 1 FROM dbo.SchemaMigrations WHERE Number = 5);
GO
