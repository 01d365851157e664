-- The least that beats and workers need: to read and write rows, and nothing that changes the schema. `sqlbeat init`
-- and the other scripts here are for a user who may create tables. May be run again.
SET NOCOUNT ON;
SET XACT_ABORT ON;
GO

IF DATABASE_PRINCIPAL_ID(N'sqlbeat_runner') IS NULL
    CREATE ROLE sqlbeat_runner;
GO

GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.Jobs TO sqlbeat_runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.JobRuns TO sqlbeat_runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.Nodes TO sqlbeat_runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.Changes TO sqlbeat_runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.Releases TO sqlbeat_runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.DeletedJobs TO sqlbeat_runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.Locks TO sqlbeat_runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.IdempotencyKeys TO sqlbeat_runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON dbo.SqlbeatGuard TO sqlbeat_runner;
GRANT SELECT ON dbo.StoreInfo TO sqlbeat_runner;
GRANT SELECT ON dbo.SchemaMigrations TO sqlbeat_runner;
GO

-- Who runs with it: write the name between the quotes, or leave it empty and let somebody in later. On Azure it is a
-- managed identity, or a group that holds several of them, named as in Entra ID; only an Entra administrator of the server
-- may do this. On a server of one's own it is a login, such as N'SHOP\celery$'.
DECLARE @who sysname = N'';
DECLARE @login int;

-- Azure SQL Database (5, and 12 in Fabric) has no logins to ask for and no SUSER_ID: there it must not even be compiled.
IF CONVERT(int, SERVERPROPERTY('EngineEdition')) NOT IN (5, 12)
    EXEC sys.sp_executesql
        N'SET @login = SUSER_ID(@who);', N'@who sysname, @login int OUTPUT', @who = @who, @login = @login OUTPUT;

DECLARE @user nvarchar(1000) = N'CREATE USER ' + QUOTENAME(@who)
    + CASE WHEN @login IS NULL THEN N' FROM EXTERNAL PROVIDER' ELSE N' FOR LOGIN ' + QUOTENAME(@who) END;
DECLARE @member nvarchar(1000) = N'ALTER ROLE sqlbeat_runner ADD MEMBER ' + QUOTENAME(@who);

IF @who <> N'' AND DATABASE_PRINCIPAL_ID(@who) IS NULL
    EXEC sys.sp_executesql @user;

IF @who <> N''
    EXEC sys.sp_executesql @member;
GO
