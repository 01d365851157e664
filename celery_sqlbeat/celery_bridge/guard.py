"""Ends a worker or a beat by one line where a foreign symbol is missing, and sums up the table.

Celery's signals let `SystemExit` through, and log every other exception. Raised while a worker or a
beat is made, it ends the process with its text on stderr and exit code 1, whatever started it.
"""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import celery_sqlbeat
from celery_sqlbeat import events
from celery_sqlbeat.celery_bridge.symbols import (
    LIBRARIES,
    CheckedSymbol,
    Part,
    lacking,
    load_everything,
    refusal,
    verify,
    version_of,
)

_AS_PLAIN_WORKER = "(SQLBEAT_DISABLE=1 runs this worker as a plain one)"
_OURS = ("celery_sqlbeat", "sqlbeat")  # how a scheduler of ours is named: by its module, or by its entry point
_PREFORK = ("prefork", "processes")


def require_worker(worker: Any) -> None:
    """End this worker if a required symbol is missing; before its pool and consumer are made."""
    options = getattr(worker, "options", None) or {}
    scheduler = str(options.get("scheduler") or worker.app.conf.beat_scheduler or "")
    parts: list[Part] = ["worker"]
    if options.get("beat") and scheduler.startswith(_OURS):  # a beat inside this worker
        parts.append("beat")
    _load_transport(worker.app)
    if getattr(worker, "pool_cls", None) in _PREFORK:  # loaded later, unless by other handlers
        importlib.import_module("celery.concurrency.prefork")
    if (line := _wrong(*parts)) is not None:
        refuse_worker(line, worker.app, getattr(worker, "loglevel", None), getattr(worker, "logfile", None))


def require_beat(app: Any) -> None:
    """End this beat if a required symbol is missing."""
    _load_transport(app)
    if (line := _wrong("beat")) is not None:
        raise SystemExit(line)


def refuse_worker(line: str, app: Any, loglevel: Any = None, logfile: str | None = None) -> NoReturn:
    """End this worker by a line, also in its log file: a detached worker shows no other."""
    line = f"{line} {_AS_PLAIN_WORKER}"
    try:
        if logfile:
            app.log.setup_logging_subsystem(loglevel or "INFO", logfile)
            events.worker_refused(reason=line)
    finally:  # the worker ends even if it cannot log
        raise SystemExit(line)


def end_worker(error: BaseException) -> NoReturn:
    """End a worker that has set up its logs, since this error keeps it from its leases."""
    events.worker_refused(reason=f"{told(error)} {_AS_PLAIN_WORKER}")
    raise SystemExit(1)


def told(error: BaseException, *parts: Part) -> str:
    """Return one line for an unexpected error, or for the symbol that one of these parts lacks."""
    line = _wrong(*parts) if parts else None
    if line is not None:
        return line
    text = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
    return f"celery-sqlbeat {celery_sqlbeat.__version__} cannot start ({text}): repair the installation, or report it"


def _wrong(*parts: Part) -> str | None:
    wrong = lacking(verify(*parts))
    return refusal(wrong, celery_sqlbeat.__version__) if wrong else None


def _load_transport(app: Any) -> None:
    """Load the client of the broker, whose symbols count only where it is loaded."""
    try:
        app.connection_for_read().get_transport_cls()
        app.connection_for_write().get_transport_cls()
    except Exception as error:  # Celery reports it, and decides whether the process ends
        events.noted(topic="the client of the broker cannot be loaded", text=error)


class Summary(NamedTuple):
    """The table of symbols, compared with what is installed here."""

    versions: dict[str, str]
    """By the libraries' names on PyPI; `none` for one that is not installed."""
    rows: list[CheckedSymbol]

    @property
    def missing(self) -> list[CheckedSymbol]:
        """The rows without which no worker or beat starts."""
        return lacking(self.rows)

    @property
    def features_off(self) -> dict[str, str]:
        """The fast paths that are off, each with the first symbol that it lacks."""
        reasons: dict[str, str] = {}
        for row in self.rows:
            if row.difference is not None and row.symbol.feature is not None:
                reason = f"{row.symbol.library} {self.versions[row.symbol.library]} {row.difference}: {row.symbol.lost}"
                reasons.setdefault(row.symbol.feature, reason)
        return reasons

    @property
    def text(self) -> str:
        """One line for people."""
        held = sum(row.is_loaded and row.difference is None for row in self.rows)
        unseen = sum(not row.is_loaded for row in self.rows)
        parts = [
            f"{held} symbols as expected",
            f"{len(self.missing)} missing",
            f"{len(self.features_off)} fast paths off",
        ]
        if unseen:
            parts.append(f"{unseen} not checked, since their library is not installed")
        shown = ", ".join(f"{LIBRARIES[name].shown} {version}" for name, version in self.versions.items())
        return f"{shown}: {', '.join(parts)}"

    def refusal(self, ours: str) -> str:
        """Return the line by which a worker or beat would end."""
        return refusal(self.missing, ours)

    def as_json(self) -> dict[str, Any]:
        """Return the table for programs."""
        return {
            "versions": self.versions,
            "features_off": self.features_off,
            "symbols": [_row(row) for row in self.rows],
        }


def summarize() -> Summary:
    """Compare the whole table, after importing all libraries that are installed."""
    load_everything()
    rows: Sequence[CheckedSymbol] = verify("worker", "beat")
    return Summary({name: version_of(name) for name in LIBRARIES}, list(rows))


def _row(row: CheckedSymbol) -> dict[str, Any]:
    symbol = row.symbol
    return {
        "symbol": symbol.path,
        "part": symbol.part,
        "kind": symbol.kind,
        "expected": list(symbol.takes),
        "since": symbol.since,
        "required": symbol.feature is None,
        "feature": symbol.feature,
        "lost": symbol.lost,
        "state": "not loaded" if not row.is_loaded else "held" if row.difference is None else "missing",
        "difference": row.difference,
    }
