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
