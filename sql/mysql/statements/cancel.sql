-- Written by `make sql` from sql/source: change it there.
-- How somebody ends a run that others hold, or that waits. The clock as in beat.sql.

-- name: read_cancellable
-- parameters: namespace text(100)
-- rows: run_id id
-- returns: RunId id, JobId id, State text, Fence bigint, Exclusive flag, ClaimId id, DueAt instant, StartedAt instant,
--   HeldBy text, CancelAt instant, Reason text, JobFence bigint, LockedBy text, LeftRunId id, WaitingRunId id,
--   IsFollowed int, Now instant
-- LeftRunId and WaitingRunId: the run that holds the job, or did so, and the one that waits for its next attempt.
-- A missing row: there is no such run in this namespace.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT
    r.RunId, r.JobId, r.State, r.Fence, r.Exclusive, r.ClaimId, r.DueAt, r.StartedAt, r.HeldBy, r.CancelAt, r.Reason,
    j.Fence AS JobFence, j.LockedBy, j.RunId AS LeftRunId, j.RetryRunId AS WaitingRunId,
    CASE
        WHEN EXISTS (
            SELECT 1
            FROM JobRuns AS n
            WHERE n.JobId = r.JobId AND n.ScheduledFor = r.ScheduledFor AND n.Kind = r.Kind AND n.Attempt > r.Attempt
        ) THEN 1
        ELSE 0
    END AS IsFollowed,
    CAST(@now AS datetime(6)) AS Now
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (run_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
LEFT JOIN Jobs AS j ON j.Id = r.JobId
WHERE r.Namespace = %(namespace)s;

-- name: read_asked
-- rows: run_id id
-- returns: RunId id, CancelBy text, CancelReason text, CancelAt instant
-- A missing row: nobody has asked to cancel it.
SET @rows = %(rows)s;
SELECT r.RunId, r.CancelBy, r.CancelReason, r.CancelAt
FROM JSON_TABLE(@rows, '$[*]' COLUMNS (run_id char(36) PATH '$[0]' ERROR ON ERROR)) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
WHERE r.CancelAt IS NOT NULL;

-- name: ask_runs
-- rows: run_id id, state word(20), fence bigint, cancel_by text(200), cancel_reason text(400), reason text(400)
-- returns: RunId id
-- From here on these runs can only end as cancelled. A missing row: it is not as it was read, or was asked before.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(json_array(r.RunId, p.cancel_by, p.cancel_reason, p.reason))
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        state mediumtext PATH '$[1]' ERROR ON ERROR,
        fence bigint PATH '$[2]' ERROR ON ERROR,
        cancel_by mediumtext PATH '$[3]' ERROR ON ERROR,
        cancel_reason mediumtext PATH '$[4]' ERROR ON ERROR,
        reason mediumtext PATH '$[5]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
WHERE r.State = p.state AND r.Fence = p.fence AND r.CancelAt IS NULL
FOR UPDATE;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            RunId char(36) PATH '$[0]', CancelBy varchar(200) PATH '$[1]', CancelReason varchar(400) PATH '$[2]',
            Reason varchar(400) PATH '$[3]'
        )
    ) AS w
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = w.RunId
SET r.CancelAt = CAST(@now AS datetime(6)), r.CancelBy = w.CancelBy, r.CancelReason = w.CancelReason, r.Reason = w.Reason;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[0]')) AS w;

-- name: pass_by_waiting
-- rows: job_id id, run_id id, fence bigint
-- returns: Id id
-- Jobs go on without a run that nobody holds: to their next slots, where it is the one that they wait for. Their fences
-- grow, so that nobody who has read them before claims it. A missing row: the job has changed since it was read.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT
    json_arrayagg(
        json_array(
            j.Id, CASE WHEN j.RetryRunId = r.run_id THEN 1 ELSE 0 END,
            CASE WHEN j.LockedBy IS NULL AND j.RunId = r.run_id THEN 1 ELSE 0 END,
            r.NextSlot,
            -- Another NextRunTime than the claim saw is an operator's, and wins.
            CASE
                WHEN
                    (j.RetryRunId = r.run_id OR (j.LockedBy IS NULL AND j.RunId = r.run_id AND r.Advances = 1))
                    AND j.NextRunTime <=> r.SeenNextRunTime
                    THEN 1
                ELSE 0
            END
        )
    )
INTO @won
FROM (
    SELECT
        p.job_id, p.run_id, p.fence, r.Advances, r.SeenNextRunTime,
        CASE
            WHEN r.DelaySeconds IS NULL THEN r.PlannedAt
            ELSE greatest(CAST(@now AS datetime(6)), r.ScheduledFor) + INTERVAL r.DelaySeconds SECOND
        END AS NextSlot
    FROM JSON_TABLE(
        @rows, '$[*]' COLUMNS (
            job_id char(36) PATH '$[0]' ERROR ON ERROR,
            run_id char(36) PATH '$[1]' ERROR ON ERROR,
            fence bigint PATH '$[2]' ERROR ON ERROR
        )
    ) AS p
    STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
) AS r
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = r.job_id
WHERE j.Fence = r.fence
FOR UPDATE;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            Id char(36) PATH '$[0]', Waited smallint PATH '$[1]', WasLeft smallint PATH '$[2]',
            NextSlot datetime(6) PATH '$[3]', MovesOn smallint PATH '$[4]'
        )
    ) AS w
STRAIGHT_JOIN Jobs AS j FORCE INDEX (PRIMARY) ON j.Id = w.Id
SET
    -- Of a job that another run holds, the end of that one raises it.
    j.Fence = j.Fence + CASE WHEN j.LockedBy IS NULL THEN 1 ELSE 0 END,
    j.RunId = CASE WHEN w.WasLeft = 0 THEN j.RunId END,
    j.ClaimId = CASE WHEN w.WasLeft = 0 THEN j.ClaimId END,
    j.RetryAt = CASE WHEN w.Waited = 0 THEN j.RetryAt END,
    j.RetryRunId = CASE WHEN w.Waited = 0 THEN j.RetryRunId END,
    j.NextRunTime = CASE WHEN w.MovesOn = 1 THEN w.NextSlot ELSE j.NextRunTime END,
    j.Enabled = CASE WHEN w.MovesOn = 1 AND w.NextSlot IS NULL THEN 0 ELSE j.Enabled END,
    j.DisabledReason = CASE WHEN w.MovesOn = 1 AND w.NextSlot IS NULL THEN 'finished' ELSE j.DisabledReason END;

SELECT w.Id FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w;

-- name: cancel_runs
-- rows: run_id id, state word(20), fence bigint, cancel_by text(200), cancel_reason text(400), reason text(400)
-- returns: RunId id
-- Ends runs that nobody holds. A missing row: it is not as it was read.
SET @now = utc_timestamp(6), @rows = %(rows)s;
SELECT json_arrayagg(json_array(r.RunId, r.State, p.cancel_by, p.cancel_reason, p.reason))
INTO @won
FROM JSON_TABLE(
    @rows, '$[*]' COLUMNS (
        run_id char(36) PATH '$[0]' ERROR ON ERROR,
        state mediumtext PATH '$[1]' ERROR ON ERROR,
        fence bigint PATH '$[2]' ERROR ON ERROR,
        cancel_by mediumtext PATH '$[3]' ERROR ON ERROR,
        cancel_reason mediumtext PATH '$[4]' ERROR ON ERROR,
        reason mediumtext PATH '$[5]' ERROR ON ERROR
    )
) AS p
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = p.run_id
WHERE r.State = p.state AND r.Fence = p.fence
FOR UPDATE;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            RunId char(36) PATH '$[0]', State varchar(20) PATH '$[1]', CancelBy varchar(200) PATH '$[2]',
            CancelReason varchar(400) PATH '$[3]', Reason varchar(400) PATH '$[4]'
        )
    ) AS w
STRAIGHT_JOIN JobRuns AS r FORCE INDEX (PRIMARY) ON r.RunId = w.RunId
SET
    r.State = 'cancelled',
    r.PriorState = w.State,
    r.Reason = w.Reason,
    r.DueAt = NULL,
    r.FinishedAt = CAST(@now AS datetime(6)),
    r.HeldBy = NULL,
    r.LeaseEndsAt = NULL,
    r.CancelAt = CAST(@now AS datetime(6)),
    r.CancelBy = w.CancelBy,
    r.CancelReason = w.CancelReason;

SELECT w.RunId FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[0]')) AS w;
