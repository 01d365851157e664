-- Removes everything that celery-sqlbeat has created in this database: jobs, history and role. Stop beats and workers
-- first. May be run again.
SET NOCOUNT ON;
SET XACT_ABORT ON;
GO

DROP TABLE IF EXISTS dbo.Changes;
DROP TABLE IF EXISTS dbo.Releases;
DROP TABLE IF EXISTS dbo.Nodes;
DROP TABLE IF EXISTS dbo.JobRuns;
DROP TABLE IF EXISTS dbo.Jobs;
DROP TABLE IF EXISTS dbo.DeletedJobs;
DROP TABLE IF EXISTS dbo.Locks;
DROP TABLE IF EXISTS dbo.IdempotencyKeys;
DROP TABLE IF EXISTS dbo.SqlbeatGuard;
DROP TABLE IF EXISTS dbo.StoreInfo;
DROP TABLE IF EXISTS dbo.SchemaMigrations;
GO

-- A role can only go when nobody is in it.
DECLARE @leave nvarchar(max) = (
    SELECT STRING_AGG(CAST(N'ALTER ROLE sqlbeat_runner DROP MEMBER ' + QUOTENAME(m.name) AS nvarchar(max)), N'; ')
    FROM sys.database_role_members AS r
    INNER JOIN sys.database_principals AS m ON m.principal_id = r.member_principal_id
    WHERE r.role_principal_id = DATABASE_PRINCIPAL_ID(N'sqlbeat_runner')
);

IF @leave IS NOT NULL
    EXEC sys.sp_executesql @leave;

IF DATABASE_PRINCIPAL_ID(N'sqlbeat_runner') IS NOT NULL
    DROP ROLE sqlbeat_runner;
GO
