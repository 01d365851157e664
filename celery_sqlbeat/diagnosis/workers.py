"""Workers that keep no lease here: without the extension, on another store or namespace; and queues without any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery_sqlbeat.brokerage import differ_for_certain
from celery_sqlbeat.diagnosis.facts import Facts, Ground, Wire
from celery_sqlbeat.diagnosis.finding import Finding, listed
from celery_sqlbeat.roster import Answer


def findings(facts: Facts) -> Iterator[Finding]:
    """What is wrong with the workers and the beats."""
    if facts.wire is not None and facts.wire.roll is not None:
        yield from _strangers(facts, facts.wire.roll)
    if facts.ground is not None:
        yield from _absent(facts.ground, facts.wire)
        yield from _unleasable(facts.ground)
        if facts.wire is not None:
            yield from _elsewhere(facts.ground, facts.wire)


def _strangers(facts: Facts, roll: Sequence[Answer]) -> Iterator[Finding]:
    roll = [each for each in roll if _serves(facts, each)]
    plain = [each.name for each in roll if each.extension is None]
    if plain:
        yield Finding(
            "error",
            "extension",
            f"workers without celery-sqlbeat, whose runs have no lease: {listed(plain)}",
            "install celery-sqlbeat in their environment and restart them; an embedded worker calls "
            "celery_sqlbeat.setup(app)",
        )
    ours = [each for each in roll if each.extension is not None]
    namespace = facts.settings.namespace
    other = [
        f"{each.name} ({_of(each, 'namespace')})" for each in ours if _of(each, "namespace") not in ("", namespace)
    ]
    if other:
        yield Finding(
            "error",
            "namespace",
            f"workers of another namespace than {namespace!r} on this broker: {listed(other)}",
            "give them the same sqlbeat_namespace, or queues or a broker of their own",
        )
    blind = [each.name for each in ours if not _of(each, "store")]
    if blind:
        yield Finding(
            "error",
            "store",
            f"workers that have not reached their database: {listed(blind)}",
            "see their logs; they need the same sqlbeat_database_url as the beats",
        )
    if facts.ground is None:
        return
    astray = [each.name for each in ours if _of(each, "store") not in ("", facts.ground.store)]
    if astray:
        yield Finding(
            "error",
            "store",
            f"workers on another database than this app's: {listed(astray)}",
            "give them the same sqlbeat_database_url; until then they return each leased message of this one",
        )


def _unleasable(ground: Ground) -> Iterator[Finding]:
    named = {task for each in ground.processes if each.state == "alive" for task in each.unleasable}
    scheduled = {job.task for job in ground.jobs.seen} if ground.jobs.is_whole else named
    if tasks := sorted(named & scheduled):
        yield Finding(
            "warning",
            "unleasable",
            f"tasks with a Strategy of their own, whose runs are fired and forgotten: {listed(tasks)}",
            "nothing, if it is enough that each message starts once: such a strategy, as that of celery-batches, does "
            "not say how a run ends; for leases and retries give a scheduled task Celery's own strategy",
        )


def _absent(ground: Ground, wire: Wire | None) -> Iterator[Finding]:
    if not any(each.kind == "beat" and each.state == "alive" for each in ground.processes):
        yield Finding(
            "warning",
            "beats",
            "no beat is alive",
            "start celery -A app beat --scheduler celery_sqlbeat.Scheduler",
        )
    consumed = {queue for each in ground.processes if each.state == "alive" for queue in each.queues}
    if wire is not None and wire.roll is not None:
        consumed |= {queue for each in wire.roll for queue in each.queues}
    lonely = sorted({job.queue for job in ground.jobs.seen if job.queue is not None} - consumed)
    if lonely:
        yield Finding(
            "warning",
            "queues",
            f"no worker that is known consumes the queues of some jobs: {listed(lonely)}",
            f"start a worker with -Q {','.join(lonely[:5])}, or correct the options of those jobs",
        )


def _elsewhere(ground: Ground, wire: Wire) -> Iterator[Finding]:
    for each in ground.processes:
        other = each.broker
        if each.state == "alive" and other and differ_for_certain(wire.fingerprint, other):
            yield Finding(
                "error",
                "brokers",
                f"{each.id} uses another broker ({other}) than this app ({wire.fingerprint})",
                "give all beats and workers of a namespace one broker_url",
            )


def _serves(facts: Facts, answer: Answer) -> bool:
    """Whether a worker consumes a queue that our jobs go to; while that is not known, any worker might."""
    if facts.ground is None or not facts.ground.jobs.is_whole:
        return True
    queues = {job.queue for job in facts.ground.jobs.seen}
    return not queues or None in queues or bool(queues & answer.queues)


def _of(answer: Answer, field: str) -> str:
    return str((answer.extension or {}).get(field) or "")
