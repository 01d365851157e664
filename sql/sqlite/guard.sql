-- What `current_run().transaction()` needs in a database of the shop: a row of its own for each slot whose effects were
-- done, and one for each job (its Slot is empty). Old rows go with later transactions, so the table stays small.
CREATE TABLE IF NOT EXISTS SqlbeatGuard (
    StoreId TEXT NOT NULL,
    Namespace TEXT NOT NULL,
    JobName TEXT NOT NULL,
    -- Its kind and its instant.
    Slot TEXT NOT NULL,
    -- The highest that has done something here.
    Fence INTEGER NOT NULL,
    -- By which the effects of the slot were done.
    Attempt INTEGER,
    TouchedAt TEXT NOT NULL,
    PRIMARY KEY (StoreId, Namespace, JobName, Slot)
);

CREATE INDEX IF NOT EXISTS SqlbeatGuard_Old ON SqlbeatGuard (TouchedAt);
