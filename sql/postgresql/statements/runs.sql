-- Written by `make sql` from sql/source: change it there.
-- What ends a run, whoever does it: first the job's row, then the run's. Batches, locks and the clock as in beat.sql.

-- name: read_endings
-- rows: $1 run_id id, $2 claim_id id, $3 fence bigint, $4 state word(20)
-- returns: run_id id
-- After a commit without an answer: a row means that this ending did commit.
WITH p (run_id, claim_id, fence, state) AS (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[]))

SELECT p.run_id
FROM p
INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[p.run_id]) AND r.ClaimId = p.claim_id AND r.Fence = p.fence
WHERE r.State = p.state OR (r.State = 'cancelled' AND r.CancelAt IS NOT NULL);

-- name: finish_at_once
-- parameters: $14 only_unstarted flag, $15 only_replaceable flag, $16 only_ended flag, $17 namespace text(100)
-- rows: $1 job_id id, $2 run_id id, $3 claim_id id, $4 fence bigint, $5 started_retry int, $6 state word(20),
--   $7 via word(20), $8 reason text(400), $9 retry_seconds seconds, $10 failures int, $11 lost_leases int,
--   $12 error text, $13 traceback text
-- returns: RunId id
-- Ends runs and frees their jobs in one statement, and tells the other beats of what they cannot foresee: a job that is due
-- at another instant than the claim planned, or already, or to be deleted now that it is free.
-- A missing row: the run is not in these hands, its outcome is written already, or a later retry of Celery's has begun.
WITH given (
    job_id, run_id, claim_id, fence, started_retry, state, via, reason, retry_seconds, failures, lost_leases, error,
    traceback
) AS (SELECT * FROM unnest(
    $1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::integer[], $6::text[], $7::text[], $8::text[], $9::float8[],
    $10::integer[], $11::integer[], $12::text[], $13::text[]
)),

released AS (
    WITH p (job_id, run_id, claim_id, fence, started_retry, state, retry_seconds) AS (
        SELECT job_id, run_id, claim_id, fence, started_retry, state, retry_seconds FROM given
    ),

    r AS MATERIALIZED (
        SELECT
            p.job_id, p.run_id, p.claim_id, p.fence, p.started_retry, p.state, r.Exclusive, r.Advances, r.SeenNextRunTime,
            -- An overlapping run that has begun goes on by itself, whatever becomes of it: its job takes the next slot.
            -- Its start does not lock the job, so its own row is locked here, before the job's.
            -- Nothing follows what somebody asks to cancel at this moment: both rows are locked before it is looked at.
            CASE
                WHEN p.retry_seconds IS NOT NULL AND r.Exclusive = 1 THEN CASE
                    WHEN (SELECT 1 FROM Jobs AS k WHERE k.Id = p.job_id FOR NO KEY UPDATE) IS NULL THEN NULL
                    WHEN (SELECT c.CancelAt FROM JobRuns AS c WHERE c.RunId = p.run_id FOR NO KEY UPDATE) IS NULL THEN p.retry_seconds
                END
                WHEN r.Exclusive = 1 THEN NULL
                WHEN (SELECT b.State FROM JobRuns AS b WHERE b.RunId = p.run_id FOR UPDATE) <> 'running' THEN p.retry_seconds
            END AS retry_seconds,
            CASE
                WHEN r.DelaySeconds IS NULL THEN r.PlannedAt
                ELSE greatest(statement_timestamp(), r.ScheduledFor) + r.DelaySeconds * interval '1 second'
            END AS NextSlot
        FROM p
        INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[p.run_id])
    )

    -- Frees the jobs of the runs in `r`.
    UPDATE Jobs SET
        LockedBy = NULL,
        LockedAt = NULL,
        ClaimedAt = NULL,
        LeaseEndsAt = NULL,
        PublishedAt = NULL,
        StartedRetry = NULL,
        Republishes = 0,
        RunId = NULL,
        ClaimId = NULL,
        Fence = Jobs.Fence + 1,
        LastRunTime = CASE WHEN r.state IN ('success', 'dispatched') THEN statement_timestamp() ELSE Jobs.LastRunTime END,
        -- Slots that came due until then came due while it ran.
        RanUntil = CASE WHEN r.retry_seconds IS NULL AND Jobs.StartedRetry IS NOT NULL THEN statement_timestamp() ELSE Jobs.RanUntil END,
        ReplaceAt = NULL,
        RetryAt = CASE
            WHEN r.Advances = 0 THEN Jobs.RetryAt
            WHEN r.retry_seconds IS NOT NULL THEN statement_timestamp() + r.retry_seconds * interval '1 second'
        END,
        RetryRunId = CASE
            WHEN r.Advances = 0 THEN Jobs.RetryRunId
            WHEN r.retry_seconds IS NOT NULL THEN r.run_id
        END,
        -- Another NextRunTime than the claim saw is an operator's, and wins.
        NextRunTime = CASE
            WHEN r.Advances = 1 AND r.retry_seconds IS NULL AND Jobs.NextRunTime IS NOT DISTINCT FROM r.SeenNextRunTime THEN r.NextSlot
            ELSE Jobs.NextRunTime
        END,
        Enabled = CASE
            WHEN
                r.Advances = 1 AND r.retry_seconds IS NULL AND Jobs.NextRunTime IS NOT DISTINCT FROM r.SeenNextRunTime
                AND r.NextSlot IS NULL
                THEN 0
            ELSE Jobs.Enabled
        END,
        DisabledReason = CASE
            WHEN
                r.Advances = 1 AND r.retry_seconds IS NULL AND Jobs.NextRunTime IS NOT DISTINCT FROM r.SeenNextRunTime
                AND r.NextSlot IS NULL
                THEN 'finished'
            ELSE Jobs.DisabledReason
        END
    FROM r
    WHERE
        Jobs.Id = ANY(ARRAY[r.job_id]) AND Jobs.RunId = r.run_id AND Jobs.ClaimId = r.claim_id AND Jobs.Fence = r.fence
        AND Jobs.LockedBy IS NOT NULL
        AND ($14 = 0 OR Jobs.StartedRetry IS NULL)
        AND (r.started_retry IS NULL OR r.Exclusive = 0 OR Jobs.StartedRetry = r.started_retry)
        AND ($15 = 0 OR (Jobs.Enabled = 1 AND Jobs.ReplaceAt <= statement_timestamp()))
        AND (
            $16 = 0
            -- Who found the lease ended before the run began cannot know that it began and ended again.
            OR (
                Jobs.LeaseEndsAt <= statement_timestamp()
                AND (Jobs.StartedRetry IS NULL OR r.state IN ('retry', 'dlq'))
            )
            -- An overlapping run that began was dispatched: where it is lost before its beat said so, its job is free.
            OR (r.Exclusive = 0 AND r.state IN ('retry', 'dlq'))
        )
    RETURNING
        Jobs.Id,
        CASE
            -- Whoever waits for a one-off finds it by its instant.
            WHEN Jobs.OneOff = 1 THEN 0
            WHEN
                Jobs.RetryAt IS NULL AND Jobs.NextRunTime = Jobs.PlannedAt AND Jobs.NextRunTime > statement_timestamp()
                AND Jobs.DeleteRequested = 0
                THEN 0
            ELSE 1
        END AS Unforeseen
),

p (
    run_id, claim_id, fence, started_retry, released, state, via, reason, retry_seconds, failures, lost_leases,
    error, traceback
) AS (
    SELECT
        g.run_id, g.claim_id, g.fence, g.started_retry,
        CASE WHEN g.job_id IN (SELECT Id FROM released) THEN 1 ELSE 0 END,
        g.state, g.via, g.reason, g.retry_seconds, g.failures, g.lost_leases, g.error, g.traceback
    FROM given AS g
),

closed AS (
    -- Writes how the runs in `p` ended.
    UPDATE JobRuns SET
        -- What somebody has asked to cancel ends as that, whoever ends it and however.
        State = CASE WHEN JobRuns.CancelAt IS NULL THEN p.state ELSE 'cancelled' END,
        PriorState = coalesce(p.via, JobRuns.State),
        Reason = CASE WHEN JobRuns.CancelAt IS NULL THEN p.reason ELSE JobRuns.Reason END,
        PublishedAt = CASE WHEN p.state = 'dispatched' THEN coalesce(JobRuns.PublishedAt, statement_timestamp()) ELSE JobRuns.PublishedAt END,
        FinishedAt = CASE WHEN p.state <> 'scheduled' OR JobRuns.CancelAt IS NOT NULL THEN statement_timestamp() END,
        DueAt = CASE
            WHEN
                p.retry_seconds IS NOT NULL AND JobRuns.CancelAt IS NULL
                AND (JobRuns.Advances = 0 OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running'))
                THEN statement_timestamp() + p.retry_seconds * interval '1 second'
        END,
        Advances = CASE
            WHEN p.state = 'dispatched' OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running') THEN 0
            ELSE JobRuns.Advances
        END,
        Failures = JobRuns.Failures + p.failures,
        LostLeases = JobRuns.LostLeases + p.lost_leases,
        HeldBy = NULL,
        LeaseEndsAt = NULL,
        Error = p.error,
        Traceback = p.traceback
    FROM p
    WHERE
        JobRuns.RunId = ANY(ARRAY[p.run_id]) AND JobRuns.ClaimId = p.claim_id AND JobRuns.Fence = p.fence
        AND (p.started_retry IS NULL OR JobRuns.StartedRetry = p.started_retry)
        AND (p.released = 1 OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running'))
        AND (
            (JobRuns.State = 'claimed' AND p.state IN ('scheduled', 'dispatched', 'skipped', 'cancelled'))
            -- What can never be published: only the beat that holds the claim knows that.
            OR ($14 = 1 AND JobRuns.State = 'claimed' AND p.state IN ('retry', 'dlq'))
            OR (
                JobRuns.State = 'running'
                -- Only its own worker may hand a run over that it has begun.
                AND (p.state <> 'dispatched' OR ($14 = 0 AND $16 = 0))
            )
        )
        -- A beat ends an overlapping run that has begun only where that run's own lease has ended.
        AND (
            ($14 = 0 AND $16 = 0) OR JobRuns.Exclusive = 1 OR JobRuns.State = 'claimed'
            OR ($16 = 1 AND p.state IN ('retry', 'dlq') AND JobRuns.LeaseEndsAt <= statement_timestamp())
        )
    RETURNING
        JobRuns.RunId,
        CASE
            WHEN JobRuns.Kind = 'one_off' AND JobRuns.DueAt IS NOT NULL THEN 1
            WHEN
                JobRuns.Exclusive = 0
                AND (SELECT d.DeleteRequested FROM Jobs AS d WHERE d.Id = ANY(ARRAY[JobRuns.JobId])) = 1
                THEN 1
            ELSE 0
        END AS Doomed
),

bumped AS (
    INSERT INTO Changes (Namespace, Counter)
    SELECT $17, 1
    WHERE EXISTS (SELECT 1 FROM released WHERE Unforeseen = 1) OR EXISTS (SELECT 1 FROM closed WHERE Doomed = 1)
    ON CONFLICT (Namespace) DO UPDATE SET Counter = Changes.Counter + 1
)

SELECT RunId FROM closed;

-- name: release_at_once
-- parameters: $14 only_unstarted flag, $15 only_replaceable flag, $16 only_ended flag, $17 namespace text(100)
-- rows: $1 job_id id, $2 run_id id, $3 claim_id id, $4 fence bigint, $5 started_retry int, $6 state word(20),
--   $7 via word(20), $8 reason text(400), $9 retry_seconds seconds, $10 failures int, $11 lost_leases int,
--   $12 error text, $13 traceback text
-- returns: RunId id
-- The same for a beat, which passes by what somebody keeps locked. It is told of the jobs that it has freed as well, by their
-- ids: an overlapping run that has begun goes on by itself.
WITH asked (
    job_id, run_id, claim_id, fence, started_retry, state, via, reason, retry_seconds, failures, lost_leases, error,
    traceback
) AS (SELECT * FROM unnest(
    $1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::integer[], $6::text[], $7::text[], $8::text[], $9::float8[],
    $10::integer[], $11::integer[], $12::text[], $13::text[]
)),

given AS MATERIALIZED (
    WITH p AS (SELECT * FROM asked)

    SELECT p.*
    FROM p
    INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[p.run_id])
    WHERE
        (SELECT 1 FROM Jobs AS j WHERE j.Id = p.job_id FOR NO KEY UPDATE SKIP LOCKED) = 1
        OR NOT EXISTS (SELECT 1 FROM Jobs AS k WHERE k.Id = p.job_id)
    -- All of them are looked at before the first is released: an overlapping run may be there twice, once for its job.
    ORDER BY p.run_id
    FOR NO KEY UPDATE OF r SKIP LOCKED
),

released AS (
    WITH p (job_id, run_id, claim_id, fence, started_retry, state, retry_seconds) AS (
        SELECT job_id, run_id, claim_id, fence, started_retry, state, retry_seconds FROM given
    ),

    r AS MATERIALIZED (
        SELECT
            p.job_id, p.run_id, p.claim_id, p.fence, p.started_retry, p.state, r.Exclusive, r.Advances, r.SeenNextRunTime,
            -- An overlapping run that has begun goes on by itself, whatever becomes of it: its job takes the next slot.
            -- Its start does not lock the job, so its own row is locked here, before the job's.
            -- Nothing follows what somebody asks to cancel at this moment: both rows are locked before it is looked at.
            CASE
                WHEN p.retry_seconds IS NOT NULL AND r.Exclusive = 1 THEN CASE
                    WHEN (SELECT 1 FROM Jobs AS k WHERE k.Id = p.job_id FOR NO KEY UPDATE) IS NULL THEN NULL
                    WHEN (SELECT c.CancelAt FROM JobRuns AS c WHERE c.RunId = p.run_id FOR NO KEY UPDATE) IS NULL THEN p.retry_seconds
                END
                WHEN r.Exclusive = 1 THEN NULL
                WHEN (SELECT b.State FROM JobRuns AS b WHERE b.RunId = p.run_id FOR UPDATE) <> 'running' THEN p.retry_seconds
            END AS retry_seconds,
            CASE
                WHEN r.DelaySeconds IS NULL THEN r.PlannedAt
                ELSE greatest(statement_timestamp(), r.ScheduledFor) + r.DelaySeconds * interval '1 second'
            END AS NextSlot
        FROM p
        INNER JOIN JobRuns AS r ON r.RunId = ANY(ARRAY[p.run_id])
    )

    -- Frees the jobs of the runs in `r`.
    UPDATE Jobs SET
        LockedBy = NULL,
        LockedAt = NULL,
        ClaimedAt = NULL,
        LeaseEndsAt = NULL,
        PublishedAt = NULL,
        StartedRetry = NULL,
        Republishes = 0,
        RunId = NULL,
        ClaimId = NULL,
        Fence = Jobs.Fence + 1,
        LastRunTime = CASE WHEN r.state IN ('success', 'dispatched') THEN statement_timestamp() ELSE Jobs.LastRunTime END,
        -- Slots that came due until then came due while it ran.
        RanUntil = CASE WHEN r.retry_seconds IS NULL AND Jobs.StartedRetry IS NOT NULL THEN statement_timestamp() ELSE Jobs.RanUntil END,
        ReplaceAt = NULL,
        RetryAt = CASE
            WHEN r.Advances = 0 THEN Jobs.RetryAt
            WHEN r.retry_seconds IS NOT NULL THEN statement_timestamp() + r.retry_seconds * interval '1 second'
        END,
        RetryRunId = CASE
            WHEN r.Advances = 0 THEN Jobs.RetryRunId
            WHEN r.retry_seconds IS NOT NULL THEN r.run_id
        END,
        -- Another NextRunTime than the claim saw is an operator's, and wins.
        NextRunTime = CASE
            WHEN r.Advances = 1 AND r.retry_seconds IS NULL AND Jobs.NextRunTime IS NOT DISTINCT FROM r.SeenNextRunTime THEN r.NextSlot
            ELSE Jobs.NextRunTime
        END,
        Enabled = CASE
            WHEN
                r.Advances = 1 AND r.retry_seconds IS NULL AND Jobs.NextRunTime IS NOT DISTINCT FROM r.SeenNextRunTime
                AND r.NextSlot IS NULL
                THEN 0
            ELSE Jobs.Enabled
        END,
        DisabledReason = CASE
            WHEN
                r.Advances = 1 AND r.retry_seconds IS NULL AND Jobs.NextRunTime IS NOT DISTINCT FROM r.SeenNextRunTime
                AND r.NextSlot IS NULL
                THEN 'finished'
            ELSE Jobs.DisabledReason
        END
    FROM r
    WHERE
        Jobs.Id = ANY(ARRAY[r.job_id]) AND Jobs.RunId = r.run_id AND Jobs.ClaimId = r.claim_id AND Jobs.Fence = r.fence
        AND Jobs.LockedBy IS NOT NULL
        AND ($14 = 0 OR Jobs.StartedRetry IS NULL)
        AND (r.started_retry IS NULL OR r.Exclusive = 0 OR Jobs.StartedRetry = r.started_retry)
        AND ($15 = 0 OR (Jobs.Enabled = 1 AND Jobs.ReplaceAt <= statement_timestamp()))
        AND (
            $16 = 0
            -- Who found the lease ended before the run began cannot know that it began and ended again.
            OR (
                Jobs.LeaseEndsAt <= statement_timestamp()
                AND (Jobs.StartedRetry IS NULL OR r.state IN ('retry', 'dlq'))
            )
            -- An overlapping run that began was dispatched: where it is lost before its beat said so, its job is free.
            OR (r.Exclusive = 0 AND r.state IN ('retry', 'dlq'))
        )
    RETURNING
        Jobs.Id,
        CASE
            -- Whoever waits for a one-off finds it by its instant.
            WHEN Jobs.OneOff = 1 THEN 0
            WHEN
                Jobs.RetryAt IS NULL AND Jobs.NextRunTime = Jobs.PlannedAt AND Jobs.NextRunTime > statement_timestamp()
                AND Jobs.DeleteRequested = 0
                THEN 0
            ELSE 1
        END AS Unforeseen
),

p (
    run_id, claim_id, fence, started_retry, released, state, via, reason, retry_seconds, failures, lost_leases,
    error, traceback
) AS (
    SELECT
        g.run_id, g.claim_id, g.fence, g.started_retry,
        CASE WHEN g.job_id IN (SELECT Id FROM released) THEN 1 ELSE 0 END,
        g.state, g.via, g.reason, g.retry_seconds, g.failures, g.lost_leases, g.error, g.traceback
    FROM given AS g
),

closed AS (
    -- Writes how the runs in `p` ended.
    UPDATE JobRuns SET
        -- What somebody has asked to cancel ends as that, whoever ends it and however.
        State = CASE WHEN JobRuns.CancelAt IS NULL THEN p.state ELSE 'cancelled' END,
        PriorState = coalesce(p.via, JobRuns.State),
        Reason = CASE WHEN JobRuns.CancelAt IS NULL THEN p.reason ELSE JobRuns.Reason END,
        PublishedAt = CASE WHEN p.state = 'dispatched' THEN coalesce(JobRuns.PublishedAt, statement_timestamp()) ELSE JobRuns.PublishedAt END,
        FinishedAt = CASE WHEN p.state <> 'scheduled' OR JobRuns.CancelAt IS NOT NULL THEN statement_timestamp() END,
        DueAt = CASE
            WHEN
                p.retry_seconds IS NOT NULL AND JobRuns.CancelAt IS NULL
                AND (JobRuns.Advances = 0 OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running'))
                THEN statement_timestamp() + p.retry_seconds * interval '1 second'
        END,
        Advances = CASE
            WHEN p.state = 'dispatched' OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running') THEN 0
            ELSE JobRuns.Advances
        END,
        Failures = JobRuns.Failures + p.failures,
        LostLeases = JobRuns.LostLeases + p.lost_leases,
        HeldBy = NULL,
        LeaseEndsAt = NULL,
        Error = p.error,
        Traceback = p.traceback
    FROM p
    WHERE
        JobRuns.RunId = ANY(ARRAY[p.run_id]) AND JobRuns.ClaimId = p.claim_id AND JobRuns.Fence = p.fence
        AND (p.started_retry IS NULL OR JobRuns.StartedRetry = p.started_retry)
        AND (p.released = 1 OR (JobRuns.Exclusive = 0 AND JobRuns.State = 'running'))
        AND (
            (JobRuns.State = 'claimed' AND p.state IN ('scheduled', 'dispatched', 'skipped', 'cancelled'))
            -- What can never be published: only the beat that holds the claim knows that.
            OR ($14 = 1 AND JobRuns.State = 'claimed' AND p.state IN ('retry', 'dlq'))
            OR (
                JobRuns.State = 'running'
                -- Only its own worker may hand a run over that it has begun.
                AND (p.state <> 'dispatched' OR ($14 = 0 AND $16 = 0))
            )
        )
        -- A beat ends an overlapping run that has begun only where that run's own lease has ended.
        AND (
            ($14 = 0 AND $16 = 0) OR JobRuns.Exclusive = 1 OR JobRuns.State = 'claimed'
            OR ($16 = 1 AND p.state IN ('retry', 'dlq') AND JobRuns.LeaseEndsAt <= statement_timestamp())
        )
    RETURNING
        JobRuns.RunId,
        CASE
            WHEN JobRuns.Kind = 'one_off' AND JobRuns.DueAt IS NOT NULL THEN 1
            WHEN
                JobRuns.Exclusive = 0
                AND (SELECT d.DeleteRequested FROM Jobs AS d WHERE d.Id = ANY(ARRAY[JobRuns.JobId])) = 1
                THEN 1
            ELSE 0
        END AS Doomed
),

bumped AS (
    INSERT INTO Changes (Namespace, Counter)
    SELECT $17, 1
    WHERE EXISTS (SELECT 1 FROM released WHERE Unforeseen = 1) OR EXISTS (SELECT 1 FROM closed WHERE Doomed = 1)
    ON CONFLICT (Namespace) DO UPDATE SET Counter = Changes.Counter + 1
)

SELECT RunId FROM closed
UNION ALL
SELECT Id FROM released;
