-- All tables and indexes of celery-sqlbeat: what `celery -A app sqlbeat init` runs, and `--sql` prints.

CREATE TABLE IF NOT EXISTS SchemaMigrations (
    Number INTEGER NOT NULL PRIMARY KEY,
    Name TEXT NOT NULL,
    Checksum TEXT NOT NULL,
    AppliedAt TEXT NOT NULL
);

-- The tables of celery-sqlbeat on SQLite. Instants are UTC text of the form YYYY-MM-DD HH:MM:SS.ffffff.

CREATE TABLE StoreInfo (
    OnlyRow INTEGER PRIMARY KEY CHECK (OnlyRow = 1),
    StoreId TEXT NOT NULL,
    Epoch INTEGER NOT NULL DEFAULT 0,
    CreatedAt TEXT NOT NULL
);

INSERT INTO StoreInfo (OnlyRow, StoreId, CreatedAt)
VALUES (1, lower(hex(randomblob(16))), strftime('%Y-%m-%d %H:%M:%f000', 'now'));

CREATE TABLE Jobs (
    Id TEXT NOT NULL PRIMARY KEY DEFAULT (
        lower(
            hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-' || hex(randomblob(2))
            || '-' || hex(randomblob(2)) || '-' || hex(randomblob(6))
        )
    ),
    Namespace TEXT NOT NULL DEFAULT 'default',
    JobName TEXT NOT NULL,
    TaskName TEXT,
    Schedule TEXT,
    IntervalMinutes INTEGER DEFAULT 10,
    TimeZone TEXT,
    Args TEXT,
    Kwargs TEXT,
    Options TEXT,
    Policies TEXT,
    Enabled INTEGER NOT NULL DEFAULT 1 CHECK (Enabled IN (0, 1)),
    DisabledReason TEXT,
    StartAt TEXT,
    NextRunTime TEXT,
    LastRunTime TEXT,
    LockTimeoutMinutes INTEGER,
    -- The slot that waits for another attempt.
    RetryAt TEXT,
    RetryRunId TEXT,
    -- The claim and the lease. LockedBy IS NULL alone means unlocked.
    LockedBy TEXT,
    LockedAt TEXT,
    LeaseEndsAt TEXT,
    ClaimedAt TEXT,
    PublishedAt TEXT,
    PlannedAt TEXT,
    Fence INTEGER NOT NULL DEFAULT 0,
    RunId TEXT,
    ClaimId TEXT,
    StartedRetry INTEGER,
    Republishes INTEGER NOT NULL DEFAULT 0,
    -- Why the row cannot run as it was written.
    Quarantine TEXT,
    -- Entries of a beat_schedule: who defined them, and what only that code can build.
    CodeOwner TEXT,
    CodeRelease TEXT,
    CodeKey TEXT,
    DeleteRequested INTEGER NOT NULL DEFAULT 0 CHECK (DeleteRequested IN (0, 1)),
    Version INTEGER NOT NULL DEFAULT 1,
    CreatedAt TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    UpdatedAt TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    CONSTRAINT Jobs_Name UNIQUE (Namespace, JobName)
);

CREATE INDEX Jobs_Due ON Jobs (Namespace, coalesce(RetryAt, NextRunTime))
WHERE Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL;

-- No instant is in this index, so a heartbeat does not touch it.
CREATE INDEX Jobs_Leased ON Jobs (Namespace) WHERE LockedBy IS NOT NULL;

-- The entries of one beat_schedule.
CREATE INDEX Jobs_Code ON Jobs (Namespace, CodeOwner) WHERE CodeOwner IS NOT NULL;

-- Rows to fill in, to normalise or to look at again; nearly empty.
CREATE INDEX Jobs_Attention ON Jobs (Namespace)
WHERE
    Quarantine IS NOT NULL
    OR DeleteRequested = 1
    OR (Enabled = 1 AND NextRunTime IS NULL AND RetryAt IS NULL)
    OR NextRunTime NOT GLOB
    '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9][0-9][0-9][0-9]'
    OR RetryAt NOT GLOB
    '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9][0-9][0-9][0-9]';

CREATE TABLE JobRuns (
    RunId TEXT NOT NULL PRIMARY KEY,
    Namespace TEXT NOT NULL,
    JobId TEXT NOT NULL,
    JobName TEXT NOT NULL,
    Kind TEXT NOT NULL,
    ScheduledFor TEXT NOT NULL,
    -- A gap of skipped slots is one row: its first slot above, its last one and their number here.
    LastSlot TEXT,
    SlotCount INTEGER NOT NULL DEFAULT 1,
    Attempt INTEGER NOT NULL,
    State TEXT NOT NULL,
    PriorState TEXT NOT NULL DEFAULT 'new',
    Reason TEXT,
    Fence INTEGER NOT NULL,
    ClaimId TEXT,
    ClaimedBy TEXT,
    ClaimedAt TEXT,
    PublishedAt TEXT,
    StartedBy TEXT,
    StartId TEXT,
    StartedAt TEXT,
    StartedRetry INTEGER,
    FinishedAt TEXT,
    PlannedAt TEXT,
    DelaySeconds REAL,
    SeenNextRunTime TEXT,
    LeaseSeconds REAL NOT NULL DEFAULT 0,
    MaxRetries INTEGER NOT NULL DEFAULT 0,
    Failures INTEGER NOT NULL DEFAULT 0,
    LostLeases INTEGER NOT NULL DEFAULT 0,
    Exclusive INTEGER NOT NULL DEFAULT 1 CHECK (Exclusive IN (0, 1)),
    Advances INTEGER NOT NULL DEFAULT 0 CHECK (Advances IN (0, 1)),
    -- The outbox: when beat must take this attempt up.
    DueAt TEXT,
    -- The lease of a run that overlaps others and so has none on its job.
    HeldBy TEXT,
    LeaseEndsAt TEXT,
    Error TEXT,
    Traceback TEXT,
    CreatedAt TEXT NOT NULL,
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
);

-- The instant comes first, so that the runs of one moment lie together and a claim writes few pages.
CREATE UNIQUE INDEX JobRuns_Slot ON JobRuns (ScheduledFor, JobId, Kind, Attempt);

CREATE INDEX JobRuns_Outbox ON JobRuns (Namespace, DueAt) WHERE DueAt IS NOT NULL;

CREATE INDEX JobRuns_Held ON JobRuns (Namespace) WHERE HeldBy IS NOT NULL;

CREATE INDEX JobRuns_Dead ON JobRuns (Namespace, RunId) WHERE State = 'dlq';

CREATE TABLE Nodes (
    NodeId TEXT NOT NULL,
    Namespace TEXT NOT NULL,
    Kind TEXT NOT NULL CHECK (Kind IN ('beat', 'worker')),
    Host TEXT NOT NULL,
    Pid INTEGER NOT NULL,
    PackageVersion TEXT NOT NULL,
    CodeOwner TEXT,
    CodeRelease TEXT,
    Queues TEXT,
    BrokerFingerprint TEXT,
    SkewSeconds REAL,
    Claimed INTEGER NOT NULL DEFAULT 0,
    StartedAt TEXT NOT NULL,
    HeartbeatAt TEXT NOT NULL,
    StoppedAt TEXT,
    PRIMARY KEY (Namespace, NodeId)
);

-- Which beat_schedule was seen when, and which of them was imported last.
CREATE TABLE Releases (
    Namespace TEXT NOT NULL,
    CodeOwner TEXT NOT NULL,
    CodeRelease TEXT NOT NULL,
    FirstSeenAt TEXT NOT NULL,
    ImportedAt TEXT,
    PRIMARY KEY (Namespace, CodeOwner, CodeRelease)
);

CREATE TABLE Changes (
    Namespace TEXT NOT NULL PRIMARY KEY,
    Counter INTEGER NOT NULL
);

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 1, 'schema', 'bbf69bb865a4691f2bbe850974c7cdcdd237da7ab822bb9fed24b60675f2db04', strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 1);

-- What shops need that run plain workers, several apps and several releases beside each other.

-- A worker: the names of the tasks that it knows, a JSON list. Beats and workers: what else others should know of
-- them, a JSON object with a key for each concern.
ALTER TABLE Nodes ADD COLUMN Tasks TEXT;

ALTER TABLE Nodes ADD COLUMN Details TEXT;

-- The names of the entries of this beat_schedule, a JSON list.
ALTER TABLE Releases ADD COLUMN Entries TEXT;

-- No fence of a name that DeletedJobs has forgotten is above this one.
ALTER TABLE Changes ADD COLUMN FenceFloor INTEGER NOT NULL DEFAULT 0;

-- The oldest release of this package that may work on this schema; each migration sets it.
ALTER TABLE StoreInfo ADD COLUMN OldestRelease TEXT;

UPDATE StoreInfo SET OldestRelease = '0.1.0';

-- A claim may fail for good, and a run that was fired and forgotten may be skipped or cancelled before it starts. SQLite
-- changes no CHECK, so the table is made anew; both have the same columns in the same order, and the new one has four more.
CREATE TABLE JobRunsNext (
    RunId TEXT NOT NULL PRIMARY KEY,
    Namespace TEXT NOT NULL,
    JobId TEXT NOT NULL,
    JobName TEXT NOT NULL,
    Kind TEXT NOT NULL,
    ScheduledFor TEXT NOT NULL,
    -- A gap of skipped slots is one row: its first slot above, its last one and their number here.
    LastSlot TEXT,
    SlotCount INTEGER NOT NULL DEFAULT 1,
    Attempt INTEGER NOT NULL,
    State TEXT NOT NULL,
    PriorState TEXT NOT NULL DEFAULT 'new',
    Reason TEXT,
    Fence INTEGER NOT NULL,
    ClaimId TEXT,
    ClaimedBy TEXT,
    ClaimedAt TEXT,
    PublishedAt TEXT,
    StartedBy TEXT,
    StartId TEXT,
    StartedAt TEXT,
    StartedRetry INTEGER,
    FinishedAt TEXT,
    PlannedAt TEXT,
    DelaySeconds REAL,
    SeenNextRunTime TEXT,
    LeaseSeconds REAL NOT NULL DEFAULT 0,
    MaxRetries INTEGER NOT NULL DEFAULT 0,
    Failures INTEGER NOT NULL DEFAULT 0,
    LostLeases INTEGER NOT NULL DEFAULT 0,
    Exclusive INTEGER NOT NULL DEFAULT 1 CHECK (Exclusive IN (0, 1)),
    Advances INTEGER NOT NULL DEFAULT 0 CHECK (Advances IN (0, 1)),
    -- The outbox: when beat must take this attempt up.
    DueAt TEXT,
    -- The lease of a run that overlaps others and so has none on its job.
    HeldBy TEXT,
    LeaseEndsAt TEXT,
    Error TEXT,
    Traceback TEXT,
    CreatedAt TEXT NOT NULL,
    -- How many runs of its job may go on beside each other, this one among them (overlap = allow).
    MaxParallel INTEGER,
    -- How long its body may take; NULL: for as long as it likes.
    MaxRuntimeSeconds REAL,
    -- The check-in that a monitor has opened for the slot, JSON: later messages of the slot carry it on.
    CheckIn TEXT,
    -- When the results of the slot's earlier attempts were ended in Celery's result backend.
    ResultsEndedAt TEXT,
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
);

INSERT INTO JobRunsNext SELECT *, NULL, NULL, NULL, NULL FROM JobRuns;

DROP TABLE JobRuns;

ALTER TABLE JobRunsNext RENAME TO JobRuns;

-- The instant comes first, so that the runs of one moment lie together and a claim writes few pages.
CREATE UNIQUE INDEX JobRuns_Slot ON JobRuns (ScheduledFor, JobId, Kind, Attempt);

CREATE INDEX JobRuns_Outbox ON JobRuns (Namespace, DueAt) WHERE DueAt IS NOT NULL;

CREATE INDEX JobRuns_Held ON JobRuns (Namespace) WHERE HeldBy IS NOT NULL;

CREATE INDEX JobRuns_Dead ON JobRuns (Namespace, RunId) WHERE State = 'dlq';

-- When the last run that had begun let go of the job: slots that came due until then came due while it ran.
ALTER TABLE Jobs ADD COLUMN RanUntil TEXT;

-- When the run that holds the job is to make room for the next slot (overlap = replace).
ALTER TABLE Jobs ADD COLUMN ReplaceAt TEXT;

CREATE INDEX JobRuns_Beside ON JobRuns (JobId, State) WHERE MaxParallel IS NOT NULL;

-- Few: attempts that follow another one, until the results of those before are ended.
CREATE INDEX JobRuns_Results ON JobRuns (Namespace) WHERE Attempt > 1 AND ResultsEndedAt IS NULL;

-- The last fence of each job that was deleted or renamed: whoever checks fences by the name of a job must never see
-- one again, whoever deletes and adds the row. What is old is gathered in FenceFloor. DeletedAt is set by clean-up.
CREATE TABLE DeletedJobs (
    Namespace TEXT NOT NULL,
    JobName TEXT NOT NULL,
    Fence INTEGER NOT NULL,
    DeletedAt TEXT,
    PRIMARY KEY (Namespace, JobName)
);

CREATE TRIGGER Jobs_Deleted AFTER DELETE ON Jobs
WHEN OLD.Fence > 0
BEGIN
    INSERT INTO DeletedJobs (Namespace, JobName, Fence)
    VALUES (OLD.Namespace, OLD.JobName, OLD.Fence)
    ON CONFLICT (Namespace, JobName) DO UPDATE SET Fence = max(Fence, excluded.Fence), DeletedAt = NULL;
END;

-- REPLACE deletes a row of the same name without telling.
CREATE TRIGGER Jobs_Replaced BEFORE INSERT ON Jobs
WHEN EXISTS (SELECT 1 FROM Jobs WHERE Namespace = NEW.Namespace AND JobName = NEW.JobName AND Fence > 0)
BEGIN
    INSERT INTO DeletedJobs (Namespace, JobName, Fence)
    SELECT Namespace, JobName, Fence FROM Jobs WHERE Namespace = NEW.Namespace AND JobName = NEW.JobName
    ON CONFLICT (Namespace, JobName) DO UPDATE SET Fence = max(Fence, excluded.Fence), DeletedAt = NULL;
END;

-- A new row goes on from the last fence of its name; 1000000000 is the step of an epoch.
CREATE TRIGGER Jobs_Added AFTER INSERT ON Jobs
BEGIN
    UPDATE Jobs SET Fence = max(
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0),
        (SELECT s.Epoch * 1000000000 FROM StoreInfo AS s)
    )
    WHERE Id = NEW.Id AND Fence < max(
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0),
        (SELECT s.Epoch * 1000000000 FROM StoreInfo AS s)
    );
END;

CREATE TRIGGER Jobs_Renamed AFTER UPDATE OF Namespace, JobName ON Jobs
WHEN OLD.Namespace <> NEW.Namespace OR OLD.JobName <> NEW.JobName
BEGIN
    INSERT INTO DeletedJobs (Namespace, JobName, Fence)
    VALUES (OLD.Namespace, OLD.JobName, OLD.Fence)
    ON CONFLICT (Namespace, JobName) DO UPDATE SET Fence = max(Fence, excluded.Fence), DeletedAt = NULL;
    UPDATE Jobs SET Fence = max(
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0)
    )
    WHERE Id = NEW.Id AND Fence < max(
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0)
    );
END;

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 2, 'foreign_shops', 'd213d407dc4f8c6b3798f3b67efbc828043b2facd2d5e6913ddd8476d0422dbb', strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 2);

-- Named locks. A row stays when its lock is free, since it has the fence that the next holder goes on from.
CREATE TABLE Locks (
    Namespace TEXT NOT NULL,
    LockKey TEXT NOT NULL,
    -- Whose it is or was: random, so that a lost answer can be asked for again.
    Token TEXT NOT NULL,
    Holder TEXT NOT NULL,
    Fence INTEGER NOT NULL,
    TakenAt TEXT NOT NULL,
    -- NULL while it is free.
    LeaseEndsAt TEXT,
    PRIMARY KEY (Namespace, LockKey)
);

UPDATE StoreInfo SET OldestRelease = '0.1.0';

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 3, 'locks', '300b2468228eb265409689111ebbc315b51c778ee7cef9b37ff44dc06c2755ba', strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 3);

-- One-offs: runs that somebody submits, without a job. What their leases are taken on is a row of Jobs with OneOff = 1,
-- which has the id of the run as its own and as its name. Its CodeKey is 'one_off', which keeps it from beats of releases
-- that do not know one-offs: to them it is of a schedule that only other code can build.
ALTER TABLE Jobs ADD COLUMN OneOff INTEGER NOT NULL DEFAULT 0 CHECK (OneOff IN (0, 1));

-- The jobs by name, among however many one-offs.
CREATE INDEX Jobs_Listed ON Jobs (Namespace, JobName) WHERE OneOff = 0;

-- What beats look for while they are idle: who submits one-offs counts no change.
CREATE INDEX Jobs_OneOffs ON Jobs (Namespace, RetryAt)
WHERE OneOff = 1 AND Enabled = 1 AND LockedBy IS NULL AND Quarantine IS NULL;

-- The task of a one-off, which has no job that would name it.
ALTER TABLE JobRuns ADD COLUMN TaskName TEXT;

-- Who asked when and why that the run be cancelled.
ALTER TABLE JobRuns ADD COLUMN CancelAt TEXT;

ALTER TABLE JobRuns ADD COLUMN CancelBy TEXT;

ALTER TABLE JobRuns ADD COLUMN CancelReason TEXT;

-- Which run a key stands for, until it ends. Digest: of the task and its arguments.
CREATE TABLE IdempotencyKeys (
    Namespace TEXT NOT NULL,
    KeyText TEXT NOT NULL,
    RunId TEXT NOT NULL,
    TaskName TEXT NOT NULL,
    Digest TEXT NOT NULL,
    CreatedAt TEXT NOT NULL,
    ExpiresAt TEXT NOT NULL,
    PRIMARY KEY (Namespace, KeyText)
);

CREATE INDEX IdempotencyKeys_Ended ON IdempotencyKeys (ExpiresAt, Namespace);

-- A one-off goes with its history, whoever deletes that.
CREATE TRIGGER JobRuns_Deleted AFTER DELETE ON JobRuns
WHEN OLD.Kind = 'one_off'
BEGIN
    DELETE FROM Jobs WHERE Id = OLD.JobId AND OneOff = 1 AND LockedBy IS NULL;
END;

-- As in 0002, but for one-offs: no later row has their name, so nobody needs to know their last fence.
DROP TRIGGER Jobs_Deleted;

CREATE TRIGGER Jobs_Deleted AFTER DELETE ON Jobs
WHEN OLD.Fence > 0 AND OLD.OneOff = 0
BEGIN
    INSERT INTO DeletedJobs (Namespace, JobName, Fence)
    VALUES (OLD.Namespace, OLD.JobName, OLD.Fence)
    ON CONFLICT (Namespace, JobName) DO UPDATE SET Fence = max(Fence, excluded.Fence), DeletedAt = NULL;
END;

-- REPLACE deletes a row of the same name without telling.
DROP TRIGGER Jobs_Replaced;

CREATE TRIGGER Jobs_Replaced BEFORE INSERT ON Jobs
WHEN
    NEW.OneOff = 0
    AND EXISTS (SELECT 1 FROM Jobs WHERE Namespace = NEW.Namespace AND JobName = NEW.JobName AND Fence > 0)
BEGIN
    INSERT INTO DeletedJobs (Namespace, JobName, Fence)
    SELECT Namespace, JobName, Fence FROM Jobs WHERE Namespace = NEW.Namespace AND JobName = NEW.JobName
    ON CONFLICT (Namespace, JobName) DO UPDATE SET Fence = max(Fence, excluded.Fence), DeletedAt = NULL;
END;

DROP TRIGGER Jobs_Added;

CREATE TRIGGER Jobs_Added AFTER INSERT ON Jobs
WHEN NEW.OneOff = 0
BEGIN
    UPDATE Jobs SET Fence = max(
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0),
        (SELECT s.Epoch * 1000000000 FROM StoreInfo AS s)
    )
    WHERE Id = NEW.Id AND Fence < max(
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0),
        (SELECT s.Epoch * 1000000000 FROM StoreInfo AS s)
    );
END;

DROP TRIGGER Jobs_Renamed;

CREATE TRIGGER Jobs_Renamed AFTER UPDATE OF Namespace, JobName ON Jobs
WHEN OLD.OneOff = 0 AND (OLD.Namespace <> NEW.Namespace OR OLD.JobName <> NEW.JobName)
BEGIN
    INSERT INTO DeletedJobs (Namespace, JobName, Fence)
    VALUES (OLD.Namespace, OLD.JobName, OLD.Fence)
    ON CONFLICT (Namespace, JobName) DO UPDATE SET Fence = max(Fence, excluded.Fence), DeletedAt = NULL;
    UPDATE Jobs SET Fence = max(
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0)
    )
    WHERE Id = NEW.Id AND Fence < max(
        coalesce((SELECT d.Fence FROM DeletedJobs AS d WHERE d.Namespace = NEW.Namespace AND d.JobName = NEW.JobName), 0),
        coalesce((SELECT c.FenceFloor FROM Changes AS c WHERE c.Namespace = NEW.Namespace), 0)
    );
END;

UPDATE StoreInfo SET OldestRelease = '0.1.0';

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 4, 'one_offs', 'c43960b681463c372b875eb00f7cecb2b5562c5896b4d444e1a17236bf696713', strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 4);

-- Whether the effects of the run were committed in this database, with this mark (`current_run().transaction()`).
ALTER TABLE JobRuns ADD COLUMN EffectsDone INTEGER NOT NULL DEFAULT 0 CHECK (EffectsDone IN (0, 1));

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

UPDATE StoreInfo SET OldestRelease = '0.1.0';

INSERT INTO SchemaMigrations (Number, Name, Checksum, AppliedAt)
SELECT 5, 'effects', '0038d42b2679feff8597190d46d470c1ce269386057b52ae3357773fc508c1a1', strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE NOT EXISTS (SELECT 1 FROM SchemaMigrations WHERE Number = 5);
