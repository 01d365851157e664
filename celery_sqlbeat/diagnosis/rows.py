"""Rows that cannot run: set aside, or with a task that nobody has."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from celery_sqlbeat.beat.django_rows import REMEDY as DJANGO_REMEDY
from celery_sqlbeat.diagnosis.facts import Facts, Ground, Wire
from celery_sqlbeat.diagnosis.finding import Finding, listed
from celery_sqlbeat.handle.knowing import known_in
from celery_sqlbeat.knowledge import nobody_has

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
    if facts.ground.left_rows is not None:
        yield Finding("error", "django-celery-beat", str(facts.ground.left_rows), DJANGO_REMEDY)
    for run in facts.ground.long_runs[:MOST_ROWS]:
        yield Finding("warning", "long-run", str(run), run.remedy)
    for job in facts.ground.slow_jobs[:MOST_ROWS]:
        remedy = f"if that is not meant, give it a longer period or another policy: jobs put {job.job_name} --overlap"
        yield Finding("note" if job.is_chosen else "warning", "slow-job", str(job), remedy)
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
    yield from _unknown_in_queue(facts.ground, facts.wire, unknown)


def _unknown_in_queue(ground: Ground, wire: Wire | None, told: Collection[str]) -> Iterator[Finding]:
    """Tasks that some have, but none of those who consume the queue; a worker without the package may have it."""
    plain = {queue for each in (wire and wire.roll) or () if each.extension is None for queue in each.queues}
    lost: dict[tuple[str, str], list[str]] = {}
    for job in ground.jobs.seen:
        is_certain = job.queue is not None and job.queue not in plain and job.task not in told
        if is_certain and nobody_has(job.task, known_in(ground.knowers, job.queue)):
            lost.setdefault((job.task, str(job.queue)), []).append(job.name)
    for (task, queue), names in sorted(lost.items()):
        yield Finding(
            "error",
            "tasks",
            f"no worker of queue {queue!r} knows the task {task} of {listed(names)}: nothing is sent",
            "deploy those workers, or correct the task's queue (task_routes, or the options of these jobs)",
        )
