"""Check the driver, the database, the leases, the clocks and the broker of an installation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata

from celery_sqlbeat.checks.facts import Facts, Finding, listed
from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.config.redaction import odbc_pairs
from celery_sqlbeat.config.settings import Settings, stop_timeout
from celery_sqlbeat.errors import (
    DatabaseBusy,
    DatabaseUnavailable,
    DatabaseUncertain,
    DriverMissing,
    SchemaError,
    StoreError,
)
from celery_sqlbeat.store.faults import READ_ONLY
from celery_sqlbeat.store.sql.dialects.mssql_tokens import NO_TOKEN
from celery_sqlbeat.worker.lease.batching import Timing

OLDEST = {
    "postgresql": ("psycopg", (3, 2)),
    "mysql": ("pymysql", (1, 2)),
    "mssql": ("pyodbc", (5, 1)),
    "redis": ("redis", (4, 5, 2)),
}
_ODBC = re.compile(r"\{?(ODBC Driver (\d+) for SQL Server|.*msodbcsql.*)\}?", re.IGNORECASE)
_OLDEST_ODBC = 17
MOST_SKEW = 2.0  # seconds; with NTP it is a few milliseconds, and more makes logs hard to compare
_SETTING = "sqlbeat_database_url"
_LIBPQ_READ_ONLY = "session is read-only"  # of several hosts, none of which can be written to


def error_finding(error: StoreError, url: DatabaseUrl) -> Finding:
    """Report an error of the database at this address, with its remedy."""
    if isinstance(error, DriverMissing):
        return Finding("error", "driver", *_text_and_remedy(error, "install the driver"))
    if isinstance(error, SchemaError):
        return Finding("error", "schema", *_text_and_remedy(error, "run celery -A app sqlbeat init"))
    if isinstance(error, DatabaseUncertain):
        return Finding("error", "database", str(error), "read the server's log; beats and workers keep trying")
    if isinstance(error, DatabaseBusy):
        return Finding("error", "database", str(error), "end the transaction that keeps its rows, or its file, locked")
    if isinstance(error, DatabaseUnavailable):
        return Finding("error", "database", str(error), f"{_start(error, url)}, or correct {_SETTING}, which is {url}")
    return Finding("error", "database", str(error), f"correct {_SETTING}, which is {url}, or the rights of its user")


def _start(error: StoreError, url: DatabaseUrl) -> str:
    if url.database == "sqlite":
        return "see that its folder is there and may be written"
    if NO_TOKEN in str(error):
        return "log in (az login), or give this machine or pod the identity that its identity= names"
    if url.database == "mssql" and "SSL Provider" in str(error) and "certificate" in str(error):
        return "let this machine trust the server's certificate (a test server's: TrustServerCertificate=yes)"
    if READ_ONLY in str(error) or _LIBPQ_READ_ONLY in str(error):
        return "name the primary, or all hosts with commas between them"
    return "start it"


def database_findings(facts: Facts) -> Iterator[Finding]:
    """Report a schema that is newer than this release, and what the store says of its server."""
    if facts.database is not None and facts.database.remark:
        yield Finding(
            "note", "schema", facts.database.remark, "upgrade the package here as well, once the newer release stays"
        )
    for remark in facts.database.remarks if facts.database is not None else ():
        yield Finding(remark.level, remark.topic, remark.text, remark.remedy)


def driver_findings(url: DatabaseUrl) -> Iterator[Finding]:
    """Report a driver that is too old, or another vendor's."""
    package, oldest = OLDEST.get(url.database, ("", ()))
    if package:
        version = _version_of(package)
        if version is not None and _numbers(version) < oldest:
            least = ".".join(map(str, oldest))
            yield Finding(
                "error",
                "driver",
                f"{package} {version} is too old, it must be {least} or later",
                f'run pip install --upgrade "celery-sqlbeat[{url.database}]"',
            )
    name = odbc_driver(url)
    if name is not None and not _is_known(name):
        yield Finding(
            "error",
            "driver",
            f"{name} is not a driver that this package knows: its errors and types may be others",
            "leave Driver= out of sqlbeat_database_url, or name ODBC Driver 18 for SQL Server",
        )


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None  # opening the store says so


def odbc_driver(url: DatabaseUrl) -> str | None:
    """Return the ODBC driver that an address names, or None."""
    if url.odbc is not None:
        named = [pair.value for pair in odbc_pairs(url.odbc) or () if pair.key == "driver"]
        return named[0] if named else None
    return next((value for key, value in url.options.items() if key.lower() == "driver"), None)


def _is_known(name: str) -> bool:
    match = _ODBC.fullmatch(name.strip())
    return match is not None and (match[2] is None or int(match[2]) >= _OLDEST_ODBC)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _text_and_remedy(error: StoreError, remedy: str) -> tuple[str, str]:
    """Split an error into what is wrong and what to do, at its last colon."""
    says, colon, rest = str(error).rpartition(": ")
    return (says, rest) if colon else (str(error), remedy)


def configuration_findings(facts: Facts) -> Iterator[Finding]:
    """Report jobs whose own lease is too short for its heartbeats."""
    if facts.database is None:
        return
    short = [job.name for job in facts.database.jobs.enabled if not heartbeats_fit(facts.settings, job.lease_seconds)]
    if short:
        least = shortest_lease(facts.settings)
        yield Finding(
            "warning",
            "heartbeat",
            f"the lease of {listed(short)} is so short that one slow statement costs a run its lease",
            f"give them a lock_timeout of more than {least:.0f} s, or lower sqlbeat_heartbeat_interval",
        )


def heartbeats_fit(settings: Settings, lease_seconds: float) -> bool:
    """Tell whether heartbeats, the last statement and the task's stop fit into a lease."""
    beats = Timing.of(settings).interval(lease_seconds) * settings.heartbeat_failures
    return beats + settings.statement_timeout + stop_timeout(lease_seconds) < lease_seconds


def shortest_lease(settings: Settings) -> float:
    """Return the shortest lease that its heartbeats fit, to the second; the default always fits."""
    low, high = 0.0, settings.lock_timeout
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (low, middle) if heartbeats_fit(settings, middle) else (middle, high)
    return high


def clock_findings(facts: Facts) -> Iterator[Finding]:
    """Report hosts whose clock is wrong, and leases that are short beside the worst skew."""
    if facts.database is None:
        return
    skews = {
        f"{process.host} ({process.id})": process.skew_seconds
        for process in facts.database.processes
        if process.state == "alive"
    }
    skews["this machine"] = facts.database.skew_seconds
    known = {name: skew for name, skew in skews.items() if skew is not None}
    wrong = {name: skew for name, skew in known.items() if abs(skew) > MOST_SKEW}
    if wrong:
        texts = [f"{name} {skew:+.1f} s" for name, skew in wrong.items()]
        yield Finding(
            "warning",
            "clock",
            f"clocks differ from the database server's: {listed(texts)}",
            "let NTP or chrony set the clocks of these hosts and of the server",
        )
    worst = max((abs(skew) for skew in known.values()), default=0.0)
    leases = {"sqlbeat_lock_timeout": facts.settings.lock_timeout}
    leases.update({f"the lease of job {job.name}": job.lease_seconds for job in facts.database.jobs.enabled})
    short = [f"{name} ({seconds:g} s)" for name, seconds in leases.items() if seconds < 2 * worst]
    if short:
        yield Finding(
            "error",
            "lease",
            f"shorter than twice the clock skew of {worst:.1f} s: {listed(short)}",
            "set the clocks right, or give these a longer lock_timeout",
        )


def broker_findings(facts: Facts) -> Iterator[Finding]:
    """Report leases longer than the visibility timeout of Redis."""
    if facts.broker is None or facts.broker.visibility_timeout is None:
        return
    timeout = facts.broker.visibility_timeout
    leases = {"sqlbeat_lock_timeout": facts.settings.lock_timeout}
    if facts.database is not None:
        leases.update({f"the lease of job {job.name}": job.lease_seconds for job in facts.database.jobs.enabled})
    longer = [name for name, seconds in leases.items() if seconds > timeout]
    if longer:
        yield Finding(
            "error",
            "visibility-timeout",
            f"the broker delivers a message again after {timeout:g} s, before these leases end: {listed(longer)}",
            f'set broker_transport_options = {{"visibility_timeout": {max(leases.values()) * 2:.0f}}} for all workers',
        )


def broker_unreachable(error: str) -> Finding:
    """Report that the broker does not answer."""
    return Finding(
        "error",
        "broker",
        error,
        "start it, install what its address needs (such as celery[redis]), or correct broker_url",
    )


def workers_unanswered(reason: str) -> Finding:
    """Report that the broker answers, but that the workers cannot be asked through it."""
    return Finding("warning", "workers", f"the workers could not be asked: {reason}", "see celery -A app inspect ping")
