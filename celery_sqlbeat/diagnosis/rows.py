"""Rows that cannot run: set aside, or with a task that nobody has."""

from __future__ import annotations

from collections.abc import Iterator

from celery_sqlbeat.diagnosis.facts import Facts
from celery_sqlbeat.diagnosis.finding import Finding, listed

MOST_ROWS = 20  # told one by one; after so many of them the pattern is clear


def findings(facts: Facts) -> Iterator[Finding]:
    """What is wrong with the jobs of the table."""
    if facts.ground is None:
        return
    jobs = facts.ground.jobs
    for name, reason in list(jobs.set_aside.items())[:MOST_ROWS]:
        yield Finding(
            "error",
            "quarantine",
            f"job {name} is set aside: {reason}",
            f"correct its row, or define it anew with celery -A app sqlbeat jobs put {name}",
        )
    if len(jobs.set_aside) > MOST_ROWS:
        more = len(jobs.set_aside) - MOST_ROWS
        yield Finding("error", "quarantine", f"{more} more jobs are set aside", "correct these first, and check again")
    yield from _refused(facts)
    yield from _unknown_tasks(facts)
    for run in facts.ground.long_runs[:MOST_ROWS]:
        yield Finding("warning", "long-run", str(run), run.remedy)
    if not jobs.is_whole:
        yield Finding(
            "note", "jobs", f"only the first {len(jobs.seen)} jobs were looked at", "give the check more --timeout"
        )


def _refused(facts: Facts) -> Iterator[Finding]:
    refusals = dict(facts.code.refusals) if facts.code is not None else {}
    refusals.update({job.name: job.refusal for job in facts.ground.jobs.seen if job.refusal} if facts.ground else {})
    for name, reason in list(refusals.items())[:MOST_ROWS]:
        yield Finding(
            "error",
            "publish",
            f"job {name} can never be published: {reason}",
            f"correct its entry in the beat_schedule, or define it anew with celery -A app sqlbeat jobs put {name}",
        )
    if len(refusals) > MOST_ROWS:
        more = len(refusals) - MOST_ROWS
        yield Finding("error", "publish", f"{more} more jobs can never be published", "correct these first")
    lately = {name: says for name, says in facts.ground.refused.items() if name not in refusals} if facts.ground else {}
    for name, says in lately.items():  # a beat tells of a few
        yield Finding("error", "refused", says, f"see celery -A app sqlbeat explain {name}, and the beats' logs")


def _unknown_tasks(facts: Facts) -> Iterator[Finding]:
    if facts.ground is None or facts.code is None:
        return
    known = facts.code.tasks | ((facts.wire and facts.wire.worker_tasks) or frozenset())
    unknown: dict[str, list[str]] = {}
    for job in facts.ground.jobs.seen:
        if job.task not in known:
            unknown.setdefault(job.task, []).append(job.name)
    for task, names in sorted(unknown.items()):
        yield Finding(
            "error",
            "tasks",
            f"nobody has the task {task} of {listed(names)}",
            "correct the task's name, or let app and workers import its module (imports, include, autodiscover_tasks)",
        )
