"""Deliberate protocol bugs.

Each a small patch of one condition, in every place where that condition stands.

The simulation must catch each of them; `make mutants` applies one after the other to a copy of the
package.
"""

from typing import NamedTuple

MIGRATION_SQL = "sql/sqlite/migrations/0002_foreign_shops.sql"
BEAT_SQL = "sql/source/beat.sql"
RUNS_SQL = "sql/source/runs.sql"
WORKER_SQL = "sql/source/worker.sql"
STARTS_SQL = "sql/source/sqlite/worker.sql"
LIFECYCLE = "celery_sqlbeat/model/lifecycle.py"
BYSTANDERS = "celery_sqlbeat/beat/republish_evidence.py"
EVIDENCE = "celery_sqlbeat/beat/evidence.py"
KEEPER = "celery_sqlbeat/worker/lease/manager.py"
CLAIM_BATCH = "celery_sqlbeat/store/sql/claim_batch.py"
DUE_WHERE = "j.Namespace = :namespace AND j.Enabled = 1 AND j.LockedBy IS NULL AND j.Quarantine IS NULL\n"
DUE_AT = "    AND coalesce(j.RetryAt, j.NextRunTime) <= :now"
AS_READ = "Jobs.Id = p.job_id AND Jobs.Fence = p.fence AND same(Jobs.Version, p.version)\n"
FREE = "AND Jobs.LockedBy IS NULL AND Jobs.Quarantine IS NULL\n"
ENABLED = "AND (Jobs.Enabled = 1 OR Jobs.DisabledReason = 'finished')\n"
SAME_SLOT = "AND (same(Jobs.NextRunTime, p.next_run_time) OR same(after(Jobs.NextRunTime, 0.0), p.next_run_time))\n"

_NO_TRIGGER = "CREATE TRIGGER Jobs_Deleted AFTER DELETE ON Jobs\nWHEN OLD.Fence < 0"
_OWN_NEXT = "same(Jobs.NextRunTime, r.SeenNextRunTime) THEN r.NextSlot"


class Patch(NamedTuple):
    """One place. The old text stands there exactly once."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One bug."""

    name: str
    patches: tuple[Patch, ...]


def _mutant(name: str, *places: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tuple(Patch(*place) for place in places))


MUTANTS = (
    _mutant(
        "heartbeat without the fence",
        (
            WORKER_SQL,
            "Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id AND Jobs.Fence = p.fence\n"
            "    AND Jobs.LockedBy IS NOT NULL\nRETURNING RunId;",
            "Jobs.Id = p.job_id AND Jobs.RunId = p.run_id AND Jobs.ClaimId = p.claim_id\n"
            "    AND Jobs.LockedBy IS NOT NULL\nRETURNING RunId;",
        ),
    ),
    _mutant(
        "a deadline that a worker moves back",
        (WORKER_SQL, "later(Jobs.LeaseEndsAt, after(:now, r.LeaseSeconds))", "after(:now, r.LeaseSeconds)"),
    ),
    _mutant(
        "outcome without the fence",
        (RUNS_SQL, "Jobs.ClaimId = r.claim_id AND Jobs.Fence = r.fence", "Jobs.ClaimId = r.claim_id"),
    ),
    _mutant(
        "a job that is defined again begins with its first fence",
        (MIGRATION_SQL, "CREATE TRIGGER Jobs_Deleted AFTER DELETE ON Jobs\nWHEN OLD.Fence > 0", _NO_TRIGGER),
    ),
    _mutant(
        "outcome without the claim id",
        (RUNS_SQL, "Jobs.ClaimId = r.claim_id AND Jobs.Fence = r.fence", "Jobs.Fence = r.fence"),
    ),
    _mutant(
        "start not one-time",
        (STARTS_SQL, "OR (Jobs.StartedRetry < r.celery_retries AND", "OR (Jobs.StartedRetry <= r.celery_retries AND"),
    ),
    _mutant(
        "start although another run holds the job",
        (
            STARTS_SQL,
            "r.State = 'dispatched' AND Jobs.LockedBy IS NULL AND Jobs.RunId IS NULL\n",
            "r.State = 'dispatched'\n",
        ),
    ),
    _mutant(
        "start of a run whose job is deleted",
        (
            STARTS_SQL,
            "OR EXISTS (SELECT 1 FROM Jobs AS j WHERE j.Id = JobRuns.JobId AND j.DeleteRequested = 0)",
            "OR 1 = 1",
        ),
    ),
    _mutant(
        "claim ignores LockedBy",
        (BEAT_SQL, DUE_WHERE + DUE_AT, DUE_WHERE.replace(" AND j.LockedBy IS NULL", "") + DUE_AT),
        (BEAT_SQL, AS_READ + FREE, AS_READ + "AND Jobs.Quarantine IS NULL\n"),
    ),
    _mutant("claim ignores RetryAt", (BEAT_SQL, DUE_AT, "    AND j.NextRunTime <= :now")),
    _mutant(
        "claim ignores Enabled",
        (BEAT_SQL, DUE_WHERE + DUE_AT, DUE_WHERE.replace(" AND j.Enabled = 1", "") + DUE_AT),
        (BEAT_SQL, AS_READ + FREE + ENABLED, AS_READ + FREE),
    ),
    _mutant(
        "reclaim without the ended-lease test",
        (RUNS_SQL, "Jobs.LeaseEndsAt <= :now\n            AND", "1 = 1\n            AND"),
        (BEAT_SQL, "    AND j.LeaseEndsAt <= :now\n", ""),
    ),
    _mutant(
        "mark-published moves a run backwards",
        (
            BEAT_SQL,
            "AND Jobs.LockedBy IS NOT NULL AND Jobs.StartedRetry IS NULL\nRETURNING RunId;",
            "AND Jobs.LockedBy IS NOT NULL\nRETURNING RunId;",
        ),
    ),
    _mutant(
        "give-back although started",
        (RUNS_SQL, "    AND (:only_unstarted = 0 OR Jobs.StartedRetry IS NULL)\n", ""),
    ),
    _mutant("fence not raised on reclaim", (RUNS_SQL, "Fence = Jobs.Fence + 1", "Fence = Jobs.Fence + 0")),
    _mutant(
        "release at terminate instead of at the task's end",
        (
            KEEPER,
            "            call(callback)\n",
            "            call(callback)\n            self._end(run_lease, _abandoned(run_lease), 0.0, None)\n",
        ),
    ),
    _mutant(
        "next slot from the heartbeat instead of the claim",
        (
            RUNS_SQL,
            _OWN_NEXT,
            "same(Jobs.NextRunTime, r.SeenNextRunTime) "
            "THEN after(r.NextSlot, 86400.0 * (julianday(Jobs.LockedAt) - julianday(Jobs.ClaimedAt)))",
        ),
    ),
    _mutant(
        "next slot from the end of the run under from_start",
        (
            RUNS_SQL,
            _OWN_NEXT,
            "same(Jobs.NextRunTime, r.SeenNextRunTime) "
            "THEN after(r.NextSlot, 86400.0 * (julianday(:now) - julianday(Jobs.ClaimedAt)))",
        ),
    ),
    _mutant(
        "next slot not later than the ended one after the clock stepped back",
        (
            "celery_sqlbeat/schedule/grid.py",
            "return self.after_skipped(now, slot), None",
            "return self.after_skipped(now, now), None",
        ),
    ),
    _mutant(
        "failure advances NextRunTime",
        (
            RUNS_SQL,
            "WHEN r.Advances = 1 AND r.retry_seconds IS NULL AND " + _OWN_NEXT,
            "WHEN r.Advances = 1 AND " + _OWN_NEXT,
        ),
    ),
    _mutant(
        "retries not bounded", (LIFECYCLE, "if failures <= max_retries else", "if failures <= max_retries + 1000 else")
    ),
    _mutant(
        "lost leases counted as failures",
        (LIFECYCLE, "return Ending(RETRY, reason, 0.0, 0, 1)", "return Ending(RETRY, reason, 0.0, 1, 0)"),
    ),
    _mutant(
        "republish under a new id",
        (
            "celery_sqlbeat/beat/reclaim.py",
            "        run_id=lease.run_id,",
            "        run_id=lease.claim_id,",
        ),
    ),
    _mutant(
        "republish unbounded",
        (LIFECYCLE, "if run.republishes >= MAX_REPUBLISHES:", "if run.republishes >= 1000:"),
    ),
    _mutant(
        "lease end counted from the reply instead of the sending",
        (
            "celery_sqlbeat/worker/lease/heartbeats.py",
            "run_lease.extended(sent_at)",
            "run_lease.extended(self._leases.clock())",
        ),
    ),
    _mutant(
        "host clock instead of server clock",
        (BEAT_SQL, "after(:now, :dispatch_seconds)", "after(datetime('now'), :dispatch_seconds)"),
    ),
    _mutant(
        "reclaim at once after an outage",
        (
            "celery_sqlbeat/beat/deadlines.py",
            "return self._clock() >= self._lost_at + self._patience",
            "return True",
        ),
    ),
    _mutant(
        "take claims from their beats at once after the clock was set",
        (
            "celery_sqlbeat/beat/deadlines.py",
            "return self._clock() >= self._lost_at + self._claim_seconds",
            "return True",
        ),
    ),
    _mutant(
        "claim by what was read, whatever an operator has changed since",
        (
            BEAT_SQL,
            AS_READ + FREE + ENABLED + SAME_SLOT,
            "Jobs.Id = p.job_id AND Jobs.Fence = p.fence\n" + FREE + ENABLED,
        ),
    ),
    _mutant(
        "claim an attempt in whatever state it is now",
        (
            CLAIM_BATCH,
            "*((waiting.run_id, waiting.state) if waiting else (None, None)),",
            "None, None,",
        ),
    ),
    _mutant(
        "slot record and claim in two transactions",
        (
            CLAIM_BATCH,
            "    answers = iter(session.fetch_together([call for call in calls if call.rows]))\n",
            "    def run(call: Call) -> Any:\n"
            "        answer = session.fetch(call.block, call.rows, **call.scalars)\n"
            "        if call.block == 'claim_jobs':\n"
            "            session.commit()\n"
            "            session.begin()\n"
            "        return answer\n\n"
            "    answers = iter([run(call) for call in calls if call.rows])\n",
        ),
    ),
    _mutant("a skipped gap not recorded", (CLAIM_BATCH, '"insert_gaps", gaps', '"insert_gaps", []')),
    _mutant(
        "retry message of self.retry() treated as a duplicate",
        (STARTS_SQL, "                OR (Jobs.StartedRetry < r.celery_retries AND r.CancelAt IS NULL)\n", ""),
    ),
    _mutant(
        "an ended slot may start",
        (
            STARTS_SQL,
            "JobRuns.State = 'dispatched' AND JobRuns.StartedAt IS NULL",
            "JobRuns.State IN ('dispatched', 'success')",
        ),
        (
            STARTS_SQL,
            "THEN JobRuns.PriorState ELSE JobRuns.State END",
            "THEN JobRuns.PriorState ELSE 'dispatched' END",
        ),
    ),
    # More than the protocol's own list.
    _mutant(
        "a body begins anew between two of Celery's own retries",
        (KEEPER, "    if run_lease.celery_retries:\n", "    if run_lease.celery_retries > 1000:\n"),
    ),
    _mutant(
        "a forged message starts a run",
        (STARTS_SQL, "        r.ClaimId = p.claim_id AND r.Namespace", "        r.Namespace"),
        (
            STARTS_SQL,
            "AND Jobs.RunId = r.run_id AND Jobs.ClaimId = r.claim_id\n            AND Jobs.Fence",
            "AND Jobs.RunId = r.run_id\n            AND Jobs.Fence",
        ),
        (
            STARTS_SQL,
            "JobRuns.RunId = p.run_id AND JobRuns.ClaimId = p.claim_id AND JobRuns.Namespace",
            "JobRuns.RunId = p.run_id AND JobRuns.Namespace",
        ),
    ),
    _mutant(
        "no task is stopped before its lease ends",
        (
            "celery_sqlbeat/worker/lease/batching.py",
            "return min(abandoned, lease_seconds - stop_timeout(lease_seconds))",
            "return 2 * lease_seconds",
        ),
    ),
    _mutant(
        "an abandoned claim is extended again",
        (
            "celery_sqlbeat/worker/lease/heartbeats.py",
            "held = [run_lease for run_lease in self._leases.all() if run_lease.is_extended]",
            "held = self._leases.all()",
        ),
        (
            "celery_sqlbeat/worker/lease/heartbeats.py",
            "due = [run_lease for run_lease in due if run_lease.is_extended]",
            "due = list(due)",
        ),
        (
            "celery_sqlbeat/worker/lease/heartbeats.py",
            "for run_lease in held if run_lease.is_extended)",
            "for run_lease in held)",
        ),
    ),
    _mutant(
        "a lock is taken for a stray although its run is there",
        (BEAT_SQL, "    AND NOT EXISTS (SELECT 1 FROM JobRuns AS r WHERE r.RunId = Jobs.RunId)\n", ""),
    ),
    _mutant(
        "an operator's next run is overwritten",
        (
            RUNS_SQL,
            "WHEN r.Advances = 1 AND r.retry_seconds IS NULL AND " + _OWN_NEXT,
            "WHEN r.Advances = 1 AND r.retry_seconds IS NULL THEN r.NextSlot",
        ),
    ),
    _mutant(
        "a job is deleted while it runs",
        (BEAT_SQL, "AND DeleteRequested = 1 AND LockedBy IS NULL", "AND DeleteRequested = 1"),
    ),
    _mutant(
        "an attempt forgets the failures before it",
        (
            "celery_sqlbeat/planning.py",
            "        failures=prior.failures,",
            "        failures=0,",
        ),
    ),
    _mutant(
        "a slot that runs is skipped when its job is resumed",
        (
            "celery_sqlbeat/api/reschedule.py",
            "return row.run_id is not None or row.retry_at is not None",
            "return False",
        ),
    ),
    _mutant(
        "what can never be published is no failure",
        (LIFECYCLE, "        reason=CANNOT_BE_PUBLISHED\n", "        reason=CANNOT_BE_PUBLISHED, failures=0\n"),
    ),
    _mutant(
        "what can never be published is closed as if it ran",
        (RUNS_SQL, "OR (:only_unstarted = 1 AND JobRuns.State = 'claimed' AND p.state IN ('retry', 'dlq'))", ""),
    ),
    _mutant(
        "a job that skips runs what came due during its run",
        (
            "celery_sqlbeat/planning.py",
            "if definition.policy.overlap == SKIP and ran_until is not None",
            "if not definition and ran_until is not None",
        ),
    ),
    _mutant(
        "what waits in the queue is replaced",
        (
            "celery_sqlbeat/planning.py",
            "        if run.started:\n            return True, None",
            "        return True, None",
        ),
    ),
    _mutant(
        "a result that cannot be stored is a failure",
        (
            "celery_sqlbeat/worker/results.py",
            "    if end is TaskResult.UNSTORED:\n        return after_success(end.value, error)\n",
            "",
        ),
    ),
    _mutant(
        "an overdue body is no failure of its slot",
        (KEEPER, "ending = self._failed(run_lease, _overdue(run_lease))", "ending = _abandoned(run_lease)"),
    ),
    _mutant(
        "a backoff without a bound",
        (LIFECYCLE, "return random() * min(bound, self.longest)", "return 2 * random() * bound"),
    ),
    _mutant(
        "a body may take longer than its max_runtime",
        (KEEPER, "elif run_lease.phase is Phase.BEGUN and now >= run_lease.overdue_at:", "elif now < 0:"),
    ),
    _mutant(
        "a copy goes out on a look older than its message",
        (BYSTANDERS, "if count is None or not self._is_younger(count, lease, sent_at):", "if count is None:"),
    ),
    _mutant(
        "a copy goes out as its message is taken for new",
        (BYSTANDERS, "count, (counted_at - out_since).total_seconds(), counted_at)", "count, 0.0, counted_at)"),
    ),
    _mutant(
        "a copy goes out although a worker was seen that is gone",
        (BYSTANDERS, "if seen_at >= out_since or (is_remembered", "if out_since is None or (is_remembered"),
    ),
    _mutant(
        "a copy goes out on the word of dead workers",
        (EVIDENCE, "in earlier and node.heartbeat_at != earlier[node.node_id]:", "in earlier:"),
    ),
    _mutant(
        "a copy goes out although a worker without leases answers",
        (EVIDENCE, "if any(worker.extension is None and queue", "if any(worker.extension is False and queue"),
    ),
    _mutant(
        "a copy goes out where some keep leases",
        (EVIDENCE, "    if consumers <= heard:\n", "    if heard or not consumers:\n"),
        (EVIDENCE, "if not able or len(unknown) <= elsewhere:", "if True:"),
    ),
    _mutant(
        "a copy goes out since a worker that is known by its name stands for one that is not",
        (EVIDENCE, "if consumed[node.node_id] and not nodes.is_named(node.details)", "if consumed[node.node_id]"),
    ),
    _mutant(
        "a copy goes out although that is forbidden",
        ("celery_sqlbeat/beat/build.py", 'settings.republish == "auto"', "bool(settings.republish)"),
    ),
    _mutant(
        "what a strategy has taken is sent again",
        (LIFECYCLE, "return Ending(DISPATCHED, LEFT_TO_STRATEGY)", "return released(LEFT_TO_STRATEGY)"),
    ),
    _mutant(
        "what may not be copied is never given up",
        (
            "celery_sqlbeat/beat/reclaim.py",
            "        if may is None:\n            return None\n",
            "        if may in (None, RepublishAnswer.WAIT):\n            return None\n",
        ),
    ),
)
