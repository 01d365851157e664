-- Written by `make sql` from sql/source: change it there.
-- What the migrations need before any table of theirs is there.

-- name: create_migrations_table
IF OBJECT_ID(N'dbo.SchemaMigrations', N'U') IS NULL
    CREATE TABLE dbo.SchemaMigrations (
        Number int NOT NULL,
        Name nvarchar(200) NOT NULL,
        Checksum varchar(64) NOT NULL,
        AppliedAt datetime2(6) NOT NULL,
        CONSTRAINT SchemaMigrations_Key PRIMARY KEY CLUSTERED (Number)
    );

-- name: read_migrations_table
-- returns: Present int
-- Zero rows: nothing was ever created here.
SELECT 1 AS Present WHERE OBJECT_ID(N'dbo.SchemaMigrations', N'U') IS NOT NULL;

-- name: read_migrations
-- returns: Number int, Checksum text
SELECT Number, Checksum FROM dbo.SchemaMigrations ORDER BY Number;

-- name: note_migration
-- parameters: number int, name text(200), checksum word(64)
-- What is noted already stays as it is: the printed script holds this block, and may be run again.
DECLARE @number int = ?, @name nvarchar(200) = ?, @checksum varchar(64) = ?;
DECLARE @now datetime2(6) = SYSUTCDATETIME();

INSERT INTO dbo.SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT @number, @name, @checksum, @now
WHERE NOT EXISTS (SELECT 1 FROM dbo.SchemaMigrations WHERE Number = @number);

-- name: read_oldest_release
-- returns: OldestRelease text
-- Of a schema that is newer than this release, which names the oldest one that may work on it.
SELECT OldestRelease FROM dbo.StoreInfo;

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
