"""Check the jobs: entries of the code, rows, and the apps and releases of a namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import groupby

from celery_sqlbeat.api.status import tasks_of_queue
from celery_sqlbeat.beat.other_schedulers import IMPORT_THE_ROWS as DJANGO_REMEDY
from celery_sqlbeat.beat.other_schedulers import STOP_THE_OTHER_BEAT
from celery_sqlbeat.beat_schedule.sync import TASK_IDS, other_apps, other_releases
from celery_sqlbeat.checks.facts import BrokerFacts, DatabaseFacts, Facts, Finding, listed
from celery_sqlbeat.errors import KEY_REMEDY, LOCKED
from celery_sqlbeat.model.nodes import nobody_has

MOST_ROWS = 20  # named one by one; a pattern is clear after so many
AS_STOCK = 'sqlbeat_policies = {"*": {"overlap": "allow", "max_retries": 0}}'


def code_findings(facts: Facts) -> Iterator[Finding]:
    """Report entries of the code that cannot run, and what differs from stock beat."""
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
    jobs = facts.database.jobs.enabled if facts.database is not None else ()
    replaced = sorted({*facts.code.with_task_id, *(job.name for job in jobs if job.has_task_id)})
    if replaced:
        yield Finding(
            "note",
            "stock",
            f"other than under stock beat, the task_id in the options of these is replaced: {listed(replaced)}",
            f"leave it out: {TASK_IDS}",
        )


def row_findings(facts: Facts) -> Iterator[Finding]:
    """Report what is wrong with the jobs of the table."""
    if facts.database is None:
        return
    jobs = facts.database.jobs
    for name, reason in list(jobs.quarantined.items())[:MOST_ROWS]:
        yield Finding(
            "error",
            "quarantine",
            f"job {name} is set aside: {reason}",
            f"correct its row, or define it anew with celery -A app sqlbeat jobs put {name}",
        )
    if len(jobs.quarantined) > MOST_ROWS:
        more = len(jobs.quarantined) - MOST_ROWS
        yield Finding("error", "quarantine", f"{more} more jobs are set aside", "correct these first, and check again")
    if jobs.locked:
        yield Finding("error", "payload-key", f"{listed([*jobs.locked])}: {LOCKED}", KEY_REMEDY)
    yield from _refused(facts)
    yield from _unknown_tasks(facts)
    if facts.database.left_rows is not None:
        yield Finding("error", "django-celery-beat", str(facts.database.left_rows), DJANGO_REMEDY)
    for run in facts.database.long_runs[:MOST_ROWS]:
        yield Finding("warning", "long-run", str(run), run.remedy)
    for job in facts.database.slow_jobs[:MOST_ROWS]:
        remedy = f"if that is not meant, give it a longer period or another policy: jobs put {job.job_name} --overlap"
        yield Finding("note" if job.is_chosen else "warning", "slow-job", str(job), remedy)
    if not jobs.is_complete:
        yield Finding(
            "note", "jobs", f"only the first {len(jobs.enabled)} jobs were checked", "give the check more --timeout"
        )


def _refused(facts: Facts) -> Iterator[Finding]:
    refusals = dict(facts.code.refusals) if facts.code is not None else {}
    refusals.update(
        {job.name: job.refusal for job in facts.database.jobs.enabled if job.refusal} if facts.database else {}
    )
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
    refused = facts.database.refused if facts.database is not None else {}
    for name, says in refused.items():  # a beat reports a few
        if name not in refusals:
            yield Finding("error", "refused", says, f"see celery -A app sqlbeat explain {name}, and the beats' logs")


def _unknown_tasks(facts: Facts) -> Iterator[Finding]:
    if facts.database is None or facts.code is None:
        return
    known = facts.code.tasks | ((facts.broker and facts.broker.registered_tasks) or frozenset())
    unknown: dict[str, list[str]] = {}
    for job in facts.database.jobs.enabled:
        if job.task not in known:
            unknown.setdefault(job.task, []).append(job.name)
    for task, names in sorted(unknown.items()):
        yield Finding(
            "error",
            "tasks",
            f"nobody has the task {task} of {listed(names)}",
            "correct the task's name, or let app and workers import its module (imports, include, autodiscover_tasks)",
        )
    yield from _unknown_in_queue(facts.database, facts.broker, unknown)


def _unknown_in_queue(
    database: DatabaseFacts, broker: BrokerFacts | None, reported: Collection[str]
) -> Iterator[Finding]:
    """Report tasks that no worker of their queue has; a worker without the package may have any."""
    answers = (broker and broker.answers) or ()
    plain = {queue for answer in answers if answer.extension is None for queue in answer.queues}
    lost: dict[tuple[str, str], list[str]] = {}
    for job in database.jobs.enabled:
        is_certain = job.queue is not None and job.queue not in plain and job.task not in reported
        if is_certain and nobody_has(job.task, tasks_of_queue(database.worker_tasks, job.queue)):
            lost.setdefault((job.task, str(job.queue)), []).append(job.name)
    for (task, queue), names in sorted(lost.items()):
        yield Finding(
            "error",
            "tasks",
            f"no worker of queue {queue!r} knows the task {task} of {listed(names)}: nothing is sent",
            "deploy those workers, or correct the task's queue (task_routes, or the options of these jobs)",
        )


def app_findings(facts: Facts) -> Iterator[Finding]:
    """Report apps and releases that disturb each other in this namespace."""
    if facts.database is None:
        return
    yield from _neighbours(facts, facts.database)
    yield from _collisions(facts, facts.database)
    yield from _orphans(facts, facts.database)
    yield from _mixed_queues(facts, facts.database)
    for doubled in facts.database.doubled[:MOST_ROWS]:
        yield Finding("error", "scheduler", str(doubled), STOP_THE_OTHER_BEAT)


def _neighbours(facts: Facts, database: DatabaseFacts) -> Iterator[Finding]:
    namespace, living = facts.settings.namespace, database.living
    owners = sorted({release.owner for release in living})
    if owners:
        own = facts.code.owner if facts.code is not None and facts.code.owner in owners else owners[0]
        for problem in other_apps(namespace, own, living):
            yield Finding("error", "apps", problem.says, problem.remedy)
    for owner, releases in groupby(living, key=lambda release: release.owner):  # sorted by owner
        known = [release for release in releases if release.first_seen_at is not None and release.entries is not None]
        newest = max(known, key=lambda release: str(release.first_seen_at), default=None)
        if newest is not None and newest.entries is not None:
            for problem in other_releases(namespace, owner, newest.release, newest.entries, living):
                yield Finding("error", "releases", problem.says, problem.remedy)


def _collisions(facts: Facts, database: DatabaseFacts) -> Iterator[Finding]:
    if facts.code is None:
        return
    own, entries = facts.code.owner, facts.code.policies.keys()
    taken = [job for job in database.jobs.enabled if job.name in entries and job.owner not in (None, own)]
    if taken:
        owner = taken[0].owner
        yield Finding(
            "error",
            "apps",
            f"entries of {own} are left out, because jobs of {owner} have their names: "
            f"{listed([job.name for job in taken])}",
            f'give {own} a namespace of its own: sqlbeat_namespace = "{own}"; or, if {owner} was its former name: '
            f"celery -A app sqlbeat jobs adopt --owner {owner}",
        )


def _orphans(facts: Facts, database: DatabaseFacts) -> Iterator[Finding]:
    living = {release.owner for release in database.living}
    if not living:
        return  # no beat at all, which another finding says
    jobs = Counter(job.owner for job in database.jobs.enabled if job.owner is not None and job.owner not in living)
    for owner, count in sorted(jobs.items()):
        yield Finding(
            "error",
            "apps",
            f"{count} enabled jobs belong to the app {owner}, which has no living beat: nobody claims them",
            f"start a beat of {owner}; if it was renamed: celery -A app sqlbeat jobs adopt --owner {owner}",
        )


def _mixed_queues(facts: Facts, database: DatabaseFacts) -> Iterator[Finding]:
    """Report queues whose workers lack each other's tasks, which no deployment explains."""
    tasks_by_queue: dict[str, set[str]] = {}
    for job in database.jobs.enabled:
        if job.queue is not None:
            tasks_by_queue.setdefault(job.queue, set()).add(job.task)
    for queue, tasks in sorted(tasks_by_queue.items()):
        known = [tasks & names for names in tasks_of_queue(database.worker_tasks, queue) if names is not None]
        pair = next(((some, others) for some in known for others in known if some - others and others - some), None)
        if pair is not None:
            some, others = pair
            name = facts.code.owner if facts.code is not None and facts.code.owner else "shop"
            yield Finding(
                "error",
                "apps",
                f"workers of queue {queue!r} get each other's tasks: some know {listed(sorted(some - others))}, others "
                f"{listed(sorted(others - some))}",
                f'give each app a queue and a namespace of its own: task_default_queue = "{name}" and '
                f'sqlbeat_namespace = "{name}"',
            )
