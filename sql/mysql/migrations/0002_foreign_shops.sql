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
