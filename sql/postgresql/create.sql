-- All tables and indexes of celery-sqlbeat: what `celery -A app sqlbeat init` runs, and `--sql` prints.

CREATE TABLE IF NOT EXISTS SchemaMigrations (
    Number integer PRIMARY KEY,
    Name text NOT NULL,
    Checksum text NOT NULL,
    AppliedAt timestamptz NOT NULL
);

-- The tables of celery-sqlbeat on PostgreSQL. Names are unquoted and so fold to lower case.
--
-- fillfactor: starts, heartbeats and marks change no indexed column; with room on the page they are
-- heap-only updates, which touch no index.

CREATE TABLE StoreInfo (
    OnlyRow smallint PRIMARY KEY CHECK (OnlyRow = 1),
    StoreId uuid NOT NULL,
    Epoch bigint NOT NULL DEFAULT 0,
    CreatedAt timestamptz NOT NULL
);

INSERT INTO StoreInfo (OnlyRow, StoreId, CreatedAt) VALUES (1, gen_random_uuid(), clock_timestamp());

CREATE TABLE Jobs (
    Id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    Namespace text NOT NULL DEFAULT 'default',
    JobName text NOT NULL,
    TaskName text,
    Schedule text,
    IntervalMinutes integer DEFAULT 10,
    TimeZone text,
    Args text,
    Kwargs text,
    Options text,
    Policies text,
    Enabled smallint NOT NULL DEFAULT 1 CHECK (Enabled IN (0, 1)),
    DisabledReason text,
    StartAt timestamptz CHECK (StartAt >= '0002-01-01 UTC' AND StartAt < '9999-01-01 UTC'),
    NextRunTime timestamptz CHECK (NextRunTime >= '0002-01-01 UTC' AND NextRunTime < '9999-01-01 UTC'),
    LastRunTime timestamptz CHECK (LastRunTime >= '0002-01-01 UTC' AND LastRunTime < '9999-01-01 UTC'),
    LockTimeoutMinutes integer,
    -- The slot that waits for another attempt.
    RetryAt timestamptz CHECK (RetryAt >= '0002-01-01 UTC' AND RetryAt < '9999-01-01 UTC'),
    RetryRunId uuid,
    -- The claim and the lease. LockedBy IS NULL alone means unlocked.
    LockedBy text,
    LockedAt timestamptz,
    LeaseEndsAt timestamptz,
    ClaimedAt timestamptz,
    PublishedAt timestamptz,
    PlannedAt timestamptz,
    Fence bigint NOT NULL DEFAULT 0,
    RunId uuid,
    ClaimId uuid,
    StartedRetry integer,
    Republishes integer NOT NULL DEFAULT 0,
    -- Why the row cannot run as it was written.
    Quarantine text,
    -- Entries of a beat_schedule: who defined them, and what only that code can build.
    CodeOwner text,
    CodeRelease text,
    CodeKey text,
    DeleteRequested smallint NOT NULL DEFAULT 0 CHECK (DeleteRequested IN (0, 1)),
    Version bigint NOT NULL DEFAULT 1,
    CreatedAt timestamptz NOT NULL DEFAULT clock_timestamp(),
    UpdatedAt timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Follows LockedBy. The indexes use it, because it stays the same when a worker takes a lease over from a beat.
    Leased smallint GENERATED ALWAYS AS (CASE WHEN LockedBy IS NULL THEN 0 ELSE 1 END) STORED,
    CONSTRAINT Jobs_Name UNIQUE (Namespace, JobName)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX Jobs_Due ON Jobs (Namespace, (coalesce(RetryAt, NextRunTime)))
WHERE Enabled = 1 AND Leased = 0 AND Quarantine IS NULL;

-- No instant is in this index, so a heartbeat does not touch it.
CREATE INDEX Jobs_Leased ON Jobs (Namespace) WHERE Leased = 1;

-- The entries of one beat_schedule.
CREATE INDEX Jobs_Code ON Jobs (Namespace, CodeOwner) WHERE CodeOwner IS NOT NULL;

-- Rows to fill in, to look at again or to delete; nearly empty.
CREATE INDEX Jobs_Attention ON Jobs (Namespace, Id)
WHERE Quarantine IS NOT NULL OR DeleteRequested = 1 OR (Enabled = 1 AND NextRunTime IS NULL AND RetryAt IS NULL);

CREATE TABLE JobRuns (
    RunId uuid PRIMARY KEY,
    Namespace text NOT NULL,
    JobId uuid NOT NULL,
    JobName text NOT NULL,
    Kind text NOT NULL,
    ScheduledFor timestamptz NOT NULL,
    -- A gap of skipped slots is one row: its first slot above, its last one and their number here.
    LastSlot timestamptz,
    SlotCount bigint NOT NULL DEFAULT 1,
    Attempt integer NOT NULL,
    State text NOT NULL,
    PriorState text NOT NULL DEFAULT 'new',
    Reason text,
    Fence bigint NOT NULL,
    ClaimId uuid,
    ClaimedBy text,
    ClaimedAt timestamptz,
    PublishedAt timestamptz,
    StartedBy text,
    StartId uuid,
    StartedAt timestamptz,
    StartedRetry integer,
    FinishedAt timestamptz,
    PlannedAt timestamptz,
    DelaySeconds double precision,
    SeenNextRunTime timestamptz,
    LeaseSeconds double precision NOT NULL DEFAULT 0,
    MaxRetries integer NOT NULL DEFAULT 0,
    Failures integer NOT NULL DEFAULT 0,
    LostLeases integer NOT NULL DEFAULT 0,
    Exclusive smallint NOT NULL DEFAULT 1 CHECK (Exclusive IN (0, 1)),
    Advances smallint NOT NULL DEFAULT 0 CHECK (Advances IN (0, 1)),
    -- The outbox: when beat must take this attempt up.
    DueAt timestamptz,
    -- The lease of a run that overlaps others and so has none on its job.
    HeldBy text,
    LeaseEndsAt timestamptz,
    Error text,
    Traceback text,
    CreatedAt timestamptz NOT NULL,
    -- Follows State, for an index that ordinary changes of State do not touch.
    Dead smallint GENERATED ALWAYS AS (CASE WHEN State = 'dlq' THEN 1 ELSE 0 END) STORED,
    -- The legal ways into each state; the same table as in lifecycle.py, the most frequent first.
    CONSTRAINT JobRuns_Transitions CHECK (
        (State = 'running' AND PriorState IN ('claimed', 'dispatched'))
        OR (State = 'success' AND PriorState IN ('running', 'dispatched'))
        OR (State = 'claimed' AND PriorState IN ('scheduled'))
        OR (State = 'dispatched' AND PriorState IN ('claimed'))
        OR (State = 'scheduled' AND PriorState IN ('new', 'claimed', 'running', 'failed', 'retry', 'dlq'))
        OR (State = 'retry' AND PriorState IN ('running', 'failed'))
        OR (State = 'failed' AND PriorState IN ('running', 'dispatched'))
        OR (State = 'dlq' AND PriorState IN ('failed'))
        OR (State = 'skipped' AND PriorState IN ('scheduled', 'claimed', 'running', 'retry', 'failed'))
        OR (State = 'cancelled' AND PriorState IN ('scheduled', 'claimed', 'running', 'retry', 'failed'))
    )
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- The instant comes first, so that the runs of one moment lie together and a claim writes few pages.
CREATE UNIQUE INDEX JobRuns_Slot ON JobRuns (ScheduledFor, JobId, Kind, Attempt);

CREATE INDEX JobRuns_Outbox ON JobRuns (Namespace, DueAt) WHERE DueAt IS NOT NULL;

CREATE INDEX JobRuns_Held ON JobRuns (Namespace) WHERE HeldBy IS NOT NULL;

CREATE INDEX JobRuns_Dead ON JobRuns (Namespace, RunId) WHERE Dead = 1;

CREATE TABLE Nodes (
    NodeId text NOT NULL,
    Namespace text NOT NULL,
    Kind text NOT NULL CHECK (Kind IN ('beat', 'worker')),
    Host text NOT NULL,
    Pid integer NOT NULL,
    PackageVersion text NOT NULL,
    CodeOwner text,
    CodeRelease text,
    Queues text,
    BrokerFingerprint text,
    SkewSeconds double precision,
    Claimed bigint NOT NULL DEFAULT 0,
    StartedAt timestamptz NOT NULL,
    HeartbeatAt timestamptz NOT NULL,
    StoppedAt timestamptz,
    PRIMARY KEY (Namespace, NodeId)
);

-- Which beat_schedule was seen when, and which of them was imported last.
CREATE TABLE Releases (
    Namespace text NOT NULL,
    CodeOwner text NOT NULL,
    CodeRelease text NOT NULL,
    FirstSeenAt timestamptz NOT NULL,
    ImportedAt timestamptz,
    PRIMARY KEY (Namespace, CodeOwner, CodeRelease)
);

CREATE TABLE Changes (
    Namespace text PRIMARY KEY,
    Counter bigint NOT NULL
);

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 1, 'schema', 'b81529ae7594c3306071017d659603ce142999b2b64b8c344b49928a0ff2429b', clock_timestamp()
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 1);

-- What shops need that run plain workers, several apps and several releases beside each other.

-- A worker: the names of the tasks that it knows, a JSON list. Beats and workers: what else others should know of
-- them, a JSON object with a key for each concern.
ALTER TABLE Nodes ADD COLUMN Tasks text;

ALTER TABLE Nodes ADD COLUMN Details text;

-- The names of the entries of this beat_schedule, a JSON list.
ALTER TABLE Releases ADD COLUMN Entries text;

-- No fence of a name that DeletedJobs has forgotten is above this one.
ALTER TABLE Changes ADD COLUMN FenceFloor bigint NOT NULL DEFAULT 0;

-- The oldest release of this package that may work on this schema; each migration sets it.
ALTER TABLE StoreInfo ADD COLUMN OldestRelease text;

UPDATE StoreInfo SET OldestRelease = '0.1.0';

-- A claim may fail for good, and a run that was fired and forgotten may be skipped or cancelled before it starts. The new
-- rule is wider than the old one, so that the rows which are there need no scan.
ALTER TABLE JobRuns DROP CONSTRAINT JobRuns_Transitions;

ALTER TABLE JobRuns ADD CONSTRAINT JobRuns_Transitions CHECK (
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
) NOT VALID;

-- When the last run that had begun let go of the job: slots that came due until then came due while it ran.
ALTER TABLE Jobs ADD COLUMN RanUntil timestamptz;

-- When the run that holds the job is to make room for the next slot (overlap = replace).
ALTER TABLE Jobs ADD COLUMN ReplaceAt timestamptz;

-- How many runs of its job may go on beside each other, this one among them (overlap = allow).
ALTER TABLE JobRuns ADD COLUMN MaxParallel integer;

-- How long the body of the run may take; NULL: for as long as it likes.
ALTER TABLE JobRuns ADD COLUMN MaxRuntimeSeconds double precision;

-- The check-in that a monitor has opened for the slot, JSON: later messages of the slot carry it on.
ALTER TABLE JobRuns ADD COLUMN CheckIn text;

-- When the results of the slot's earlier attempts were ended in Celery's result backend.
ALTER TABLE JobRuns ADD COLUMN ResultsEndedAt timestamptz;

-- Few: attempts that follow another one, until the results of those before are ended.
CREATE INDEX JobRuns_Results ON JobRuns (Namespace) WHERE Attempt > 1 AND ResultsEndedAt IS NULL;

CREATE INDEX JobRuns_Beside ON JobRuns (JobId, State) WHERE MaxParallel IS NOT NULL;

-- The last fence of each job that was deleted or renamed: whoever checks fences by the name of a job must never see
-- one again, whoever deletes and adds the row. What is old is gathered in FenceFloor. DeletedAt is set by clean-up.
CREATE TABLE DeletedJobs (
    Namespace text NOT NULL,
    JobName text NOT NULL,
    Fence bigint NOT NULL,
    DeletedAt timestamptz,
    PRIMARY KEY (Namespace, JobName)
);

-- With the rights of whoever runs this script, and on the tables of this schema alone: a role that may delete jobs needs no
-- right on DeletedJobs for that.
DO $$
DECLARE
    head text := format('RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = %I, pg_temp AS ', current_schema());
BEGIN
    EXECUTE 'CREATE FUNCTION sqlbeat_jobs_deleted() ' || head || quote_literal('
        BEGIN
            INSERT INTO DeletedJobs (Namespace, JobName, Fence)
            SELECT Namespace, JobName, Fence FROM gone WHERE Fence > 0 ORDER BY Namespace, JobName
            ON CONFLICT (Namespace, JobName)
            DO UPDATE SET Fence = greatest(DeletedJobs.Fence, excluded.Fence), DeletedAt = NULL;
            RETURN NULL;
        END;
    ');
    EXECUTE 'CREATE FUNCTION sqlbeat_jobs_truncated() ' || head || quote_literal('
        BEGIN
            INSERT INTO DeletedJobs (Namespace, JobName, Fence)
            SELECT Namespace, JobName, Fence FROM Jobs WHERE Fence > 0 ORDER BY Namespace, JobName
            ON CONFLICT (Namespace, JobName)
            DO UPDATE SET Fence = greatest(DeletedJobs.Fence, excluded.Fence), DeletedAt = NULL;
            RETURN NULL;
        END;
    ');
    -- A new row goes on from the last fence of its name; 1000000000 is the step of an epoch.
    EXECUTE 'CREATE FUNCTION sqlbeat_jobs_added() ' || head || quote_literal('
        BEGIN
            UPDATE Jobs SET Fence = f.Lowest
            FROM (
                SELECT
                    a.Id,
                    greatest(coalesce(d.Fence, 0), coalesce(c.FenceFloor, 0), s.Epoch * CAST(1000000000 AS bigint)) AS Lowest
                FROM added AS a
                CROSS JOIN StoreInfo AS s
                LEFT JOIN DeletedJobs AS d ON d.Namespace = a.Namespace AND d.JobName = a.JobName
                LEFT JOIN Changes AS c ON c.Namespace = a.Namespace
            ) AS f
            WHERE Jobs.Id = f.Id AND Jobs.Fence < f.Lowest;
            RETURN NULL;
        END;
    ');
    EXECUTE 'CREATE FUNCTION sqlbeat_jobs_renamed() ' || head || quote_literal('
        BEGIN
            INSERT INTO DeletedJobs (Namespace, JobName, Fence)
            VALUES (OLD.Namespace, OLD.JobName, OLD.Fence)
            ON CONFLICT (Namespace, JobName)
            DO UPDATE SET Fence = greatest(DeletedJobs.Fence, excluded.Fence), DeletedAt = NULL;
            UPDATE Jobs SET Fence = f.Lowest
            FROM (
                SELECT greatest(
                    (SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName),
                    (SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace)
                ) AS Lowest
            ) AS f
            WHERE Jobs.Id = NEW.Id AND Jobs.Fence < f.Lowest;
            RETURN NULL;
        END;
    ');
END;
$$;

CREATE TRIGGER Jobs_Deleted AFTER DELETE ON Jobs
REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION sqlbeat_jobs_deleted();

CREATE TRIGGER Jobs_Truncated BEFORE TRUNCATE ON Jobs
FOR EACH STATEMENT EXECUTE FUNCTION sqlbeat_jobs_truncated();

-- After, not before: a row that is added beside one that is just being deleted waits for that in between.
CREATE TRIGGER Jobs_Added AFTER INSERT ON Jobs
REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION sqlbeat_jobs_added();

CREATE TRIGGER Jobs_Renamed AFTER UPDATE OF Namespace, JobName ON Jobs
FOR EACH ROW WHEN (OLD.Namespace <> NEW.Namespace OR OLD.JobName <> NEW.JobName)
EXECUTE FUNCTION sqlbeat_jobs_renamed();

-- Where the role of grants.sql is there already, it gets what clean-up needs.
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'sqlbeat_runner') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON DeletedJobs TO sqlbeat_runner;
    END IF;
END;
$$;

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 2, 'foreign_shops', '90e1f07da3722f15037af84acdc666705f6c55679bb74806bbc1c7f665bd95af', clock_timestamp()
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 2);

-- Named locks. A row stays when its lock is free, since it has the fence that the next holder goes on from. Rows are
-- updated in place all the time, so each page keeps room for their next versions.
CREATE TABLE Locks (
    Namespace text NOT NULL,
    LockKey text NOT NULL,
    -- Whose it is or was: random, so that a lost answer can be asked for again.
    Token uuid NOT NULL,
    Holder text NOT NULL,
    Fence bigint NOT NULL,
    TakenAt timestamptz NOT NULL,
    -- NULL while it is free.
    LeaseEndsAt timestamptz,
    PRIMARY KEY (Namespace, LockKey)
) WITH (fillfactor = 50);

-- Where the role of grants.sql is there already, it may use them.
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'sqlbeat_runner') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON Locks TO sqlbeat_runner;
    END IF;
END;
$$;

UPDATE StoreInfo SET OldestRelease = '0.1.0';

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 3, 'locks', 'a54a935462034c3a4ad8c36200e9c2ecb5c7bfef3a0bb4d21941517da47a2c71', clock_timestamp()
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 3);

-- One-offs: runs that somebody submits, without a job. What their leases are taken on is a row of Jobs with OneOff = 1,
-- which has the id of the run as its own and as its name. Its CodeKey is 'one_off', which keeps it from beats of releases
-- that do not know one-offs: to them it is of a schedule that only other code can build.
ALTER TABLE Jobs ADD COLUMN OneOff smallint NOT NULL DEFAULT 0 CHECK (OneOff IN (0, 1));

-- The other databases have an index of the jobs by name without one-offs. Here a claim changes an indexed column, and so
-- writes into every index of the row: a list of the jobs passes the one-offs by instead.
-- What beats look for while they are idle: who submits one-offs counts no change.
CREATE INDEX Jobs_OneOffs ON Jobs (Namespace, RetryAt)
WHERE OneOff = 1 AND Enabled = 1 AND Leased = 0 AND Quarantine IS NULL;

-- The task of a one-off, which has no job that would name it.
ALTER TABLE JobRuns ADD COLUMN TaskName text;

-- Who asked when and why that the run be cancelled.
ALTER TABLE JobRuns ADD COLUMN CancelAt timestamptz;

ALTER TABLE JobRuns ADD COLUMN CancelBy text;

ALTER TABLE JobRuns ADD COLUMN CancelReason text;

-- Which run a key stands for, until it ends. Digest: of the task and its arguments.
CREATE TABLE IdempotencyKeys (
    Namespace text NOT NULL,
    KeyText text NOT NULL,
    RunId uuid NOT NULL,
    TaskName text NOT NULL,
    Digest text NOT NULL,
    CreatedAt timestamptz NOT NULL,
    ExpiresAt timestamptz NOT NULL,
    PRIMARY KEY (Namespace, KeyText)
);

CREATE INDEX IdempotencyKeys_Ended ON IdempotencyKeys (ExpiresAt, Namespace);

-- As in 0002, but for one-offs: no later row has their name, so nobody needs to know their last fence.
DO $$
DECLARE
    head text := format('RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = %I, pg_temp AS ', current_schema());
BEGIN
    EXECUTE 'CREATE OR REPLACE FUNCTION sqlbeat_jobs_deleted() ' || head || quote_literal('
        BEGIN
            INSERT INTO DeletedJobs (Namespace, JobName, Fence)
            SELECT Namespace, JobName, Fence FROM gone WHERE Fence > 0 AND OneOff = 0 ORDER BY Namespace, JobName
            ON CONFLICT (Namespace, JobName)
            DO UPDATE SET Fence = greatest(DeletedJobs.Fence, excluded.Fence), DeletedAt = NULL;
            RETURN NULL;
        END;
    ');
    EXECUTE 'CREATE OR REPLACE FUNCTION sqlbeat_jobs_truncated() ' || head || quote_literal('
        BEGIN
            INSERT INTO DeletedJobs (Namespace, JobName, Fence)
            SELECT Namespace, JobName, Fence FROM Jobs WHERE Fence > 0 AND OneOff = 0 ORDER BY Namespace, JobName
            ON CONFLICT (Namespace, JobName)
            DO UPDATE SET Fence = greatest(DeletedJobs.Fence, excluded.Fence), DeletedAt = NULL;
            RETURN NULL;
        END;
    ');
    EXECUTE 'CREATE OR REPLACE FUNCTION sqlbeat_jobs_added() ' || head || quote_literal('
        BEGIN
            IF NOT EXISTS (SELECT 1 FROM added WHERE OneOff = 0) THEN
                RETURN NULL;
            END IF;
            UPDATE Jobs SET Fence = f.Lowest
            FROM (
                SELECT
                    a.Id,
                    greatest(coalesce(d.Fence, 0), coalesce(c.FenceFloor, 0), s.Epoch * CAST(1000000000 AS bigint)) AS Lowest
                FROM added AS a
                CROSS JOIN StoreInfo AS s
                LEFT JOIN DeletedJobs AS d ON d.Namespace = a.Namespace AND d.JobName = a.JobName
                LEFT JOIN Changes AS c ON c.Namespace = a.Namespace
                WHERE a.OneOff = 0
            ) AS f
            WHERE Jobs.Id = f.Id AND Jobs.Fence < f.Lowest;
            RETURN NULL;
        END;
    ');
    EXECUTE 'CREATE FUNCTION sqlbeat_one_off_deleted() ' || head || quote_literal('
        BEGIN
            DELETE FROM Jobs WHERE Id = OLD.JobId AND OneOff = 1 AND LockedBy IS NULL;
            RETURN NULL;
        END;
    ');
END;
$$;

-- A one-off goes with its history, whoever deletes that.
CREATE TRIGGER JobRuns_Deleted AFTER DELETE ON JobRuns
FOR EACH ROW WHEN (OLD.Kind = 'one_off') EXECUTE FUNCTION sqlbeat_one_off_deleted();

DROP TRIGGER Jobs_Renamed ON Jobs;

CREATE TRIGGER Jobs_Renamed AFTER UPDATE OF Namespace, JobName ON Jobs
FOR EACH ROW WHEN (OLD.OneOff = 0 AND (OLD.Namespace <> NEW.Namespace OR OLD.JobName <> NEW.JobName))
EXECUTE FUNCTION sqlbeat_jobs_renamed();

-- Where the role of grants.sql is there already, it may use the keys.
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'sqlbeat_runner') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON IdempotencyKeys TO sqlbeat_runner;
    END IF;
END;
$$;

UPDATE StoreInfo SET OldestRelease = '0.1.0';

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 4, 'one_offs', '5493e297272769ba76d656ede0e18b30ce4abfb4fe1341473b21cb8546d0c096', clock_timestamp()
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 4);

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

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 5, 'effects', '59f38af7032b1ff51b1ee13d43c1a8e0bb215f3081033cb8d31a77bb99774f51', clock_timestamp()
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 5);
