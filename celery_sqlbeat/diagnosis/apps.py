"""Apps and releases beside each other in one namespace: whose jobs collide, and whose nobody claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from celery_sqlbeat.beat.neighbours import other_apps, other_releases
from celery_sqlbeat.beat.strangers import REMEDY
from celery_sqlbeat.diagnosis.facts import Facts, Ground
from celery_sqlbeat.diagnosis.finding import Finding, listed
from celery_sqlbeat.handle.knowing import known_in

MOST_JOBS = 20  # that are named one by one


def findings(facts: Facts) -> Iterator[Finding]:
    """Several apps or several schedules in this namespace."""
    if facts.ground is None:
        return
    yield from _neighbours(facts, facts.ground)
    yield from _collisions(facts, facts.ground)
    yield from _orphans(facts, facts.ground)
    yield from _mixed_queues(facts, facts.ground)
    for one in facts.ground.doubled[:MOST_JOBS]:
        yield Finding("error", "scheduler", str(one), REMEDY)


def _neighbours(facts: Facts, ground: Ground) -> Iterator[Finding]:
    namespace, living = facts.settings.namespace, ground.living
    owners = sorted({one.owner for one in living})
    if owners:
        own = facts.code.owner if facts.code is not None and facts.code.owner in owners else owners[0]
        for problem in other_apps(namespace, own, living):
            yield Finding("error", "apps", problem.says, problem.remedy)
    for owner, each in groupby(living, key=lambda one: one.owner):  # they come by owner
        known = [one for one in each if one.first_seen_at is not None and one.entries is not None]
        newest = max(known, key=lambda one: str(one.first_seen_at), default=None)
        if newest is not None and newest.entries is not None:
            for problem in other_releases(namespace, owner, newest.release, newest.entries, living):
                yield Finding("error", "releases", problem.says, problem.remedy)


def _collisions(facts: Facts, ground: Ground) -> Iterator[Finding]:
    if facts.code is None:
        return
    own, entries = facts.code.owner, facts.code.policies.keys()
    taken = [job for job in ground.jobs.seen if job.name in entries and job.owner not in (None, own)]
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


def _orphans(facts: Facts, ground: Ground) -> Iterator[Finding]:
    living = {one.owner for one in ground.living}
    if not living:
        return  # no beat at all, which another finding says
    jobs = Counter(job.owner for job in ground.jobs.seen if job.owner is not None and job.owner not in living)
    for owner, count in sorted(jobs.items()):
        yield Finding(
            "error",
            "apps",
            f"{count} enabled jobs belong to the app {owner}, which has no living beat: nobody claims them",
            f"start a beat of {owner}; if it was renamed: celery -A app sqlbeat jobs adopt --owner {owner}",
        )


def _mixed_queues(facts: Facts, ground: Ground) -> Iterator[Finding]:
    """Queues whose workers lack each other's scheduled tasks: a deployment adds or removes, it rarely does both."""
    wanted: dict[str, set[str]] = {}
    for job in ground.jobs.seen:
        if job.queue is not None:
            wanted.setdefault(job.queue, set()).add(job.task)
    for queue, tasks in sorted(wanted.items()):
        known = [tasks & each for each in known_in(ground.knowers, queue) if each is not None]
        pair = next(((one, other) for one in known for other in known if one - other and other - one), None)
        if pair is not None:
            one, other = pair
            name = facts.code.owner if facts.code is not None and facts.code.owner else "shop"
            yield Finding(
                "error",
                "apps",
                f"workers of queue {queue!r} get each other's tasks: some know {listed(sorted(one - other))}, others "
                f"{listed(sorted(other - one))}",
                f'give each app a queue and a namespace of its own: task_default_queue = "{name}" and '
                f'sqlbeat_namespace = "{name}"',
            )
