-- Written by `make sql` from sql/source: change it there.
-- What jobs bring along that come from elsewhere.

-- name: note_arrivals
-- parameters: namespace text(100)
-- rows: job_name text(200), last_run_time instant, disabled_reason text(400)
-- returns: JobName text(200)
-- Of jobs that were added in the same transaction: when they ran last elsewhere, and why they are disabled.
SET @rows = %(rows)s;
UPDATE JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_name mediumtext PATH '$[0]' ERROR ON ERROR,
        last_run_time datetime(6) PATH '$[1]' ERROR ON ERROR,
        disabled_reason mediumtext PATH '$[2]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j ON j.Namespace = %(namespace)s AND j.JobName = p.job_name
SET j.LastRunTime = p.last_run_time, j.DisabledReason = p.disabled_reason;

SELECT j.JobName
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        job_name mediumtext PATH '$[0]' ERROR ON ERROR,
        last_run_time datetime(6) PATH '$[1]' ERROR ON ERROR,
        disabled_reason mediumtext PATH '$[2]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN Jobs AS j ON j.Namespace = %(namespace)s AND j.JobName = p.job_name;
