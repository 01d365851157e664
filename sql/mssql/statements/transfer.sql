-- Written by `make sql` from sql/source: change it there.
-- What jobs bring along that come from elsewhere. Batches, locks and the clock as in beat.sql.

-- name: note_arrivals
-- parameters: namespace text(100)
-- rows: job_name text(200), last_run_time instant, disabled_reason text(400)
-- returns: JobName text(200)
-- Of jobs that were added in the same transaction: when they ran last elsewhere, and why they are disabled.
DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;
DECLARE @changed TABLE (JobName nvarchar(200) NOT NULL);

UPDATE j
SET
    LastRunTime = p.last_run_time,
    DisabledReason = p.disabled_reason
OUTPUT inserted.JobName INTO @changed (JobName)
FROM OPENJSON(@rows) WITH (
    job_name nvarchar(200) '$[0]',
    last_run_time datetime2(6) '$[1]',
    disabled_reason nvarchar(400) '$[2]'
) AS p
INNER JOIN dbo.Jobs AS j WITH (INDEX (Jobs_Name), ROWLOCK)
    ON j.Namespace = @namespace AND j.JobName = p.job_name COLLATE Latin1_General_BIN2
OPTION (LOOP JOIN, FORCE ORDER);

SELECT JobName FROM @changed;
