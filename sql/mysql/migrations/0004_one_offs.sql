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
