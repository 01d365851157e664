"""How a named block becomes one batch for SQL Server: its parameters as typed variables, its rows as one JSON text."""

import json
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, NamedTuple

from celery_sqlbeat.store import odbc
from celery_sqlbeat.store.session import Rows
from celery_sqlbeat.store.statements import Block

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
    "bit": (odbc.SQL_BIT, 0, 0),
    "int": (odbc.SQL_INTEGER, 0, 0),
    "bigint": (odbc.SQL_BIGINT, 0, 0),
    "float(53)": (odbc.SQL_DOUBLE, 0, 0),
    # As text, the same as in rows: what pyodbc keeps of a bound instant depends on an answer of the server's catalog.
    "datetime2(6)": (odbc.SQL_VARCHAR, 26, 0),
    "uniqueidentifier": (odbc.SQL_VARCHAR, 36, 0),
    "nvarchar(max)": (odbc.SQL_WVARCHAR, 0, 0),
}
_VARIABLE = re.compile(r"@(\w+)")

_GO = re.compile(r"^[ \t]*GO[ \t]*;?[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)


class Batch(NamedTuple):
    """A block as it is sent: its text, the parameters of its markers in order, and how each is bound."""

    text: str
    names: tuple[str, ...]
    sizes: list[tuple[int, int, int]]


@lru_cache(maxsize=1024)  # the blocks, times the clocks of tests
def batch_of(block: Block, clock: str) -> Batch:
    """The batch with its parameters declared in front of it, each as a variable of its one type."""
    names = tuple(dict.fromkeys(name for name in _VARIABLE.findall(block.text) if name in PARAMETERS))
    declared = ", ".join(f"@{name} {PARAMETERS[name]} = ?" for name in names)
    text = block.text.replace(CLOCK, clock)
    sizes = [_size(PARAMETERS[name]) for name in names]
    return Batch(f"DECLARE {declared};\n{text}" if names else text, names, sizes)


def _size(kind: str) -> tuple[int, int, int]:
    if kind in _SIZES:
        return _SIZES[kind]
    base, _, length = kind.rstrip(")").partition("(")
    return (odbc.SQL_WVARCHAR if base == "nvarchar" else odbc.SQL_VARCHAR, int(length), 0)


def rows_as_json(rows: Rows) -> str:
    """A batch as a JSON array of arrays. What SQL Server could not keep, or Python not read again, is replaced."""
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
    """A parameter as the driver takes it."""
    if isinstance(value, datetime):
        return _instant(value)
    return rows_as_json(value) if isinstance(value, (list, tuple)) else value


def split_batches(script: str) -> Sequence[str]:
    """The batches of a script as sqlcmd and SSMS see them: between lines that hold only GO."""
    return [batch.strip() for batch in _GO.split(script) if batch.strip()]
