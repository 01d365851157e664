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
