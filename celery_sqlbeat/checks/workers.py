"""Check the workers and the beats: those that keep no lease here, and queues without a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery_sqlbeat.celery_bridge.app import differ_for_certain
from celery_sqlbeat.celery_bridge.inspect_workers import Answer
from celery_sqlbeat.checks.facts import BrokerFacts, DatabaseFacts, Facts, Finding, listed


def findings(facts: Facts) -> Iterator[Finding]:
    """Report what is wrong with the workers and the beats."""
    if facts.broker is not None and facts.broker.answers is not None:
        yield from _misplaced(facts, facts.broker.answers)
    if facts.database is not None:
        yield from _missing(facts.database, facts.broker)
        yield from _unleasable(facts.database)
        if facts.broker is not None:
            yield from _other_brokers(facts.database, facts.broker)


def _misplaced(facts: Facts, answers: Sequence[Answer]) -> Iterator[Finding]:
    answers = [answer for answer in answers if _serves(facts, answer)]
    plain = [answer.name for answer in answers if answer.extension is None]
    if plain:
        yield Finding(
            "error",
            "extension",
            f"workers without celery-sqlbeat, whose runs have no lease: {listed(plain)}",
            "install celery-sqlbeat in their environment and restart them; an embedded worker calls "
            "celery_sqlbeat.setup(app)",
        )
    ours = [answer for answer in answers if answer.extension is not None]
    namespace = facts.settings.namespace
    other = [
        f"{answer.name} ({_field(answer, 'namespace')})"
        for answer in ours
        if _field(answer, "namespace") not in ("", namespace)
    ]
    if other:
        yield Finding(
            "error",
            "namespace",
            f"workers of another namespace than {namespace!r} on this broker: {listed(other)}",
            "give them the same sqlbeat_namespace, or queues or a broker of their own",
        )
    blind = [answer.name for answer in ours if not _field(answer, "store")]
    if blind:
        yield Finding(
            "error",
            "store",
            f"workers that have not reached their database: {listed(blind)}",
            "see their logs; they need the same sqlbeat_database_url as the beats",
        )
    if facts.database is None:
        return
    astray = [answer.name for answer in ours if _field(answer, "store") not in ("", facts.database.store)]
    if astray:
        yield Finding(
            "error",
            "store",
            f"workers on another database than this app's: {listed(astray)}",
            "give them the same sqlbeat_database_url; until then they return each leased message of this one",
        )


def _unleasable(database: DatabaseFacts) -> Iterator[Finding]:
    named = {task for process in database.processes if process.state == "alive" for task in process.unleasable}
    scheduled = {job.task for job in database.jobs.enabled} if database.jobs.is_complete else named
    if tasks := sorted(named & scheduled):
        yield Finding(
            "warning",
            "unleasable",
            f"tasks with a Strategy of their own, whose runs are fired and forgotten: {listed(tasks)}",
            "nothing, if it is enough that each message starts once: such a strategy, as that of celery-batches, does "
            "not say how a run ends; for leases and retries give a scheduled task Celery's own strategy",
        )


def _missing(database: DatabaseFacts, broker: BrokerFacts | None) -> Iterator[Finding]:
    if not any(process.kind == "beat" and process.state == "alive" for process in database.processes):
        yield Finding(
            "warning",
            "beats",
            "no beat is alive",
            "start celery -A app beat --scheduler celery_sqlbeat.Scheduler",
        )
    consumed = {queue for process in database.processes if process.state == "alive" for queue in process.queues}
    if broker is not None and broker.answers is not None:
        consumed |= {queue for answer in broker.answers for queue in answer.queues}
    lonely = sorted({job.queue for job in database.jobs.enabled if job.queue is not None} - consumed)
    if lonely:
        yield Finding(
            "warning",
            "queues",
            f"no worker that is known consumes the queues of some jobs: {listed(lonely)}",
            f"start a worker with -Q {','.join(lonely[:5])}, or correct the options of those jobs",
        )


def _other_brokers(database: DatabaseFacts, broker: BrokerFacts) -> Iterator[Finding]:
    for process in database.processes:
        other = process.broker
        if process.state == "alive" and other and differ_for_certain(broker.fingerprint, other):
            yield Finding(
                "error",
                "brokers",
                f"{process.id} uses another broker ({other}) than this app ({broker.fingerprint})",
                "give all beats and workers of a namespace one broker_url",
            )


def _serves(facts: Facts, answer: Answer) -> bool:
    """Tell whether a worker consumes a queue of these jobs; while that is not known, any may."""
    if facts.database is None or not facts.database.jobs.is_complete:
        return True
    queues = {job.queue for job in facts.database.jobs.enabled}
    return not queues or None in queues or bool(queues & answer.queues)


def _field(answer: Answer, field: str) -> str:
    return str((answer.extension or {}).get(field) or "")
