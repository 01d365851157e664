-- What the migrations need before any table of theirs is there.

-- name: create_migrations_table
CREATE TABLE IF NOT EXISTS SchemaMigrations (
    Number INTEGER NOT NULL PRIMARY KEY,
    Name TEXT NOT NULL,
    Checksum TEXT NOT NULL,
    AppliedAt TEXT NOT NULL
);

-- name: read_migrations_table
-- returns: Present
-- Zero rows: nothing was ever created here.
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'SchemaMigrations';

-- name: read_migrations
-- returns: Number, Checksum
SELECT Number, Checksum FROM SchemaMigrations ORDER BY Number;

-- name: note_migration
-- What is noted already stays as it is: the printed script holds this block, and may be run again.
INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT :number, :name, :checksum, strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = :number);

-- name: read_oldest_release
-- returns: OldestRelease
-- Of a schema that is newer than this release, which names the oldest one that may work on it.
SELECT OldestRelease FROM StoreInfo;
