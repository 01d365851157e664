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
