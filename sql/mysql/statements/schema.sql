-- Written by `make sql` from sql/source: change it there.
-- What the migrations need before any table of theirs is there.

-- name: create_migrations_table
CREATE TABLE IF NOT EXISTS SchemaMigrations (
    Number integer PRIMARY KEY,
    Name varchar(100) NOT NULL,
    Checksum char(64) NOT NULL,
    AppliedAt datetime(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- name: read_migrations_table
-- returns: Present int
-- Zero rows: nothing was ever created here.
SELECT 1 AS Present
FROM information_schema.tables
WHERE table_schema = database() AND lower(table_name) = 'schemamigrations';

-- name: read_migrations
-- returns: Number int, Checksum text
SELECT Number, Checksum FROM SchemaMigrations ORDER BY Number;

-- name: note_migration
-- parameters: number int, name text(200), checksum word(64)
-- What is noted already stays as it is: the printed script holds this block, and may be run again.
INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT %(number)s, %(name)s, %(checksum)s, utc_timestamp(6) FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = %(number)s);

-- name: read_oldest_release
-- returns: OldestRelease text
-- Of a schema that is newer than this release, which names the oldest one that may work on it.
SELECT OldestRelease FROM StoreInfo;

-- name: migration_lock
-- One migration at a time in this schema of this database; the lock ends with the transaction.
-- A migration of large tables may take long, and the others wait for it.
SELECT get_lock(concat('sqlbeat ', sha1(database())), 600) AS IsOurs;
