"""Clocks that differ from the server's. They change nothing, since the server's alone counts, but they confuse."""

from __future__ import annotations

from collections.abc import Iterator

from celery_sqlbeat.diagnosis.facts import Facts
from celery_sqlbeat.diagnosis.finding import Finding, listed

MOST_SKEW = 2.0  # seconds; with NTP it is a few milliseconds, and more makes logs hard to compare


def findings(facts: Facts) -> Iterator[Finding]:
    """Hosts whose clock is wrong, and leases that are short beside the worst of them."""
    if facts.ground is None:
        return
    skews = {f"{each.host} ({each.id})": each.skew_seconds for each in facts.ground.processes if each.state == "alive"}
    skews["this machine"] = facts.ground.skew_seconds
    known = {name: skew for name, skew in skews.items() if skew is not None}
    wrong = {name: skew for name, skew in known.items() if abs(skew) > MOST_SKEW}
    if wrong:
        shown = [f"{name} {skew:+.1f} s" for name, skew in wrong.items()]
        yield Finding(
            "warning",
            "clock",
            f"clocks differ from the database server's: {listed(shown)}",
            "let NTP or chrony set the clocks of these hosts and of the server",
        )
    worst = max((abs(skew) for skew in known.values()), default=0.0)
    leases = {"sqlbeat_lock_timeout": facts.settings.lock_timeout}
    leases.update({f"the lease of job {job.name}": job.lease_seconds for job in facts.ground.jobs.seen})
    short = [f"{name} ({seconds:g} s)" for name, seconds in leases.items() if seconds < 2 * worst]
    if short:
        yield Finding(
            "error",
            "lease",
            f"shorter than twice the clock skew of {worst:.1f} s: {listed(short)}",
            "set the clocks right, or give these a longer lock_timeout",
        )
