-- name: create_migrations_table
CREATE TABLE IF NOT EXISTS SchemaMigrations (
    Number integer PRIMARY KEY,
    Name text NOT NULL,
    Checksum text NOT NULL,
    AppliedAt timestamptz NOT NULL
);

-- name: read_migrations_table
SELECT 1 AS Present WHERE to_regclass('SchemaMigrations') IS NOT NULL;

-- name: note_migration
INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT :number, :name, :checksum, clock_timestamp()
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = :number);

-- name: migration_lock
-- One migration at a time in this schema of this database; the lock ends with the transaction.
-- A migration of large tables may take long, and the others wait for it.
SELECT
    set_config('statement_timeout', '0', true),
    set_config('lock_timeout', '600s', true),
    pg_advisory_xact_lock(hashtext('celery_sqlbeat migrations'), hashtext(current_schema()));
