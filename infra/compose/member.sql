-- The login of beats and workers gets the role that can run but not alter. After sql/mssql/grants.sql; may be run again.
IF DATABASE_PRINCIPAL_ID(N'sqlbeat') IS NULL
    CREATE USER sqlbeat FOR LOGIN sqlbeat;
GO

ALTER ROLE sqlbeat_runner ADD MEMBER sqlbeat;
GO
