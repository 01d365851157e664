-- The least that beats and workers need: to read and write rows, and nothing that changes the schema. `sqlbeat init`
-- and the other scripts here are for a user who may create tables, and roles where this one is not there yet.
-- May be run again.
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'sqlbeat_runner') THEN
        CREATE ROLE sqlbeat_runner NOLOGIN;
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO sqlbeat_runner', current_schema());
END;
$$;

GRANT SELECT, INSERT, UPDATE, DELETE ON Jobs, JobRuns, Nodes, Changes, Releases, DeletedJobs TO sqlbeat_runner;
GRANT SELECT, INSERT, UPDATE, DELETE ON Locks, IdempotencyKeys, SqlbeatGuard TO sqlbeat_runner;
GRANT SELECT ON StoreInfo, SchemaMigrations TO sqlbeat_runner;

-- Who runs with it:
--
--   CREATE ROLE shop_beat LOGIN;
--   GRANT sqlbeat_runner TO shop_beat;
