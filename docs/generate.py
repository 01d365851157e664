"""Writes what comes from the code: pages of docs/, and sql/*/create.sql. A test fails while one of them is out of date."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from celery_sqlbeat import checks
from celery_sqlbeat.config import PREFIX, Settings
from celery_sqlbeat.policy import DEFAULT, KINDS, Policies
from celery_sqlbeat.store.migrations import creation_script

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "celery_sqlbeat"

HEAD = """\
# Settings

Written by `make docs` from `celery_sqlbeat/config.py` and `celery_sqlbeat/policy.py`; do not edit.

Settings are read once, when a beat, a worker or a command starts, from Celery's configuration (lower case; upper case after
the namespace of `config_from_object`) and from the environment (upper case). **The environment wins**, as it does
for Celery's own `CELERY_BROKER_URL`; an empty variable counts as none. A value that cannot work stops the process with one
line that names the setting, the value and what is allowed. So does an unknown `sqlbeat_...` name in the configuration; in the
environment, where other programs name variables too, a name that is nearly one of these is logged as a warning.

Durations are seconds, fractions allowed, or (in the configuration) a `timedelta`.
"""

DESIGN = """\
# Design notes

Written by `make docs` from `docs/generate.py` and the docstrings of the package.

## One fire, step by step

A step begins in the first file of its row and passes the others in their order. What it asks of the database goes through `store/` to the blocks of
these names in `sql/<database>/statements/`. What decides is pure: `planning.py`, `schedule/`, `lifecycle.py` and `worker/endings.py` know no clock and no driver.
"""


class Step(NamedTuple):
    """One step of a fire, and where it is; the files below celery_sqlbeat/, in the order in which it passes them."""

    name: str
    does: str
    files: tuple[str, ...]
    blocks: tuple[str, ...] = ()


WALK = (
    Step(
        "wake",
        "what is due, and until when to sleep",
        ("beat/tick.py", "beat/look.py", "beat/turns.py", "store/beat_store.py"),
        ("read_next", "read_later", "read_changes"),
    ),
    Step(
        "claim",
        "a batch in one transaction, while the broker confirms the batch before",
        ("beat/firing.py", "store/beat_store.py"),
        ("read_outbox", "read_due", "lock_attempts", "read_attempts", "claim_jobs", "insert_runs", "reopen_runs"),
    ),
    Step(
        "plan",
        "between reading and writing: which slot, which attempt, what is skipped, what is set aside",
        ("planning.py", "definition.py", "schedule/plan.py"),
    ),
    Step(
        "publish",
        "claims become messages that the broker confirms",
        ("beat/publishing.py", "beat/sending.py", "beat/messages.py", "beat/outlets.py"),
    ),
    Step(
        "mark",
        "what the broker has, where the database can while the next batch is sent; the rest is given back",
        ("beat/firing.py", "beat/recording.py", "store/beat_store.py", "store/run_store.py"),
        ("mark_published", "lock_claims", "release_jobs", "close_runs", "read_unmarked"),
    ),
    Step(
        "receive",
        "a message of ours waits for its slot of the pool and for its lease",
        ("worker/extension.py", "worker/gate.py", "worker/slots.py", "worker/loop_slots.py"),
    ),
    Step(
        "start",
        "the lease goes over to the worker, or the message is dropped",
        ("worker/starting.py", "store/worker_store.py"),
        ("start_jobs", "start_runs"),
    ),
    Step(
        "heartbeat",
        "all leases of a process by one statement",
        ("worker/heartbeats.py", "store/worker_store.py"),
        ("extend_leases", "extend_held", "read_busy_leases", "read_busy_held"),
    ),
    Step(
        "stop",
        "a task whose lease is lost, or about to be",
        ("worker/keeper.py", "worker/stopping.py", "worker/window.py"),
    ),
    Step(
        "outcome",
        "how the task ended is seen, decided, and written",
        ("worker/execution.py", "worker/endings.py", "worker/outcomes.py", "store/run_store.py"),
        ("release_jobs", "close_runs"),
    ),
    Step(
        "reclaim",
        "leases that have ended: given back, published again, another attempt",
        ("beat/reaping.py", "lifecycle.py", "store/beat_store.py", "store/run_store.py"),
        ("read_ended", "read_ended_held", "extend_queued", "lock_claims", "release_jobs", "close_runs"),
    ),
)

NOTES = """\
## Notes

One page each: the question, the choice, what was given up, the evidence.
"""

ROOMS = """\
## Rooms

Imports go down only, which `tests/unit/test_layers.py` keeps so. What each module is for stands in the first line of it.
"""

TOGETHER = """\
## What must fit together

- `sqlbeat_heartbeat_interval` x `sqlbeat_heartbeat_failures` + the statement time-out + the time to stop a task must be less
  than `sqlbeat_lock_timeout`: a worker that cannot extend its lease has to notice, and its task has to be gone, before the lease ends.
  The statement time-out is a third of the shorter of `sqlbeat_heartbeat_interval` and `sqlbeat_dispatch_timeout`, at most 5 s;
  the time to stop a task is a tenth of the lease, at most 10 s. With the defaults: 30 x 3 + 5 + 10 = 105 < 120.
- `sqlbeat_retry_base` is at most `sqlbeat_retry_max`.

## The database URL

| database | form |
|---|---|
| SQLite | `sqlite:///relative.db`, `sqlite:////absolute/path.db` |
| PostgreSQL | `postgresql://user:password@host:port/database?sslmode=require`; of several hosts, with commas, the one that can be written to; options are libpq's |
| SQL Server, Azure SQL | `mssql://user:password@host:port/instance/database?Encrypt=yes`; port, instance, user and options may be left out |
| Azure SQL with Entra ID | `mssql://server.database.windows.net/database?identity=managed&client_id=...`; without a user, an access token logs in: of `identity=default` (azure-identity's chain), `managed`, `workload` or `cli`, with `client_id` and `tenant_id` where it takes them |
| SQL Server by ODBC | `mssql+odbc:Driver={...};Server=...;Database=...`, with `{}` around a value that holds `;` `{` or `}`, and `}` doubled in it |

SQL Server needs the extra `celery-sqlbeat[mssql]`, and on Linux one step more, as no wheel brings unixODBC: `apt-get install unixodbc
libgssapi-krb5-2`, `dnf install unixODBC krb5-libs` or `apk add unixodbc krb5-libs`. Microsoft's driver comes in a wheel; an installed one is preferred, and
`?driver=` chooses. Connections are encrypted and the certificate is verified, unless the address says otherwise (`Encrypt`,
`TrustServerCertificate`). An ODBC string that names neither `UID` nor `Authentication`, `Trusted_Connection` or a DSN logs in by token, too.

In user, password and options write `@ : / ? # & %` as `%40 %3A %2F %3F %23 %26 %25`. Wherever a URL is shown its password is `***`, and
so are options that are not known to be harmless; of a URL that cannot be read no more than the scheme is shown.
"""

POLICIES = """\
## Policies

`sqlbeat_policies` gives policies to jobs by name or glob, so that `beat_schedule` stays as it is:

```python
sqlbeat_policies = {
    "*": {"max_retries": 1},
    "payroll-*": {"misfire": "catch_up", "lock_timeout": 600},
}
```

The most specific wins, policy by policy: the default, then globs from the shortest to the longest (of two equally long ones the later),
then the job's exact name, then the policies in the job's own row. Globs are `fnmatch`'s, and case matters.
"""


def settings_page() -> str:
    """Return the text of docs/settings.md."""
    settings = [
        (f"{PREFIX}{each.name}", _default(each), each.metadata["kind"], each.metadata["doc"])
        for each in fields(Settings)
    ]
    table = ["| setting | default | allowed | |", "|---|---|---|---|"]
    table += [f"| `{name}` | {default} | {_cell(kind.allowed)} | {doc} |" for name, default, kind, doc in settings]
    policies = ["| policy | default | allowed |", "|---|---|---|"]
    policies += [f"| `{name}` | `{getattr(DEFAULT, name)!r}` | {_cell(kind.allowed)} |" for name, kind in KINDS.items()]
    return "\n".join([HEAD, *table, "", TOGETHER, POLICIES, *policies, ""])


def _default(setting: Field[Any]) -> str:
    kind: checks.Kind = setting.metadata["kind"]
    if setting.default is None:
        return kind.allowed.partition("None: ")[2]
    if isinstance(setting.default, Policies):
        return "`{}`"
    shown = f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)
    unit = " s" if "seconds" in kind.allowed else " days" if "days" in kind.allowed else ""
    return f"`{shown}`{unit}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def creation(database: str) -> str:
    """Return the text of sql/*/create.sql, to the letter what `init --sql` prints."""
    return creation_script(database) + "\n"


def design_index() -> str:
    """The way into the code: the walk of a fire, the design notes by their titles, the rooms by their docstrings."""
    walk = ["| step | | files | statements |", "|---|---|---|---|"]
    for step in WALK:
        files = ", ".join(f"[{name}](../../celery_sqlbeat/{name})" for name in step.files)
        walk.append(f"| **{step.name}** | {step.does} | {files} | {' '.join(f'`{name}`' for name in step.blocks)} |")
    notes = sorted(path for path in (HERE / "design").glob("*.md") if path.name != "README.md")
    titles = [(path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "), path.name) for path in notes]
    links = [f"- [{title}]({name})" for title, name in titles]
    rooms = ["| room | |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in _rooms())]
    return "\n".join([DESIGN, *walk, "", NOTES, *links, "", ROOMS, *rooms, ""])


def _rooms() -> Iterator[tuple[str, str]]:
    """The packages and the single modules of the house, each with the first line of its docstring."""
    for path in sorted(PACKAGE.iterdir()):
        module = path / "__init__.py" if path.is_dir() else path
        if module.suffix == ".py" and module.is_file() and path.name != "__init__.py":
            described = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
            yield path.name + "/" * path.is_dir(), _cell(described.splitlines()[0])


PAGES: Mapping[str, Any] = {
    "settings.md": settings_page,
    "design/README.md": design_index,
    **{f"../sql/{each}/create.sql": partial(creation, each) for each in ("mssql", "postgresql", "sqlite")},
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
