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
