-- What shops need that run plain workers, several apps and several releases beside each other.

-- A worker: the names of the tasks that it knows, a JSON list. Beats and workers: what else others should know of
-- them, a JSON object with a key for each concern.
ALTER TABLE Nodes ADD COLUMN Tasks text;

ALTER TABLE Nodes ADD COLUMN Details text;

-- The names of the entries of this beat_schedule, a JSON list.
ALTER TABLE Releases ADD COLUMN Entries text;

-- No fence of a job that was deleted is above this one: a job of the same name goes on from here.
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

CREATE INDEX JobRuns_Beside ON JobRuns (JobId, State) WHERE MaxParallel IS NOT NULL;
