-- Written by `make sql` from sql/source: change it there.
-- What the migrations need before any table of theirs is there.

-- name: create_migrations_table
CREATE TABLE IF NOT EXISTS SchemaMigrations (
    Number integer PRIMARY KEY,
    Name text NOT NULL,
    Checksum text NOT NULL,
    AppliedAt timestamptz NOT NULL
);

-- name: read_migrations_table
-- returns: Present int
-- Zero rows: nothing was ever created here.
SELECT 1 AS Present WHERE to_regclass('SchemaMigrations') IS NOT NULL;

-- name: read_migrations
-- returns: Number int, Checksum text
SELECT Number, Checksum FROM SchemaMigrations ORDER BY Number;

-- name: note_migration
-- parameters: $1 number int, $2 name text(200), $3 checksum word(64)
-- What is noted already stays as it is: the printed script holds this block, and may be run again.
INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT $1, $2, $3, clock_timestamp()
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = $1);

-- name: read_oldest_release
-- returns: OldestRelease text
-- Of a schema that is newer than this release, which names the oldest one that may work on it.
SELECT OldestRelease FROM StoreInfo;

-- name: migration_lock
-- One migration at a time in this schema of this database; the lock ends with the transaction.
-- A migration of large tables may take long, and the others wait for it.
SELECT
    set_config('statement_timeout', '0', true),
    set_config('lock_timeout', '600s', true),
    pg_advisory_xact_lock(hashtext('celery_sqlbeat migrations'), hashtext(current_schema()));
