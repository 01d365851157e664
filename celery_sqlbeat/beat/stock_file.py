"""The file in which stock beat keeps what ran: read for the switch from it, and kept true for the way back."""

import copy
import logging
import os
import shelve
from collections.abc import Mapping
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

from celery_sqlbeat.beat.code import StockRun
from celery_sqlbeat.beat.entries import job_name_of
from celery_sqlbeat.schedule.edges import within

logger = logging.getLogger(__name__)

_SUFFIXES = ("", ".db", ".dat", ".dir")  # what the kinds of dbm make of one name
_OURS = "celery_sqlbeat"  # beside stock beat's own keys: what was written here, to be told from what stock beat ran


def is_there(filename: str) -> bool:
    """Whether there is such a file, by the name that stock beat gives it."""
    return filename != "" and any(os.path.exists(filename + suffix) for suffix in _SUFFIXES)


def entries_in(filename: str) -> Mapping[Any, Any] | None:
    """The entries that stock beat wrote down, by name; None where there is no such file.

    Raises anything where it cannot be read: a class that is gone, another kind of dbm, a file cut short.
    """
    return _read(filename)[0] if is_there(filename) else None


def runs_in_file(filename: str) -> dict[str, StockRun]:
    """The last runs that stock beat wrote down, by job name; nothing where the file cannot be read."""
    if not is_there(filename):
        return {}
    try:
        entries, ours = _read(filename)
        runs = runs_of(entries)
    except Exception as error:
        logger.warning("the last runs in %s cannot be read, so its entries begin anew: %s", filename, error)
        return {}
    return {name: run._replace(is_stocks=ours.get(name) != run.last_run_at) for name, run in runs.items()}


def runs_of(entries: Mapping[Any, Any]) -> dict[str, StockRun]:
    """The last runs that stock beat's own entries know."""
    found = {}
    for name, entry in entries.items():
        at = getattr(entry, "last_run_at", None)
        if isinstance(at, datetime):
            try:
                aware = within(at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc))
            except OverflowError:
                aware = None
            if aware is not None:
                found[job_name_of(name)] = StockRun(aware, bool(getattr(entry, "total_run_count", 0)))
    return found


def runs_in_code(schedule: Mapping[Any, Any]) -> dict[str, StockRun]:
    """The last runs that entries of a `beat_schedule` say themselves, by job name: stock beat counts from them, too."""
    given = {name: value.get("last_run_at") for name, value in schedule.items() if isinstance(value, Mapping)}
    runs = runs_of({name: SimpleNamespace(last_run_at=at, total_run_count=1) for name, at in given.items()})
    return {name: run._replace(is_stocks=False) for name, run in runs.items()}


def write_runs(filename: str, entries: Mapping[Any, Any], runs: Mapping[str, StockRun]) -> None:
    """Write down when each of these entries ran last, as stock beat does. Raises anything where that cannot be done."""
    with shelve.open(filename) as stored:  # noqa: S301 - the user's own file, as above
        kept = dict(stored.get("entries", {}))
        for name, entry in entries.items():
            run = runs.get(job_name_of(name))
            if run is None:
                continue
            one = kept[name] = copy.copy(kept.get(name, entry))
            one.last_run_at = run.last_run_at
            one.total_run_count = max(one.total_run_count or 0, int(run.has_run))
        stored["entries"] = kept
        stored[_OURS] = {name: run.last_run_at for name, run in runs.items()}


def _read(filename: str) -> tuple[Mapping[Any, Any], Mapping[str, datetime]]:
    # The file is of the user who runs beat, and stock beat unpickles it as well.
    with shelve.open(filename, flag="r") as stored:  # noqa: S301
        return dict(stored.get("entries", {})), dict(stored.get(_OURS, {}))
