-- What `current_run().transaction()` needs in a database of the shop: a row of its own for each slot whose effects were
-- done, and one for each job (its Slot is empty). Old rows go with later transactions, so the table stays small.
CREATE TABLE IF NOT EXISTS SqlbeatGuard (
    StoreId char(36) NOT NULL,
    Namespace varchar(100) NOT NULL,
    JobName varchar(200) NOT NULL,
    -- Its kind and its instant.
    Slot varchar(60) NOT NULL,
    -- The highest that has done something here.
    Fence bigint NOT NULL,
    -- By which the effects of the slot were done.
    Attempt integer,
    TouchedAt datetime(6) NOT NULL,
    PRIMARY KEY (StoreId, Namespace, JobName, Slot),
    INDEX SqlbeatGuard_Old (TouchedAt)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
