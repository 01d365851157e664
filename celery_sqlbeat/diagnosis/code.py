"""The beat_schedule of this app: entries that cannot run, and what differs from stock beat."""

from __future__ import annotations

from collections.abc import Iterator

from celery_sqlbeat.beat.importing import TASK_IDS
from celery_sqlbeat.diagnosis.facts import Facts
from celery_sqlbeat.diagnosis.finding import Finding, listed

AS_STOCK = 'sqlbeat_policies = {"*": {"overlap": "allow", "max_retries": 0}}'


def findings(facts: Facts) -> Iterator[Finding]:
    """What is wrong with the code's own entries, and what is other than under stock beat."""
    if facts.code is None:
        return
    for problem in facts.code.problems:
        yield Finding(
            "error", "beat-schedule", f"entry {problem.name} is left out: {problem.reason}", "correct the entry"
        )
    waits = [name for name, policy in facts.code.policies.items() if policy.overlap != "allow"]
    retries = [name for name, policy in facts.code.policies.items() if policy.max_retries != 0]
    if waits:
        yield Finding(
            "note",
            "stock",
            f"other than under stock beat, these do not start while their last run goes on (overlap): {listed(waits)}",
            f"to have it as before, set {AS_STOCK}",
        )
    if retries:
        yield Finding(
            "note",
            "stock",
            f"other than under stock beat, these are tried again when they fail (max_retries): {listed(retries)}",
            f"to have it as before, set {AS_STOCK}",
        )
    jobs = facts.ground.jobs.seen if facts.ground is not None else ()
    replaced = sorted({*facts.code.with_task_id, *(job.name for job in jobs if job.has_task_id)})
    if replaced:
        yield Finding(
            "note",
            "stock",
            f"other than under stock beat, the task_id in the options of these is replaced: {listed(replaced)}",
            f"leave it out: {TASK_IDS}",
        )
