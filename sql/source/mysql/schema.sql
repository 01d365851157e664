-- What the migrations need before any table of theirs is there.

-- name: migration_lock
-- One migration at a time in this schema of this database; the lock ends with the transaction.
-- A migration of large tables may take long, and the others wait for it.
SELECT get_lock(concat('sqlbeat ', sha1(database())), 600) AS IsOurs;

-- name: create_migrations_table
CREATE TABLE IF NOT EXISTS SchemaMigrations (
    Number integer PRIMARY KEY,
    Name varchar(100) NOT NULL,
    Checksum char(64) NOT NULL,
    AppliedAt datetime(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- name: read_migrations_table
SELECT 1 AS Present
FROM information_schema.tables
WHERE table_schema = database() AND lower(table_name) = 'schemamigrations';

-- name: note_migration
INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT :number, :name, :checksum, utc_timestamp(6) FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = :number);
