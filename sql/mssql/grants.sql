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
GRANT SELECT ON dbo.StoreInfo TO sqlbeat_runner;
GRANT SELECT ON dbo.SchemaMigrations TO sqlbeat_runner;
GO

-- Who runs with it. On Azure a managed identity, or a group that holds several of them, named as in Entra ID:
--
--   CREATE USER [shop-beat-identity] FROM EXTERNAL PROVIDER;
--   ALTER ROLE sqlbeat_runner ADD MEMBER [shop-beat-identity];
--
-- On a server of one's own, a Windows account or a login:
--
--   CREATE USER [SHOP\celery$] FOR LOGIN [SHOP\celery$];
--   ALTER ROLE sqlbeat_runner ADD MEMBER [SHOP\celery$];
