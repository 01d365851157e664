"""No database, the wrong schema, the wrong driver."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata

from celery_sqlbeat.diagnosis.facts import Facts
from celery_sqlbeat.diagnosis.finding import Finding
from celery_sqlbeat.errors import DatabaseAway, DatabaseBusy, DatabaseUncertain, DriverMissing, SchemaError, StoreError
from celery_sqlbeat.masking import odbc_pairs
from celery_sqlbeat.store.faults import READ_ONLY
from celery_sqlbeat.store.tokens import NO_TOKEN
from celery_sqlbeat.url import DatabaseUrl

OLDEST = {"postgresql": ("psycopg", (3, 2)), "mssql": ("pyodbc", (5, 1))}
_ODBC = re.compile(r"\{?(ODBC Driver (\d+) for SQL Server|.*msodbcsql.*)\}?", re.IGNORECASE)
_OLDEST_ODBC = 17
_SETTING = "sqlbeat_database_url"
_LIBPQ_READ_ONLY = "session is read-only"  # of several hosts, none of which can be written to


def of_error(error: StoreError, url: DatabaseUrl) -> Finding:
    """What an error of the database at this address means."""
    if isinstance(error, DriverMissing):
        return Finding("error", "driver", *_halves(error, "install the driver"))
    if isinstance(error, SchemaError):
        return Finding("error", "schema", *_halves(error, "run celery -A app sqlbeat init"))
    if isinstance(error, DatabaseUncertain):
        return Finding("error", "database", str(error), "look into the server's log; beats and workers go on trying")
    if isinstance(error, DatabaseBusy):
        return Finding("error", "database", str(error), "end the transaction that keeps its rows, or its file, locked")
    if isinstance(error, DatabaseAway):
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


def findings(facts: Facts) -> Iterator[Finding]:
    """A schema that is newer than this release; a pooler between us and the server."""
    if facts.ground is not None and facts.ground.remark:
        yield Finding(
            "note", "schema", facts.ground.remark, "upgrade the package here as well, once the newer release stays"
        )
    pooling = facts.ground.pooling if facts.ground is not None else None
    if pooling is not None:
        kept = "each transaction" if pooling == "transactions" else "each session"
        yield Finding(
            "note",
            "pooler",
            f"a pooler stands before the database, and gives {kept} a server connection that others had before: "
            "nothing is set or prepared there beyond a transaction, so each statement is planned anew",
            "nothing; the server's own port saves that work where beats and workers are few",
        )


def of_driver(url: DatabaseUrl) -> Iterator[Finding]:
    """A driver that is too old, or another vendor's."""
    package, oldest = OLDEST.get(url.database, ("", ()))
    if package:
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            return  # opening the store says so
        if _numbers(found) < oldest:
            least = ".".join(map(str, oldest))
            yield Finding(
                "error",
                "driver",
                f"{package} {found} is too old, it must be {least} or later",
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


def odbc_driver(url: DatabaseUrl) -> str | None:
    """The ODBC driver that an address names; None where it leaves that to us."""
    if url.odbc is not None:
        named = [pair.value for pair in odbc_pairs(url.odbc) or () if pair.key == "driver"]
        return named[0] if named else None
    return next((value for key, value in url.options.items() if key.lower() == "driver"), None)


def _is_known(name: str) -> bool:
    match = _ODBC.fullmatch(name.strip())
    return match is not None and (match[2] is None or int(match[2]) >= _OLDEST_ODBC)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _halves(error: StoreError, remedy: str) -> tuple[str, str]:
    """What is wrong, and what to do; most of our errors say both, with a colon between them."""
    says, colon, rest = str(error).rpartition(": ")
    return (says, rest) if colon else (str(error), remedy)
