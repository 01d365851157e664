"""Bugs in one-offs, keys, cancellation, locks and pools, planted where databases share the text.

`make mutants DATABASE=sqlite NAME=...` plants them in SQLite, and what stands in Python in all.
"""

from tests.simulation.mutants import Mutant, Patch

_ONE_OFFS, _CANCEL, _LOCKS = "sql/source/one_offs.sql", "sql/source/cancel.sql", "sql/source/locks.sql"
_RUNS, _SQLITE_RUNS, _BEAT = "sql/source/runs.sql", "sql/source/sqlite/runs.sql", "sql/source/beat.sql"
_PLANNING = "celery_sqlbeat/planning.py"
_CANCELLING = "celery_sqlbeat/store/sql/cancel.py"
_PLACES, _WORKERS_PLACES = "celery_sqlbeat/store/places.py", "celery_sqlbeat/worker/lease/places.py"


def _mutant(name: str, *places: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tuple(Patch(*place) for place in places))


BUGS = (
    _mutant(
        "a key that lives is taken over",
        (_ONE_OFFS, "WHERE IdempotencyKeys.ExpiresAt <= :now;", "WHERE true;"),
    ),
    _mutant(
        "a key that has ended stands for its old run",
        (_ONE_OFFS, "WHERE IdempotencyKeys.ExpiresAt <= :now;", "WHERE false;"),
    ),
    _mutant(
        "keys of all namespaces are one",
        (_ONE_OFFS, "k.Namespace = :namespace AND k.KeyText = key(p.key_text)", "k.KeyText = key(p.key_text)"),
    ),
    _mutant(
        "the submitter's claim has no end",
        (
            _ONE_OFFS,
            "CASE WHEN p.claim_id IS NOT NULL THEN after(:now, :dispatch_seconds) END",
            "CASE WHEN p.claim_id IS NOT NULL THEN after(:now, 1000000.0) END",
        ),
    ),
    _mutant(
        "the submitter's claim has the fence of none",
        (_ONE_OFFS, "CASE WHEN p.claim_id IS NULL THEN 0 ELSE 1 END,\n    CASE", "0,\n    CASE"),
    ),
    _mutant(
        "a one-off is due at once",
        (_ONE_OFFS, "later(:now, coalesce(p.due_at, :now)), p.run_id,", ":now, p.run_id,"),
    ),
    _mutant(
        "clean-up deletes keys that live",
        (_ONE_OFFS, "k.Namespace = :namespace AND k.ExpiresAt <= :now\n", "k.Namespace = :namespace\n"),
        (_ONE_OFFS, "(SELECT ended.KeyText FROM ended) AND ExpiresAt <= :now", "(SELECT ended.KeyText FROM ended)"),
    ),
    _mutant(
        "a later try of a one-off is a new run",
        (_PLANNING, "same_run=same_attempt or prior.kind == ONE_OFF", "same_run=same_attempt"),
    ),
    _mutant(
        "a later try of a one-off is called the first",
        (_BEAT, "    Attempt = p.attempt,\n", ""),
    ),
    _mutant(
        "a one-off may overlap itself",
        (_PLANNING, "policy.overlap == ALLOW and not is_one_off", "policy.overlap == ALLOW"),
    ),
    _mutant(
        "a run that was asked to stop succeeds",
        (_RUNS, "CASE WHEN JobRuns.CancelAt IS NULL THEN p.state ELSE 'cancelled' END", "p.state"),
    ),
    _mutant(
        "a cancelled run is tried again",
        (
            _SQLITE_RUNS,
            "(r.Exclusive = 1 OR r.State <> 'running') AND r.CancelAt IS NULL",
            "(r.Exclusive = 1 OR r.State <> 'running')",
        ),
    ),
    _mutant(
        "a job does not go on after its waiting run was cancelled",
        (
            _CANCEL,
            "RetryAt = CASE WHEN Jobs.RetryRunId = r.run_id THEN NULL ELSE Jobs.RetryAt END",
            "RetryAt = Jobs.RetryAt",
        ),
    ),
    _mutant(
        "the end of a run is overwritten by its cancellation",
        (
            _CANCEL,
            "JobRuns.State = p.state AND JobRuns.Fence = p.fence\nRETURNING",
            "JobRuns.Fence = p.fence\nRETURNING",
        ),
        (_CANCELLING, "return self.state not in (SCHEDULED, CLAIMED, RUNNING)", "return False"),
    ),
    _mutant(
        "nobody tells the worker that its run was cancelled",
        (_CANCEL, "WHERE r.CancelAt IS NOT NULL;", "WHERE r.CancelAt IS NULL;"),
    ),
    _mutant(
        "a lock is taken from its holder",
        (_LOCKS, "WHERE Locks.LeaseEndsAt IS NULL OR Locks.LeaseEndsAt <= :now OR", "WHERE true OR"),
    ),
    _mutant(
        "the fence of a lock stands still",
        (_LOCKS, "Locks.Fence + CASE WHEN Locks.Token = excluded.Token THEN 0 ELSE 1 END", "Locks.Fence"),
    ),
    _mutant(
        "anybody frees a lock",
        (
            _LOCKS,
            "Locks.LockKey = p.lock_key AND Locks.Token = p.token\n    AND Locks.LeaseEndsAt IS NOT NULL",
            "Locks.LockKey = p.lock_key\n    AND Locks.LeaseEndsAt IS NOT NULL",
        ),
    ),
    _mutant(
        "a place of a pool counts as taken whoever has it",
        (_PLACES, "elif lock.token == token:", "elif lock.token:"),
    ),
    _mutant(
        "the place of a run is never freed",
        (_WORKERS_PLACES, "            self._store.release_locks([place])\n", "            pass\n"),
    ),
    _mutant(
        "the place of a run ends with its first lease",
        (
            _WORKERS_PLACES,
            "        if not held:\n            return\n        try:\n            kept",
            "        if held:\n            return\n        try:\n            kept",
        ),
    ),
)
"""In SQLite; what is in Python is in all."""
