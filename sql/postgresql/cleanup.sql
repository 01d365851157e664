-- Removes everything that celery-sqlbeat has created in this schema: jobs and history. Stop beats and workers first.
-- May be run again.
DROP TABLE IF EXISTS Changes, Releases, Nodes, JobRuns, Jobs, DeletedJobs, Locks, IdempotencyKeys, SqlbeatGuard, StoreInfo, SchemaMigrations;

DROP FUNCTION IF EXISTS sqlbeat_jobs_deleted, sqlbeat_jobs_truncated, sqlbeat_jobs_added, sqlbeat_jobs_renamed,
sqlbeat_one_off_deleted;

DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'sqlbeat_runner') THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM sqlbeat_runner', current_schema());
    END IF;
END;
$$;

-- The role belongs to the whole server, and other databases may use it. When none does:
--
--   DROP ROLE sqlbeat_runner;
