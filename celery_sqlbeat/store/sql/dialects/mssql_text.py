"""Turn a named block into one batch for SQL Server.

Parameters become typed variables, and rows one JSON text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache, lru_cache
from typing import Any, NamedTuple

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.sql.dialects import mssql_driver
from celery_sqlbeat.store.sql.session import Block, Rows, load

# What other databases do in a transaction of several blocks is one batch here, made of those
# blocks, so that each condition is written once. It costs one round trip, and no process can be
# stopped in the middle with its rows locked.

CLOCK = "SYSUTCDATETIME()"

# Each parameter has one type wherever it is used, so that a block has one plan whatever the values.
PARAMETERS = {
    "after": "datetime2(6)",
    "after_id": "varchar(36)",
    "after_name": "nvarchar(200)",
    "args": "nvarchar(max)",
    "batch_size": "int",
    "beat": "nvarchar(200)",
    "before": "datetime2(6)",
    "before_attempt": "int",
    "before_id": "varchar(36)",
    "broker_fingerprint": "nvarchar(200)",
    "checksum": "varchar(64)",
    "claimed": "bigint",
    "code_keys": "nvarchar(max)",
    "code_owner": "nvarchar(200)",
    "code_release": "nvarchar(200)",
    "details": "nvarchar(max)",
    "dispatch_seconds": "float(53)",
    "enabled": "int",
    "entries": "nvarchar(max)",
    "epoch": "bigint",
    "fence": "bigint",
    "finished": "bit",
    "first_seen_at": "datetime2(6)",
    "floor": "bigint",
    "former_owner": "nvarchar(200)",
    "grace_seconds": "float(53)",
    "host": "nvarchar(255)",
    "imported_at": "datetime2(6)",
    "job_id": "uniqueidentifier",
    "job_name": "nvarchar(200)",
    "keep_seconds": "float(53)",
    "kind": "varchar(20)",
    "kwargs": "nvarchar(max)",
    "live_seconds": "float(53)",
    "lock_seconds": "float(53)",
    "lock_timeout_minutes": "int",
    "memory_seconds": "float(53)",
    "name": "nvarchar(200)",
    "namespace": "nvarchar(100)",
    "next_run_time": "datetime2(6)",
    "node_id": "nvarchar(200)",
    "number": "int",
    "only_ended": "bit",
    "only_replaceable": "bit",
    "only_unstarted": "bit",
    "options": "nvarchar(max)",
    "other_entries": "nvarchar(max)",
    "package_version": "nvarchar(50)",
    "page_size": "int",
    "pid": "int",
    "policies": "nvarchar(max)",
    "queued_seconds": "float(53)",
    "queues": "nvarchar(max)",
    "reason": "nvarchar(400)",
    "reschedule": "bit",
    "rows": "nvarchar(max)",
    "run_id": "uniqueidentifier",
    "scan_size": "int",
    "schedule": "nvarchar(1000)",
    "since_seconds": "float(53)",
    "skew_seconds": "float(53)",
    "start_at": "datetime2(6)",
    "state": "varchar(20)",
    "step": "bigint",
    "task_name": "nvarchar(200)",
    "tasks": "nvarchar(max)",
    "time_zone": "nvarchar(100)",
    "version": "bigint",
    "worker": "nvarchar(200)",
}
_SIZES = {
    "bit": (mssql_driver.SQL_BIT, 0, 0),
    "int": (mssql_driver.SQL_INTEGER, 0, 0),
    "bigint": (mssql_driver.SQL_BIGINT, 0, 0),
    "float(53)": (mssql_driver.SQL_DOUBLE, 0, 0),
    # As text, the same as in rows: what pyodbc keeps of a bound instant depends on an answer of the
    # server's catalog.
    "datetime2(6)": (mssql_driver.SQL_VARCHAR, 26, 0),
    "uniqueidentifier": (mssql_driver.SQL_VARCHAR, 36, 0),
    "nvarchar(max)": (mssql_driver.SQL_WVARCHAR, 0, 0),
}
_VARIABLE = re.compile(r"@(\w+)")

_GO = re.compile(r"^[ \t]*GO[ \t]*;?[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)


class Batch(NamedTuple):
    """A block as it is sent: its text, the parameters of its markers, and how each is bound."""

    text: str
    names: tuple[str, ...]
    sizes: list[tuple[int, int, int]]


@lru_cache(maxsize=1024)  # the blocks, times the clocks of tests
def batch_of(block: Block, clock: str) -> Batch:
    """Return the batch with its parameters declared as variables, each of one type."""
    names = tuple(dict.fromkeys(name for name in _VARIABLE.findall(block.text) if name in PARAMETERS))
    declared = ", ".join(f"@{name} {PARAMETERS[name]} = ?" for name in names)
    text = block.text.replace(CLOCK, clock)
    sizes = [_size(PARAMETERS[name]) for name in names]
    return Batch(f"DECLARE {declared};\n{text}" if names else text, names, sizes)


def _size(kind: str) -> tuple[int, int, int]:
    if kind in _SIZES:
        return _SIZES[kind]
    base, _, length = kind.rstrip(")").partition("(")
    return (mssql_driver.SQL_WVARCHAR if base == "nvarchar" else mssql_driver.SQL_VARCHAR, int(length), 0)


def rows_as_json(rows: Rows) -> str:
    """Write a batch as a JSON array of arrays.

    Values that SQL Server or Python cannot read are replaced.
    """
    text = _dumps(rows)
    if "\\u0000" in text:
        text = _dumps([[v.replace("\0", "\ufffd") if isinstance(v, str) else v for v in row] for row in rows])
    # A lone surrogate, as in a file name that is no UTF-8, is no character.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _dumps(rows: Any) -> str:
    return json.dumps(rows, default=_instant, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _instant(value: datetime) -> str:
    return _naive(value).isoformat(timespec="microseconds")


def _naive(value: datetime) -> datetime:
    return value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)


def scalar(value: Any) -> Any:
    """Convert a parameter to what the driver takes."""
    if isinstance(value, datetime):
        return _instant(value)
    return rows_as_json(value) if isinstance(value, (list, tuple)) else value


def split_batches(script: str) -> Sequence[str]:
    """Split a script into the batches of sqlcmd and SSMS: between lines that hold only GO."""
    return [batch.strip() for batch in _GO.split(script) if batch.strip()]


START, FINISH = "start_at_once", "finish_at_once"
AT_ONCE = frozenset({START, FINISH})

_SOURCE = re.compile(r"FROM OPENJSON\(@rows\) WITH \(\n.*?\n\) AS p\n", re.DOTALL)
_DECLARED = re.compile(r"^DECLARE @(\w+) .*?;\n", re.DOTALL | re.MULTILINE)


@cache
def with_chains() -> Mapping[str, Block]:
    """All blocks for SQL Server, with those that are made of several."""
    blocks = load("mssql")
    return {**blocks, START: _start(blocks), FINISH: _finish(blocks)}


def _start(blocks: Mapping[str, Block]) -> Block:
    """Make one statement of start_jobs and of start_runs for what it won.

    Its rows are those of start_jobs.
    """
    jobs, runs = blocks["start_jobs"], blocks["start_runs"]
    won, _ = _cut(jobs.text)
    begin, answer = _cut(runs.text.replace("@started", "@begun"))
    given = ", ".join(f"g.{name}" for name in jobs.columns)
    source = f"""FROM (
    SELECT {given}, s.Fence AS job_fence, s.Published AS published
    FROM {_openjson(dict(zip(jobs.columns, jobs.types, strict=True)))} AS g
    LEFT OUTER JOIN @started AS s ON s.RunId = g.run_id
) AS p
"""  # noqa: S608 - made of our own blocks
    text = _transaction(won, _fed(_continued(begin, won), source), answer)
    return Block(START, text, jobs.columns, jobs.types, jobs.instants)


def _finish(blocks: Mapping[str, Block]) -> Block:
    """Make one statement of release_jobs, close_runs and, for other beats, bump_changes.

    Its rows are those of close_runs without `released`, and the job before them.
    """
    jobs, runs, bump = blocks["release_jobs"], blocks["close_runs"], blocks["bump_changes"]
    kinds = dict(zip((*jobs.columns, *runs.columns), (*jobs.types, *runs.types), strict=True))
    columns = {name: kinds[name] for name in ("job_id", *(name for name in runs.columns if name != "released"))}
    release, released = _cut(jobs.text)
    close, answer = _cut(runs.text)
    of_jobs = _openjson(columns)
    of_runs = ", ".join(f"g.{name}" for name in columns if name != "job_id")
    source = f"""FROM (
    SELECT {of_runs}, CASE WHEN f.Id IS NULL THEN 0 ELSE 1 END AS released
    FROM {of_jobs} AS g
    LEFT OUTER JOIN @released AS f ON f.Id = g.job_id
) AS p
"""  # noqa: S608 - made of our own blocks
    release = _fed(release, f"FROM {of_jobs} AS p\n")
    is_news = (
        f"EXISTS (SELECT 1 FROM ({released}) AS u WHERE u.Unforeseen = 1)"  # noqa: S608 - made of our own blocks
        " OR EXISTS (SELECT 1 FROM @closed AS e WHERE e.Doomed = 1)"
    )
    tell = f"IF {is_news}\nBEGIN\n{bump.text};\nEND"
    text = _transaction(release, f"{_fed(_continued(close, release), source)}\n\n{tell};", answer)
    return Block(FINISH, text, tuple(columns), tuple(columns.values()), ())


def _transaction(first: str, second: str, answer: str) -> str:
    """Commit before the answer is sent, so that a client that does not read it keeps no locks."""
    declared, work = _head(first)
    return f"{declared}\nBEGIN TRANSACTION;\n\n{work}\n\n{second}\n\nCOMMIT TRANSACTION;\n\n{answer}"


def _cut(text: str) -> tuple[str, str]:
    """Split a block into all but its last statement, and that one, which is its answer."""
    work, separator, answer = text.rpartition(";\n\nSELECT")
    if not separator:
        raise StoreError("a block does not end with its answer any more")
    return work + ";", "SELECT" + answer


def _head(text: str) -> tuple[str, str]:
    """Split a block into the declarations before its first statement, and the rest."""
    end = 0
    while match := _DECLARED.match(text, end):
        end = match.end()
    return text[:end], text[end:].strip()


def _continued(text: str, before: str) -> str:
    """Return a block without the declarations that an earlier block of the same batch has made."""
    there = {match[1] for match in _DECLARED.finditer(before)}
    return _DECLARED.sub(lambda match: "" if match[1] in there else match[0], text).strip()


def _fed(text: str, source: str) -> str:
    """Return a block whose rows come from another one."""
    fed, times = _SOURCE.subn(lambda _: source, text)
    if times != 1:
        raise StoreError("a block does not read its rows any more as the others do")
    return fed


def _openjson(columns: Mapping[str, str]) -> str:
    read = ",\n".join(f"    {name} {kind} '$[{at}]'" for at, (name, kind) in enumerate(columns.items()))
    return f"OPENJSON(@rows) WITH (\n{read}\n)"
