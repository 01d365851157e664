"""Leases and heartbeats that do not fit together. Settings that cannot work at all stop a check before it gets here."""

from __future__ import annotations

from collections.abc import Iterator

from celery_sqlbeat.config import Settings, stop_timeout
from celery_sqlbeat.diagnosis.facts import Facts
from celery_sqlbeat.diagnosis.finding import Finding, listed
from celery_sqlbeat.worker.timing import Timing


def findings(facts: Facts) -> Iterator[Finding]:
    """Jobs whose own lease is too short for the heartbeats in it."""
    if facts.ground is None:
        return
    short = [job.name for job in facts.ground.jobs.seen if not heartbeats_fit(facts.settings, job.lease_seconds)]
    if short:
        least = shortest_lease(facts.settings)
        yield Finding(
            "warning",
            "heartbeat",
            f"the lease of {listed(short)} is so short that one slow statement costs a run its lease",
            f"give them a lock_timeout of more than {least:.0f} s, or lower sqlbeat_heartbeat_interval",
        )


def heartbeats_fit(settings: Settings, lease_seconds: float) -> bool:
    """Whether all heartbeats of a lease, the last statement and the stop of the task fit into it."""
    beats = Timing.of(settings).interval(lease_seconds) * settings.heartbeat_failures
    return beats + settings.statement_timeout + stop_timeout(lease_seconds) < lease_seconds


def shortest_lease(settings: Settings) -> float:
    """The shortest lease into which its heartbeats fit, to the second; the usual one always does."""
    low, high = 0.0, settings.lock_timeout
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (low, middle) if heartbeats_fit(settings, middle) else (middle, high)
    return high
