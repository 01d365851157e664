-- name: create_migrations_table
IF OBJECT_ID(N'dbo.SchemaMigrations', N'U') IS NULL
    CREATE TABLE SchemaMigrations (
        Number int NOT NULL,
        Name nvarchar(200) NOT NULL,
        Checksum varchar(64) NOT NULL,
        AppliedAt datetime2(6) NOT NULL,
        CONSTRAINT SchemaMigrations_Key PRIMARY KEY CLUSTERED (Number)
    );

-- name: read_migrations_table
SELECT 1 AS Present WHERE OBJECT_ID(N'dbo.SchemaMigrations', N'U') IS NOT NULL;

-- name: note_migration
INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT :number, :name, :checksum, :now
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = :number);

-- name: migration_lock
-- One migration at a time in this database; the lock ends with the transaction. A migration of large tables may take
-- long, and the others wait for it. sp_getapplock reports by its result, not by an error: below zero it is not ours.
DECLARE @result int;

EXEC @result = sp_getapplock
    @Resource = N'celery_sqlbeat migrations',
    @LockMode = N'Exclusive',
    @LockOwner = N'Transaction',
    @LockTimeout = 600000;

IF @result < 0
BEGIN
    THROW 51222, N'another migration of celery-sqlbeat did not end in time', 1;
END;
