-- The database of docker-compose.yml, and the login of beats and workers. May be run again.
IF DB_ID(N'sqlbeat') IS NULL
    CREATE DATABASE sqlbeat;
GO

-- As on Azure SQL: whoever reads waits for nobody who writes.
IF EXISTS (SELECT 1 FROM sys.databases WHERE name = N'sqlbeat' AND is_read_committed_snapshot_on = 0)
    ALTER DATABASE sqlbeat SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE;
GO

IF SUSER_ID(N'sqlbeat') IS NULL
    CREATE LOGIN sqlbeat WITH PASSWORD = N'$(SQLBEAT_PASSWORD)', DEFAULT_DATABASE = sqlbeat;
GO
