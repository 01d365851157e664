-- Removes everything that celery-sqlbeat has created in this file: jobs and history. Stop beats and workers first.
-- May be run again. A file that holds nothing else may as well be deleted, together with its -wal and -shm.
DROP TABLE IF EXISTS Changes;
DROP TABLE IF EXISTS Releases;
DROP TABLE IF EXISTS Nodes;
DROP TABLE IF EXISTS JobRuns;
DROP TABLE IF EXISTS Jobs;
DROP TABLE IF EXISTS DeletedJobs;
DROP TABLE IF EXISTS Locks;
DROP TABLE IF EXISTS IdempotencyKeys;
DROP TABLE IF EXISTS SqlbeatGuard;
DROP TABLE IF EXISTS StoreInfo;
DROP TABLE IF EXISTS SchemaMigrations;
