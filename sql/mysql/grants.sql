-- The least that beats and workers need: to read and write rows, and nothing that changes the schema. `sqlbeat init`
-- and the other scripts here are for a user who may create tables and triggers, and roles where this one is not there
-- yet. For the current database (USE shop). May be run again.
CREATE ROLE IF NOT EXISTS sqlbeat_runner;

GRANT SELECT, INSERT, UPDATE, DELETE ON Jobs TO sqlbeat_runner;

GRANT SELECT, INSERT, UPDATE, DELETE ON JobRuns TO sqlbeat_runner;

GRANT SELECT, INSERT, UPDATE, DELETE ON Nodes TO sqlbeat_runner;

GRANT SELECT, INSERT, UPDATE, DELETE ON Changes TO sqlbeat_runner;

GRANT SELECT, INSERT, UPDATE, DELETE ON Releases TO sqlbeat_runner;

GRANT SELECT, INSERT, UPDATE, DELETE ON DeletedJobs TO sqlbeat_runner;

GRANT SELECT, INSERT, UPDATE, DELETE ON Locks TO sqlbeat_runner;

GRANT SELECT, INSERT, UPDATE, DELETE ON IdempotencyKeys TO sqlbeat_runner;

GRANT SELECT, INSERT, UPDATE, DELETE ON SqlbeatGuard TO sqlbeat_runner;

GRANT SELECT ON StoreInfo TO sqlbeat_runner;

GRANT SELECT ON SchemaMigrations TO sqlbeat_runner;

-- Who runs with it, and has it as soon as he connects (MariaDB writes FOR in place of the last TO):
--
--   CREATE USER shop_beat IDENTIFIED BY '...';
--   GRANT sqlbeat_runner TO shop_beat;
--   SET DEFAULT ROLE sqlbeat_runner TO shop_beat;
