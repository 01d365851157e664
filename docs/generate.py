"""Write the pages of docs/ that come from the code.

A test fails while one of them is out of date.
"""

import inspect
import logging
import re
from collections.abc import Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from celery_sqlbeat import events
from celery_sqlbeat.config import validation
from celery_sqlbeat.config.policy import DEFAULT, KINDS, Policies
from celery_sqlbeat.config.settings import PREFIX, Settings

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "celery_sqlbeat"

HEAD = """\
# Settings

Written by `make docs` from `celery_sqlbeat/config/settings.py` and
`celery_sqlbeat/config/policy.py`; do not edit.

Settings are read once, when a beat, a worker or a command starts, from Celery's configuration
(lower case; upper case after the namespace of `config_from_object`) and from the environment (upper
case). **The environment wins**, as it does for Celery's own `CELERY_BROKER_URL`; an empty variable
counts as none. A value that cannot work stops the process with one line that names the setting, the
value and what is allowed. So does an unknown `sqlbeat_...` name in the configuration; in the
environment, where other programs name variables too, a name that is nearly one of these is logged
as a warning.

Durations are seconds, fractions allowed, or (in the configuration) a `timedelta`.
"""

DESIGN = """\
# Design notes

Written by `make docs` from the notes; do not edit. [ARCHITECTURE.md](../../ARCHITECTURE.md) walks
through one fire; these notes say why it is built so. One page each: the question, the choice, what
was given up, the evidence. The date is that of the first version.
"""

TOGETHER = """\
## What must fit together

- `sqlbeat_heartbeat_interval` x `sqlbeat_heartbeat_failures` + the statement time-out + the time to
  stop a task must be less than `sqlbeat_lock_timeout`: a worker that cannot extend its lease has to
  notice, and its task has to be gone, before the lease ends. The statement time-out is a third of
  the shorter of `sqlbeat_heartbeat_interval` and `sqlbeat_dispatch_timeout`, at most 5 s; the time
  to stop a task is a tenth of the lease, at most 10 s. With the defaults: 30 x 3 + 5 + 10 = 105 <
  120.
- `sqlbeat_retry_base` is at most `sqlbeat_retry_max`.

## The database URL

| database | form |
|---|---|
| SQLite | `sqlite:///relative.db`, `sqlite:////absolute/path.db` |
| PostgreSQL | `postgresql://user:password@host:port/database?sslmode=require`; of several hosts, with commas, the one that can be written to; options are libpq's |
| SQL Server, Azure SQL | `mssql://user:password@host:port/instance/database?Encrypt=yes`; port, instance, user and options may be left out |
| Azure SQL with Entra ID | `mssql://server.database.windows.net/database?identity=managed&client_id=...`; without a user, an access token logs in: of `identity=default` (azure-identity's chain), `managed`, `workload` or `cli`, with `client_id` and `tenant_id` where it takes them |
| SQL Server by ODBC | `mssql+odbc:Driver={...};Server=...;Database=...`, with `{}` around a value that holds `;` `{` or `}`, and `}` doubled in it |
| MySQL, MariaDB | `mysql://user:password@host:port/database`; [its page](mysql.md) has the options |
| Redis, Valkey | `redis://user:password@host:port/0`, `rediss://` for TLS, `redis://host1,host2/0?sentinel=mymaster`; [its page](redis.md) has the options |
| the memory of one process | `memory://`, for [tests and examples](redis.md#in-the-memory-of-one-process) |
| another package's | the scheme of [its entry point](stores.md#make-it-known) |

SQL Server needs the extra `celery-sqlbeat[mssql]`, and on Linux one step more, as no wheel brings
unixODBC: `apt-get install unixodbc libgssapi-krb5-2`, `dnf install unixODBC krb5-libs` or
`apk add unixodbc krb5-libs`. Microsoft's driver comes in a wheel; an installed one is preferred,
and `?driver=` chooses. Connections are encrypted and the certificate is verified, unless the
address says otherwise (`Encrypt`, `TrustServerCertificate`). An ODBC string that names neither
`UID` nor `Authentication`, `Trusted_Connection` or a DSN logs in by token, too.

In user, password and options write `@ : / ? # & %` as `%40 %3A %2F %3F %23 %26 %25`. Wherever a URL
is shown its password is `***`, and so are options that are not known to be harmless; of a URL that
cannot be read no more than the scheme is shown.
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

The most specific wins, policy by policy: the default, then globs from the shortest to the longest
(of two equally long ones the later), then the job's exact name, then the policies in the job's own
row. Globs are `fnmatch`'s, and case matters.
"""

EVENTS = """\
# Events

Written by `make docs` from `celery_sqlbeat/events/kinds.py`; do not edit.

An event is a name with typed fields. Beats, workers and commands emit one for everything that they
do or detect. The log line is written from it, and you can subscribe a function of your own.PLANNED

```python
from celery_sqlbeat import events


def page(event):
    if event.name in ("dead_lettered", "job_quarantined"):
        print(event.name, event.fields["job_name"], event.fields["reason"])


end = events.subscribe(page)  # from now on, in this process
end()  # no more
```

- **The function runs in the thread that emits**, while a beat or a worker waits for it: put slow
  work into a queue, for a thread of your own. Under gevent and eventlet some of these threads are
  native ones, which must not wait for anything green: no patched lock, socket or queue.
- An exception that it raises stops no beat, no worker and no other subscriber. The first exception
  of a subscriber for each kind of event is logged with its traceback.
- It is called in the process that subscribed, and in processes forked from it later. Processes of a
  prefork pool run tasks and emit little. To subscribe in the beat or the worker itself, do it in
  the module of the app, or at Celery's signals `beat_init` and `worker_init`.
- A function that is subscribed twice is called twice. The events of one thread arrive in order.
- During an outage a repeated failure is an event when it is new, and then ever more rarely.
- A batch is one event, with a count and the names of its jobs.
- A later release may add kinds, and fields of a kind.

An event without a subscriber, at a level that is not logged, costs about 0.2 microseconds (five
fields, Python 3.11, `timeit` on a busy machine); with one subscriber it costs one or two.

## In the log

The line of an event is its sentence, then its fields:
`a run lost its lease and its task is stopped: job_name=nightly run_id=0198...`. The logger is
`celery_sqlbeat`. A log record has the name of the event as `event` and each field as an attribute,
for filters and JSON formatters.

Names that others wrote (of jobs, tasks and queues, and error texts of drivers) cannot end a line or
move the cursor: control characters, line separators, marks of writing direction and invisible
characters are escaped, as `\\n`, `\\x1b` and `\\u202e`. A value with blanks is quoted. Secrets,
such as claim ids, are never fields.

## In a test

```python
from celery_sqlbeat import events

with events.recorded() as seen:
    print("what is tested")
assert [event.name for event in seen] == []
```

## The events

| event | level | line in the log | fields |
|---|---|---|---|
"""

PLANNED = " Those marked *planned* below are declared, and not emitted yet."


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
    kind: validation.Kind = setting.metadata["kind"]
    if setting.default is None:
        return kind.allowed.partition("None: ")[2]
    if isinstance(setting.default, Policies) or setting.default == ():
        return "`{}`"
    shown = f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)
    unit = " s" if "seconds" in kind.allowed else " days" if "days" in kind.allowed else ""
    return f"`{shown}`{unit}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def events_page() -> str:
    """Return the text of docs/events.md."""
    emitted = _emitted()
    head = EVENTS.replace("PLANNED", "" if emitted == set(events.KINDS) else PLANNED)
    rows = [_event_row(kind, "" if kind.name in emitted else " *planned*") for kind in events.KINDS.values()]
    return "\n".join([head + rows[0], *rows[1:], ""])


def _event_row(kind: events.Kind, mark: str) -> str:
    hints = {name: hint for name, hint in inspect.get_annotations(kind.declaration).items() if name != "return"}
    note = re.sub(r"^Emit\b", "Emitted", " ".join((kind.declaration.__doc__ or "").split()))
    more = f" {note}" if note else ""
    fields = ", ".join(f"`{name}` {_cell(_hint(hint))}" for name, hint in hints.items())
    does = f"{kind.sentence[0].upper()}{kind.sentence[1:]}.{more}{mark}"
    return f"| `{kind.name}` | {logging.getLevelName(kind.level)} | {_cell(does)} | {fields} |"


def _hint(hint: Any) -> str:
    if type(hint) is type:
        return str(hint.__name__)
    return re.sub(r"(\w+\.)+", "", str(hint))


def _emitted() -> set[str]:
    """Return the kinds that some module calls, as `events.run_started(`."""
    sources = (path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "events")
    called = {
        name for path in sources for name in re.findall(r"\bevents\.([a-z_]+)\b", path.read_text(encoding="utf-8"))
    }
    return called & set(events.KINDS)


def design_index() -> str:
    """Return the text of docs/design/README.md: the notes by number, with title and date."""
    rows = ["| note | | of |", "|---|---|---|"]
    for path in sorted((HERE / "design").glob("[0-9]*.md")):
        title, _, date = path.read_text(encoding="utf-8").splitlines()[:3]
        rows.append(f"| {path.name[:4]} | [{title.removeprefix('# ')}]({path.name}) | {date} |")
    return "\n".join([DESIGN, *rows, ""])


PAGES: Mapping[str, Any] = {
    "settings.md": settings_page,
    "events.md": events_page,
    "design/README.md": design_index,
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
