"""A broker that takes a message back before its run's lease ends."""

from __future__ import annotations

from collections.abc import Iterator

from celery_sqlbeat.diagnosis.facts import Facts
from celery_sqlbeat.diagnosis.finding import Finding, listed


def findings(facts: Facts) -> Iterator[Finding]:
    """Leases longer than the visibility timeout of Redis."""
    if facts.wire is None or facts.wire.visibility_timeout is None:
        return
    timeout = facts.wire.visibility_timeout
    leases = {"sqlbeat_lock_timeout": facts.settings.lock_timeout}
    if facts.ground is not None:
        leases.update({f"the lease of job {job.name}": job.lease_seconds for job in facts.ground.jobs.seen})
    longer = [name for name, seconds in leases.items() if seconds > timeout]
    if longer:
        yield Finding(
            "error",
            "visibility-timeout",
            f"the broker delivers a message again after {timeout:g} s, before these leases end: {listed(longer)}",
            f'set broker_transport_options = {{"visibility_timeout": {max(leases.values()) * 2:.0f}}} for all workers',
        )


def unreachable(error: str) -> Finding:
    """The broker does not answer."""
    return Finding(
        "error",
        "broker",
        error,
        "start it, install what its address needs (such as celery[redis]), or correct broker_url",
    )


def unanswered(reason: str) -> Finding:
    """The broker answers, but the workers cannot be asked through it."""
    return Finding("warning", "workers", f"the workers could not be asked: {reason}", "see celery -A app inspect ping")
