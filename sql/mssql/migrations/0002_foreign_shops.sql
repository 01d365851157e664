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
