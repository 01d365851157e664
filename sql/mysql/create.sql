-- All tables and indexes of celery-sqlbeat: what `celery -A app sqlbeat init` runs, and `--sql` prints.

CREATE TABLE IF NOT EXISTS SchemaMigrations (
    Number integer PRIMARY KEY,
    Name varchar(100) NOT NULL,
    Checksum char(64) NOT NULL,
    AppliedAt datetime(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- The tables of celery-sqlbeat on MySQL and MariaDB. Instants are UTC, whatever the time zone of the session.
--
-- There are no partial indexes: what another database filters by is here a generated column, the same for all rows that
-- nobody looks for. Each of these columns follows others by itself; nobody writes to it.
-- DDL commits as it runs, so each statement may be run again where a migration was interrupted.

CREATE TABLE IF NOT EXISTS StoreInfo (
    OnlyRow smallint PRIMARY KEY CHECK (OnlyRow = 1),
    StoreId char(36) NOT NULL,
    Epoch bigint NOT NULL DEFAULT 0,
    CreatedAt datetime(6) NOT NULL,
    -- The oldest release of this package that may work on this schema; each migration sets it.
    OldestRelease varchar(50)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

INSERT INTO StoreInfo (OnlyRow, StoreId, CreatedAt, OldestRelease)
SELECT 1, uuid(), utc_timestamp(6), '0.1.0' FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM StoreInfo);

CREATE TABLE IF NOT EXISTS Jobs (
    Id char(36) NOT NULL DEFAULT (uuid()) PRIMARY KEY,
    Namespace varchar(100) NOT NULL DEFAULT 'default',
    JobName varchar(200) NOT NULL,
    TaskName varchar(200),
    Schedule varchar(1000),
    IntervalMinutes integer DEFAULT 10,
    TimeZone varchar(100),
    Args mediumtext,
    Kwargs mediumtext,
    Options mediumtext,
    Policies mediumtext,
    Enabled smallint NOT NULL DEFAULT 1 CHECK (Enabled IN (0, 1)),
    DisabledReason varchar(400),
    StartAt datetime(6) CHECK (StartAt >= '0002-01-01' AND StartAt < '9999-01-01'),
    NextRunTime datetime(6) CHECK (NextRunTime >= '0002-01-01' AND NextRunTime < '9999-01-01'),
    LastRunTime datetime(6) CHECK (LastRunTime >= '0002-01-01' AND LastRunTime < '9999-01-01'),
    LockTimeoutMinutes integer,
    -- The slot that waits for another attempt.
    RetryAt datetime(6) CHECK (RetryAt >= '0002-01-01' AND RetryAt < '9999-01-01'),
    RetryRunId char(36),
    -- The claim and the lease. LockedBy IS NULL alone means unlocked.
    LockedBy varchar(200),
    LockedAt datetime(6),
    LeaseEndsAt datetime(6),
    ClaimedAt datetime(6),
    PublishedAt datetime(6),
    PlannedAt datetime(6),
    Fence bigint NOT NULL DEFAULT 0,
    RunId char(36),
    ClaimId char(36),
    StartedRetry integer,
    Republishes integer NOT NULL DEFAULT 0,
    -- Why the row cannot run as it was written.
    Quarantine varchar(1000),
    -- Entries of a beat_schedule: who defined them, and what only that code can build.
    CodeOwner varchar(200),
    CodeRelease varchar(200),
    CodeKey varchar(400),
    DeleteRequested smallint NOT NULL DEFAULT 0 CHECK (DeleteRequested IN (0, 1)),
    Version bigint NOT NULL DEFAULT 1,
    CreatedAt datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    UpdatedAt datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    -- When the last run that had begun let go of the job: slots that came due until then came due while it ran.
    RanUntil datetime(6),
    -- When the run that holds the job is to make room for the next slot (overlap = replace).
    ReplaceAt datetime(6),
    -- When a beat may claim the job; NULL where none may.
    ClaimableAt datetime(6) GENERATED ALWAYS AS (
        CASE WHEN Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL THEN coalesce(RetryAt, NextRunTime) END
    ) STORED,
    Leased smallint GENERATED ALWAYS AS (CASE WHEN LockedBy IS NULL THEN 0 ELSE 1 END) STORED,
    -- Rows to fill in, to look at again or to delete; nearly none.
    NeedsAttention smallint GENERATED ALWAYS AS (
        CASE
            WHEN
                Quarantine IS NOT NULL OR DeleteRequested = 1
                OR (Enabled = 1 AND NextRunTime IS NULL AND RetryAt IS NULL)
                THEN 1
            ELSE 0
        END
    ) STORED,
    CONSTRAINT Jobs_Name UNIQUE (Namespace, JobName),
    INDEX Jobs_Due (Namespace, ClaimableAt),
    -- No instant is in this index, so a heartbeat does not touch it.
    INDEX Jobs_Leased (Namespace, Leased),
    -- The entries of one beat_schedule.
    INDEX Jobs_Code (Namespace, CodeOwner),
    INDEX Jobs_Attention (Namespace, NeedsAttention, Id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS JobRuns (
    RunId char(36) NOT NULL PRIMARY KEY,
    Namespace varchar(100) NOT NULL,
    JobId char(36) NOT NULL,
    JobName varchar(200) NOT NULL,
    Kind varchar(20) NOT NULL,
    ScheduledFor datetime(6) NOT NULL,
    -- A gap of skipped slots is one row: its first slot above, its last one and their number here.
    LastSlot datetime(6),
    SlotCount bigint NOT NULL DEFAULT 1,
    Attempt integer NOT NULL,
    State varchar(20) NOT NULL,
    PriorState varchar(20) NOT NULL DEFAULT 'new',
    Reason varchar(400),
    Fence bigint NOT NULL,
    ClaimId char(36),
    ClaimedBy varchar(200),
    ClaimedAt datetime(6),
    PublishedAt datetime(6),
    StartedBy varchar(200),
    StartId char(36),
    StartedAt datetime(6),
    StartedRetry integer,
    FinishedAt datetime(6),
    PlannedAt datetime(6),
    DelaySeconds double,
    SeenNextRunTime datetime(6),
    LeaseSeconds double NOT NULL DEFAULT 0,
    MaxRetries integer NOT NULL DEFAULT 0,
    Failures integer NOT NULL DEFAULT 0,
    LostLeases integer NOT NULL DEFAULT 0,
    Exclusive smallint NOT NULL DEFAULT 1 CHECK (Exclusive IN (0, 1)),
    Advances smallint NOT NULL DEFAULT 0 CHECK (Advances IN (0, 1)),
    -- The outbox: when beat must take this attempt up.
    DueAt datetime(6),
    -- The lease of a run that overlaps others and so has none on its job.
    HeldBy varchar(200),
    LeaseEndsAt datetime(6),
    Error mediumtext,
    Traceback mediumtext,
    CreatedAt datetime(6) NOT NULL,
    -- How many runs of its job may go on beside each other, this one among them (overlap = allow).
    MaxParallel integer,
    -- How long the body of the run may take; NULL: for as long as it likes.
    MaxRuntimeSeconds double,
    -- The check-in that a monitor has opened for the slot, JSON: later messages of the slot carry it on.
    CheckIn mediumtext,
    -- When the results of the slot's earlier attempts were ended in Celery's result backend.
    ResultsEndedAt datetime(6),
    Dead smallint GENERATED ALWAYS AS (CASE WHEN State = 'dlq' THEN 1 ELSE 0 END) STORED,
    -- Attempts that follow another one, until the results of those before are ended.
    IsUnended smallint GENERATED ALWAYS AS (CASE WHEN Attempt > 1 AND ResultsEndedAt IS NULL THEN 1 ELSE 0 END) STORED,
    -- The state of a run that may overlap others.
    StateBeside varchar(20) GENERATED ALWAYS AS (CASE WHEN MaxParallel IS NOT NULL THEN State END) STORED,
    -- The instant comes first, so that the runs of one moment lie together and a claim writes few pages.
    CONSTRAINT JobRuns_Slot UNIQUE (ScheduledFor, JobId, Kind, Attempt),
    INDEX JobRuns_Outbox (Namespace, DueAt),
    INDEX JobRuns_Held (Namespace, HeldBy),
    INDEX JobRuns_Dead (Namespace, Dead, RunId),
    INDEX JobRuns_Results (Namespace, IsUnended),
    INDEX JobRuns_Beside (JobId, StateBeside),
    -- The legal ways into each state; the same table as in lifecycle.py, the most frequent first.
    CONSTRAINT JobRuns_Transitions CHECK (
        (State = 'running' AND PriorState IN ('claimed', 'dispatched'))
        OR (State = 'success' AND PriorState IN ('running', 'dispatched'))
        OR (State = 'claimed' AND PriorState IN ('scheduled'))
        OR (State = 'dispatched' AND PriorState IN ('claimed'))
        OR (State = 'scheduled' AND PriorState IN ('new', 'claimed', 'running', 'failed', 'retry', 'dlq'))
        OR (State = 'retry' AND PriorState IN ('running', 'failed'))
        OR (State = 'failed' AND PriorState IN ('claimed', 'running', 'dispatched'))
        OR (State = 'dlq' AND PriorState IN ('failed'))
        OR (State = 'skipped' AND PriorState IN ('scheduled', 'claimed', 'dispatched', 'running', 'retry', 'failed'))
        OR (State = 'cancelled' AND PriorState IN ('scheduled', 'claimed', 'dispatched', 'running', 'retry', 'failed'))
    )
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS Nodes (
    NodeId varchar(200) NOT NULL,
    Namespace varchar(100) NOT NULL,
    Kind varchar(10) NOT NULL CHECK (Kind IN ('beat', 'worker')),
    Host varchar(255) NOT NULL,
    Pid integer NOT NULL,
    PackageVersion varchar(50) NOT NULL,
    CodeOwner varchar(200),
    CodeRelease varchar(200),
    Queues mediumtext,
    BrokerFingerprint varchar(200),
    SkewSeconds double,
    Claimed bigint NOT NULL DEFAULT 0,
    StartedAt datetime(6) NOT NULL,
    HeartbeatAt datetime(6) NOT NULL,
    StoppedAt datetime(6),
    -- A worker: the names of the tasks that it knows, a JSON list. Beats and workers: what else others should know of
    -- them, a JSON object with a key for each concern.
    Tasks mediumtext,
    Details mediumtext,
    PRIMARY KEY (Namespace, NodeId)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- Which beat_schedule was seen when, and which of them was imported last. Entries: the names of its entries, JSON.
CREATE TABLE IF NOT EXISTS Releases (
    Namespace varchar(100) NOT NULL,
    CodeOwner varchar(200) NOT NULL,
    CodeRelease varchar(200) NOT NULL,
    FirstSeenAt datetime(6) NOT NULL,
    ImportedAt datetime(6),
    Entries mediumtext,
    PRIMARY KEY (Namespace, CodeOwner, CodeRelease)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- FenceFloor: no fence of a name that DeletedJobs has forgotten is above it.
CREATE TABLE IF NOT EXISTS Changes (
    Namespace varchar(100) NOT NULL PRIMARY KEY,
    Counter bigint NOT NULL,
    FenceFloor bigint NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 1, 'schema', 'ddeccf85a6f25fcab165434e6be87abcc08dde50530847d3f7a7723bf38e35a3', utc_timestamp(6) FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 1);

-- The last fence of each job that was deleted or renamed: whoever checks fences by the name of a job must never see
-- one again, whoever deletes and adds the row. What is old is gathered in FenceFloor. DeletedAt is set by clean-up.
CREATE TABLE IF NOT EXISTS DeletedJobs (
    Namespace varchar(100) NOT NULL,
    JobName varchar(200) NOT NULL,
    Fence bigint NOT NULL,
    DeletedAt datetime(6),
    PRIMARY KEY (Namespace, JobName)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- Triggers run with the rights of whoever runs this script. Each is one statement, so that no client needs a DELIMITER.
-- Where the binary log is on, MySQL lets only some users make them: see docs/mysql.md.
DROP TRIGGER IF EXISTS Jobs_Deleted;

CREATE TRIGGER Jobs_Deleted AFTER DELETE ON Jobs FOR EACH ROW
INSERT INTO DeletedJobs (Namespace, JobName, Fence)
SELECT OLD.Namespace, OLD.JobName, OLD.Fence FROM DUAL
WHERE OLD.Fence > 0
ON DUPLICATE KEY UPDATE Fence = greatest(DeletedJobs.Fence, OLD.Fence), DeletedAt = NULL;

-- A new row goes on from the last fence of its name; 1000000000 is the step of an epoch. A row that is added beside one
-- that is just being deleted, or in its place (REPLACE), waits for that here.
DROP TRIGGER IF EXISTS Jobs_Added;

CREATE TRIGGER Jobs_Added BEFORE INSERT ON Jobs FOR EACH ROW
SET NEW.Fence = greatest(
    NEW.Fence,
    coalesce((SELECT j.Fence FROM Jobs AS j WHERE j.Namespace = NEW.Namespace AND j.JobName = NEW.JobName LOCK IN SHARE MODE), 0),
    coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName FOR UPDATE), 0),
    coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0),
    coalesce((SELECT s.Epoch * 1000000000 FROM StoreInfo AS s), 0)
);

-- Where a row of that name came and went in between, the new one is refused: a NULL that the column does not take.
DROP TRIGGER IF EXISTS Jobs_AddedLate;

CREATE TRIGGER Jobs_AddedLate AFTER INSERT ON Jobs FOR EACH ROW
INSERT INTO DeletedJobs (Namespace, JobName, Fence)
SELECT d.Namespace, d.JobName, NULL
FROM DeletedJobs AS d
WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName AND d.Fence > NEW.Fence;

DROP TRIGGER IF EXISTS Jobs_Renamed;

CREATE TRIGGER Jobs_Renamed BEFORE UPDATE ON Jobs FOR EACH ROW
SET NEW.Fence = CASE
    WHEN NEW.Namespace = OLD.Namespace AND NEW.JobName = OLD.JobName THEN NEW.Fence
    ELSE greatest(
        NEW.Fence,
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName FOR UPDATE), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0)
    )
END;

DROP TRIGGER IF EXISTS Jobs_LeftName;

CREATE TRIGGER Jobs_LeftName AFTER UPDATE ON Jobs FOR EACH ROW
INSERT INTO DeletedJobs (Namespace, JobName, Fence)
SELECT OLD.Namespace, OLD.JobName, OLD.Fence FROM DUAL
WHERE NEW.Namespace <> OLD.Namespace OR NEW.JobName <> OLD.JobName
ON DUPLICATE KEY UPDATE Fence = greatest(DeletedJobs.Fence, OLD.Fence), DeletedAt = NULL;

UPDATE StoreInfo SET OldestRelease = '0.1.0';

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 2, 'foreign_shops', 'e928379aad4373bbbf59b5024450c96b2fe8f8370b859e1ea2fd5d5cb91ddb22', utc_timestamp(6) FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 2);

-- Named locks. A row stays when its lock is free, since it has the fence that the next holder goes on from.
CREATE TABLE IF NOT EXISTS Locks (
    Namespace varchar(100) NOT NULL,
    LockKey varchar(255) NOT NULL,
    -- Whose it is or was: random, so that a lost answer can be asked for again.
    Token char(36) NOT NULL,
    Holder varchar(400) NOT NULL,
    Fence bigint NOT NULL,
    TakenAt datetime(6) NOT NULL,
    -- NULL while it is free.
    LeaseEndsAt datetime(6),
    PRIMARY KEY (Namespace, LockKey)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

UPDATE StoreInfo SET OldestRelease = '0.1.0';

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 3, 'locks', 'f483ecdcc359412497a1b9424de21a6ef4ffe480fd27cb26480b0f46a62441b6', utc_timestamp(6) FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 3);

-- One-offs: runs that somebody submits, without a job. What their leases are taken on is a row of Jobs with OneOff = 1,
-- which has the id of the run as its own and as its name. Its CodeKey is 'one_off', which keeps it from beats of releases
-- that do not know one-offs: to them it is of a schedule that only other code can build.
-- Jobs_Listed: the jobs by name, among however many one-offs. OneOffAt: when a beat may claim the one-off; what beats look
-- for while they are idle, since who submits one-offs counts no change.
-- MySQL knows no ADD COLUMN IF NOT EXISTS, and DDL commits as it runs: each table gets its columns at once, or has them.
SET @change = (
    SELECT
        CASE WHEN count(*) = 0 THEN
            'ALTER TABLE Jobs
                ADD COLUMN OneOff smallint NOT NULL DEFAULT 0 CHECK (OneOff IN (0, 1)),
                ADD COLUMN OneOffAt datetime(6) GENERATED ALWAYS AS (
                    CASE WHEN OneOff = 1 AND Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL THEN RetryAt END
                ) VIRTUAL,
                ADD INDEX Jobs_Listed (Namespace, OneOff, JobName),
                ADD INDEX Jobs_OneOffs (Namespace, OneOffAt)'
        ELSE 'DO 0' END
    FROM information_schema.columns AS c
    WHERE c.table_schema = database() AND c.table_name = 'Jobs' AND c.column_name = 'OneOff'
);

PREPARE change_jobs FROM @change;

EXECUTE change_jobs;

DEALLOCATE PREPARE change_jobs;

-- TaskName: of a one-off, which has no job that would name it. The others: who asked when and why that the run be cancelled.
SET @change = (
    SELECT
        CASE WHEN count(*) = 0 THEN
            'ALTER TABLE JobRuns
                ADD COLUMN TaskName varchar(200),
                ADD COLUMN CancelAt datetime(6),
                ADD COLUMN CancelBy varchar(200),
                ADD COLUMN CancelReason varchar(400)'
        ELSE 'DO 0' END
    FROM information_schema.columns AS c
    WHERE c.table_schema = database() AND c.table_name = 'JobRuns' AND c.column_name = 'CancelReason'
);

PREPARE change_runs FROM @change;

EXECUTE change_runs;

DEALLOCATE PREPARE change_runs;

-- Which run a key stands for, until it ends. Digest: of the task and its arguments.
CREATE TABLE IF NOT EXISTS IdempotencyKeys (
    Namespace varchar(100) NOT NULL,
    KeyText varchar(255) NOT NULL,
    RunId char(36) NOT NULL,
    TaskName varchar(200) NOT NULL,
    Digest varchar(64) NOT NULL,
    CreatedAt datetime(6) NOT NULL,
    ExpiresAt datetime(6) NOT NULL,
    PRIMARY KEY (Namespace, KeyText),
    INDEX IdempotencyKeys_Ended (ExpiresAt, Namespace)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- A one-off goes with its history, whoever deletes that.
DROP TRIGGER IF EXISTS JobRuns_Deleted;

CREATE TRIGGER JobRuns_Deleted AFTER DELETE ON JobRuns FOR EACH ROW
DELETE FROM Jobs WHERE OLD.Kind = 'one_off' AND Id = OLD.JobId AND OneOff = 1 AND LockedBy IS NULL;

-- As in 0002, but for one-offs: no later row has their name, so nobody needs to know their last fence.
DROP TRIGGER IF EXISTS Jobs_Deleted;

CREATE TRIGGER Jobs_Deleted AFTER DELETE ON Jobs FOR EACH ROW
INSERT INTO DeletedJobs (Namespace, JobName, Fence)
SELECT OLD.Namespace, OLD.JobName, OLD.Fence FROM DUAL
WHERE OLD.Fence > 0 AND OLD.OneOff = 0
ON DUPLICATE KEY UPDATE Fence = greatest(DeletedJobs.Fence, OLD.Fence), DeletedAt = NULL;

DROP TRIGGER IF EXISTS Jobs_Added;

CREATE TRIGGER Jobs_Added BEFORE INSERT ON Jobs FOR EACH ROW
SET NEW.Fence = CASE
    WHEN NEW.OneOff = 1 THEN NEW.Fence
    ELSE greatest(
        NEW.Fence,
        coalesce((SELECT j.Fence FROM Jobs AS j WHERE j.Namespace = NEW.Namespace AND j.JobName = NEW.JobName LOCK IN SHARE MODE), 0),
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName FOR UPDATE), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0),
        coalesce((SELECT s.Epoch * 1000000000 FROM StoreInfo AS s), 0)
    )
END;

DROP TRIGGER IF EXISTS Jobs_AddedLate;

CREATE TRIGGER Jobs_AddedLate AFTER INSERT ON Jobs FOR EACH ROW
INSERT INTO DeletedJobs (Namespace, JobName, Fence)
SELECT d.Namespace, d.JobName, NULL
FROM DeletedJobs AS d
WHERE NEW.OneOff = 0 AND d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName AND d.Fence > NEW.Fence;

DROP TRIGGER IF EXISTS Jobs_Renamed;

CREATE TRIGGER Jobs_Renamed BEFORE UPDATE ON Jobs FOR EACH ROW
SET NEW.Fence = CASE
    WHEN OLD.OneOff = 1 OR (NEW.Namespace = OLD.Namespace AND NEW.JobName = OLD.JobName) THEN NEW.Fence
    ELSE greatest(
        NEW.Fence,
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName FOR UPDATE), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0)
    )
END;

DROP TRIGGER IF EXISTS Jobs_LeftName;

CREATE TRIGGER Jobs_LeftName AFTER UPDATE ON Jobs FOR EACH ROW
INSERT INTO DeletedJobs (Namespace, JobName, Fence)
SELECT OLD.Namespace, OLD.JobName, OLD.Fence FROM DUAL
WHERE OLD.OneOff = 0 AND (NEW.Namespace <> OLD.Namespace OR NEW.JobName <> OLD.JobName)
ON DUPLICATE KEY UPDATE Fence = greatest(DeletedJobs.Fence, OLD.Fence), DeletedAt = NULL;

UPDATE StoreInfo SET OldestRelease = '0.1.0';

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 4, 'one_offs', '8dfff9e8d3e1804c7c0660a3f15e9faef594eafa089b66d7913efe0e90409360', utc_timestamp(6) FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 4);

-- Whether the effects of the run were committed in this database, with this mark (`current_run().transaction()`).
SET @change = (
    SELECT
        CASE WHEN count(*) = 0 THEN
            'ALTER TABLE JobRuns ADD COLUMN EffectsDone smallint NOT NULL DEFAULT 0 CHECK (EffectsDone IN (0, 1))'
        ELSE 'DO 0' END
    FROM information_schema.columns AS c
    WHERE c.table_schema = database() AND c.table_name = 'JobRuns' AND c.column_name = 'EffectsDone'
);

PREPARE change_runs FROM @change;

EXECUTE change_runs;

DEALLOCATE PREPARE change_runs;

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

UPDATE StoreInfo SET OldestRelease = '0.1.0';

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 5, 'effects', '03630c18b724dc349a7378bb3b9484c27b66c95454d809befb428ec60a0c44a0', utc_timestamp(6) FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 5);
