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
