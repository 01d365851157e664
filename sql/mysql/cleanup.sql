-- Removes everything that celery-sqlbeat has created in this database: jobs and history. Stop beats and workers first.
-- May be run again.
DROP TABLE IF EXISTS Changes, Releases, Nodes, JobRuns, Jobs, DeletedJobs, Locks, IdempotencyKeys, SqlbeatGuard, StoreInfo, SchemaMigrations;

-- The role belongs to the whole server, and other databases may use it. When none does:
--
--   DROP ROLE sqlbeat_runner;
