-- Whether the effects of the run were committed in this database, with this mark (`current_run().transaction()`).
ALTER TABLE JobRuns ADD COLUMN EffectsDone smallint NOT NULL DEFAULT 0 CHECK (EffectsDone IN (0, 1));

-- What `current_run().transaction()` needs in a database of the shop: a row of its own for each slot whose effects were
-- done, and one for each job (its Slot is empty). Old rows go with later transactions, so the table stays small.
CREATE TABLE IF NOT EXISTS SqlbeatGuard (
    StoreId uuid NOT NULL,
    Namespace text NOT NULL,
    JobName text NOT NULL,
    -- Its kind and its instant.
    Slot text NOT NULL,
    -- The highest that has done something here.
    Fence bigint NOT NULL,
    -- By which the effects of the slot were done.
    Attempt integer,
    TouchedAt timestamptz NOT NULL,
    PRIMARY KEY (StoreId, Namespace, JobName, Slot)
) WITH (fillfactor = 80);

CREATE INDEX IF NOT EXISTS SqlbeatGuard_Old ON SqlbeatGuard (TouchedAt);

-- Where the role of grants.sql is there already, it may use the table.
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'sqlbeat_runner') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON SqlbeatGuard TO sqlbeat_runner;
    END IF;
END;
$$;

UPDATE StoreInfo SET OldestRelease = '0.1.0';
