-- What ends a run, whoever does it: first the job's row, then the run's. The clock as in beat.sql.

-- name: lock_claims
-- rows: job_id, run_id
-- returns: RunId
-- What a beat may release without waiting for anybody, whose rows are locked then. A missing row: somebody keeps the
-- job's row or the run's locked, and it is passed by; or its history is gone.
SELECT json_arrayagg(p.run_id)
INTO @free
FROM p
STRAIGHT_JOIN Jobs AS j ON j.Id = p.job_id
FOR UPDATE SKIP LOCKED;

SELECT r.RunId
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE
    p.run_id IN (SELECT f.RunId FROM JSON_TABLE(@free, '$[*]' COLUMNS (RunId char(36) PATH '$')) AS f)
    OR NOT EXISTS (SELECT 1 FROM Jobs AS k WHERE k.Id = p.job_id)
FOR UPDATE SKIP LOCKED;

-- name: release_jobs
-- rows: job_id, run_id, claim_id, fence, started_retry, state, retry_seconds
-- returns: Id, Unforeseen
-- A missing row: the claim was taken over, or (only_unstarted) a worker has started it meanwhile,
-- or (only_ended) its lease was extended, or (only_replaceable) its next slot has not come, or the job is paused;
-- or (started_retry) a later retry of Celery's has begun.
-- Unforeseen: due at another instant than the claim planned, or due already, or to be deleted now that it is free; then
-- the other beats must be told.
-- An overlapping run that has begun goes on by itself, whatever becomes of it: its job takes the next slot.
-- Its start does not lock the job, so its own row is locked here, before the job's.
SELECT json_arrayagg(CASE WHEN b.State = 'running' THEN b.RunId END)
INTO @begun
FROM (
    SELECT p.run_id
    FROM p
    STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
    WHERE r.Exclusive = 0
) AS o
STRAIGHT_JOIN JobRuns AS b ON b.RunId = o.run_id
FOR UPDATE;

-- Nothing follows what somebody asks to cancel at this moment: both rows are locked before it is looked at.
SELECT json_arrayagg(CASE WHEN c.CancelAt IS NOT NULL THEN c.RunId END)
INTO @cancelled
FROM (
    SELECT p.job_id, p.run_id
    FROM p
    STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
    WHERE r.Exclusive = 1 AND p.retry_seconds IS NOT NULL
) AS o
STRAIGHT_JOIN Jobs AS k ON k.Id = o.job_id
STRAIGHT_JOIN JobRuns AS c ON c.RunId = o.run_id
FOR UPDATE;

SELECT
    json_arrayagg(
        json_array(
            j.Id, r.run_id, r.state, r.Advances, r.retry_seconds, r.NextSlot,
            -- Another NextRunTime than the claim saw is an operator's, and wins.
            CASE WHEN r.Advances = 1 AND r.retry_seconds IS NULL AND j.NextRunTime <=> r.SeenNextRunTime THEN 1 ELSE 0 END
        )
    )
INTO @won
FROM (
    SELECT
        p.job_id, p.run_id, p.claim_id, p.fence, p.started_retry, p.state, r.Exclusive, r.Advances, r.SeenNextRunTime,
        CASE
            WHEN
                (@begun IS NULL OR NOT json_contains(@begun, json_quote(p.run_id)))
                AND (@cancelled IS NULL OR NOT json_contains(@cancelled, json_quote(p.run_id)))
                THEN p.retry_seconds
        END AS retry_seconds,
        CASE
            WHEN r.DelaySeconds IS NULL THEN r.PlannedAt
            ELSE greatest(:now, r.ScheduledFor) + INTERVAL r.DelaySeconds SECOND
        END AS NextSlot
    FROM p
    STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
) AS r
STRAIGHT_JOIN Jobs AS j ON j.Id = r.job_id
WHERE
    j.RunId = r.run_id AND j.ClaimId = r.claim_id AND j.Fence = r.fence AND j.LockedBy IS NOT NULL
    AND (:only_unstarted = 0 OR j.StartedRetry IS NULL)
    AND (r.started_retry IS NULL OR r.Exclusive = 0 OR j.StartedRetry = r.started_retry)
    AND (:only_replaceable = 0 OR (j.Enabled = 1 AND j.ReplaceAt <= :now))
    AND (
        :only_ended = 0
        -- Who found the lease ended before the run began cannot know that it began and ended again.
        OR (
            j.LeaseEndsAt <= :now
            AND (j.StartedRetry IS NULL OR r.state IN ('retry', 'dlq'))
        )
        -- An overlapping run that began was dispatched: where it is lost before its beat said so, its job is free.
        OR (r.Exclusive = 0 AND r.state IN ('retry', 'dlq'))
    )
FOR UPDATE;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            Id char(36) PATH '$[0]', RunId char(36) PATH '$[1]', State varchar(20) PATH '$[2]',
            Advances smallint PATH '$[3]', RetrySeconds double PATH '$[4]', NextSlot datetime(6) PATH '$[5]',
            MovesOn smallint PATH '$[6]'
        )
    ) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id
SET
    -- Slots that came due until then came due while it ran.
    j.RanUntil = CASE WHEN w.RetrySeconds IS NULL AND j.StartedRetry IS NOT NULL THEN :now ELSE j.RanUntil END,
    j.LockedBy = NULL,
    j.LockedAt = NULL,
    j.ClaimedAt = NULL,
    j.LeaseEndsAt = NULL,
    j.PublishedAt = NULL,
    j.StartedRetry = NULL,
    j.Republishes = 0,
    j.RunId = NULL,
    j.ClaimId = NULL,
    j.Fence = j.Fence + 1,
    j.LastRunTime = CASE WHEN w.State IN ('success', 'dispatched') THEN :now ELSE j.LastRunTime END,
    j.ReplaceAt = NULL,
    j.RetryAt = CASE
        WHEN w.Advances = 0 THEN j.RetryAt
        WHEN w.RetrySeconds IS NOT NULL THEN after(:now, w.RetrySeconds)
    END,
    j.RetryRunId = CASE
        WHEN w.Advances = 0 THEN j.RetryRunId
        WHEN w.RetrySeconds IS NOT NULL THEN w.RunId
    END,
    j.NextRunTime = CASE WHEN w.MovesOn = 1 THEN w.NextSlot ELSE j.NextRunTime END,
    j.Enabled = CASE WHEN w.MovesOn = 1 AND w.NextSlot IS NULL THEN 0 ELSE j.Enabled END,
    j.DisabledReason = CASE WHEN w.MovesOn = 1 AND w.NextSlot IS NULL THEN 'finished' ELSE j.DisabledReason END;

SELECT
    j.Id,
    CASE
        -- Whoever waits for a one-off finds it by its instant.
        WHEN j.OneOff = 1 THEN 0
        WHEN j.RetryAt IS NULL AND j.NextRunTime = j.PlannedAt AND j.NextRunTime > :now AND j.DeleteRequested = 0 THEN 0
        ELSE 1
    END AS Unforeseen
FROM JSON_TABLE(@won, '$[*]' COLUMNS (Id char(36) PATH '$[0]')) AS w
STRAIGHT_JOIN Jobs AS j ON j.Id = w.Id;

-- name: close_runs
-- rows: run_id, claim_id, fence, started_retry, released, state, via, reason, retry_seconds, failures, lost_leases,
--   error, traceback
-- returns: RunId, Doomed
-- A missing row: the run is not in these hands, or its outcome is written already, or a later retry of Celery's began.
-- Doomed: it overlapped others, and its job is to be deleted once the last of them has ended; or it is a one-off that waits
-- in the outbox. The beats must be told.
SELECT
    json_arrayagg(
        json_array(
            -- What somebody has asked to cancel ends as that, whoever ends it and however.
            r.RunId, CASE WHEN r.CancelAt IS NULL THEN p.state ELSE 'cancelled' END, coalesce(p.via, r.State),
            CASE WHEN r.CancelAt IS NULL THEN p.reason ELSE r.Reason END,
            CASE
                WHEN (r.Advances = 0 OR (r.Exclusive = 0 AND r.State = 'running')) AND r.CancelAt IS NULL
                    THEN p.retry_seconds
            END,
            CASE
                WHEN p.state = 'dispatched' OR (r.Exclusive = 0 AND r.State = 'running') THEN 0
                ELSE r.Advances
            END,
            p.failures, p.lost_leases, p.error, p.traceback
        )
    )
INTO @won
FROM p
STRAIGHT_JOIN JobRuns AS r ON r.RunId = p.run_id
WHERE
    r.ClaimId = p.claim_id AND r.Fence = p.fence
    AND (p.started_retry IS NULL OR r.StartedRetry = p.started_retry)
    AND (p.released = 1 OR (r.Exclusive = 0 AND r.State = 'running'))
    AND (
        (r.State = 'claimed' AND p.state IN ('scheduled', 'dispatched', 'skipped', 'cancelled'))
        -- What can never be published: only the beat that holds the claim knows that.
        OR (:only_unstarted = 1 AND r.State = 'claimed' AND p.state IN ('retry', 'dlq'))
        OR (
            r.State = 'running'
            -- Only its own worker may hand a run over that it has begun.
            AND (p.state <> 'dispatched' OR (:only_unstarted = 0 AND :only_ended = 0))
        )
    )
    -- A beat ends an overlapping run that has begun only where that run's own lease has ended.
    AND (
        (:only_unstarted = 0 AND :only_ended = 0) OR r.Exclusive = 1 OR r.State = 'claimed'
        OR (:only_ended = 1 AND p.state IN ('retry', 'dlq') AND r.LeaseEndsAt <= :now)
    )
FOR UPDATE;

UPDATE
    JSON_TABLE(
        @won, '$[*]' COLUMNS (
            RunId char(36) PATH '$[0]', State varchar(20) PATH '$[1]', PriorState varchar(20) PATH '$[2]',
            Reason varchar(400) PATH '$[3]', RetrySeconds double PATH '$[4]', Advances smallint PATH '$[5]',
            Failures integer PATH '$[6]', LostLeases integer PATH '$[7]', Error mediumtext PATH '$[8]',
            Traceback mediumtext PATH '$[9]'
        )
    ) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId
SET
    r.State = w.State,
    r.PriorState = w.PriorState,
    r.Reason = w.Reason,
    r.PublishedAt = CASE WHEN w.State = 'dispatched' THEN coalesce(r.PublishedAt, :now) ELSE r.PublishedAt END,
    r.FinishedAt = CASE WHEN w.State <> 'scheduled' THEN :now END,
    r.DueAt = CASE WHEN w.RetrySeconds IS NOT NULL THEN after(:now, w.RetrySeconds) END,
    r.Advances = w.Advances,
    r.Failures = r.Failures + w.Failures,
    r.LostLeases = r.LostLeases + w.LostLeases,
    r.HeldBy = NULL,
    r.LeaseEndsAt = NULL,
    r.Error = w.Error,
    r.Traceback = w.Traceback;

SELECT
    r.RunId,
    CASE
        WHEN r.Kind = 'one_off' AND r.DueAt IS NOT NULL THEN 1
        WHEN r.Exclusive = 0 AND (SELECT d.DeleteRequested FROM Jobs AS d WHERE d.Id = r.JobId) = 1 THEN 1
        ELSE 0
    END AS Doomed
FROM JSON_TABLE(@won, '$[*]' COLUMNS (RunId char(36) PATH '$[0]')) AS w
STRAIGHT_JOIN JobRuns AS r ON r.RunId = w.RunId;
