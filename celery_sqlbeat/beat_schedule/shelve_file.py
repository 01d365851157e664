"""Read stock beat's file of last runs for the switch from it, and keep it true for the way back.

What ran here must not run there again, or get lost.
"""

import copy
import os
import shelve
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

from celery_sqlbeat import environment, events
from celery_sqlbeat.beat_schedule.entries import job_name_of
from celery_sqlbeat.beat_schedule.plan import StockRun
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model import CODE_SCHEDULE, CodeRow
from celery_sqlbeat.schedule import Every, parse
from celery_sqlbeat.schedule.zone import within
from celery_sqlbeat.store import Store

_JUST_BEFORE = timedelta(seconds=1)  # a crontab counts in minutes, the sun is no more exact
_SUFFIXES = ("", ".db", ".dat", ".dir")  # that the kinds of dbm add to a name
_OURS = "celery_sqlbeat"  # the key, beside stock beat's, of what these beats ran and it did not


def is_there(filename: str) -> bool:
    """Return whether there is such a file, by the name that stock beat gives it."""
    return filename != "" and any(os.path.exists(filename + suffix) for suffix in _SUFFIXES)


def entries_in(filename: str) -> Mapping[Any, Any] | None:
    """Return the entries that stock beat wrote, by name; None where there is no such file.

    Raises any error where it cannot be read: a class that is gone, another dbm, a truncated file.
    """
    return _read(filename)[0] if is_there(filename) else None


def runs_in_file(filename: str) -> dict[str, StockRun]:
    """Return the last runs that stock beat wrote, by job name; none where they cannot be read."""
    if not is_there(filename):
        return {}
    try:
        entries, ours = _read(filename)
        runs = runs_of(entries)
    except Exception as error:
        events.step_failed(
            step="read the last runs of stock beat, so its entries begin anew", subject=filename, error=error
        )
        return {}
    return {name: run._replace(is_stocks=ours.get(name) != run.last_run_at) for name, run in runs.items()}


def runs_of(entries: Mapping[Any, Any]) -> dict[str, StockRun]:
    """Return the last runs that stock beat's own entries have."""
    runs = {}
    for name, entry in entries.items():
        at = getattr(entry, "last_run_at", None)
        if isinstance(at, datetime):
            try:
                aware = within(at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc))
            except OverflowError:
                aware = None
            if aware is not None:
                runs[job_name_of(name)] = StockRun(aware, bool(getattr(entry, "total_run_count", 0)))
    return runs


def runs_in_code(schedule: Mapping[Any, Any]) -> dict[str, StockRun]:
    """Return the last runs that a `beat_schedule` gives its entries; stock beat uses them, too."""
    given = {name: value.get("last_run_at") for name, value in schedule.items() if isinstance(value, Mapping)}
    runs = runs_of({name: SimpleNamespace(last_run_at=at, total_run_count=1) for name, at in given.items()})
    return {name: run._replace(is_stocks=False) for name, run in runs.items()}


def write_runs(filename: str, entries: Mapping[Any, Any], runs: Mapping[str, StockRun]) -> None:
    """Write the last run of each of these entries, as stock beat does; may raise any error."""
    with shelve.open(filename) as stored:  # noqa: S301 - the user's own file, as above
        kept = dict(stored.get("entries", {}))
        for name, entry in entries.items():
            run = runs.get(job_name_of(name))
            if run is None:
                continue
            updated = kept[name] = copy.copy(kept.get(name, entry))
            updated.last_run_at = run.last_run_at
            updated.total_run_count = max(updated.total_run_count or 0, int(run.has_run))
        stored["entries"] = kept
        stored[_OURS] = {name: run.last_run_at for name, run in runs.items()}


def _read(filename: str) -> tuple[Mapping[Any, Any], Mapping[str, datetime]]:
    # The file is of the user who runs beat, and stock beat unpickles it as well.
    with shelve.open(filename, flag="r") as stored:  # noqa: S301
        return dict(stored.get("entries", {})), dict(stored.get(_OURS, {}))


class ShelveWriter:
    """Keeps the file of stock beat true for the jobs of one `beat_schedule`."""

    def __init__(self, filename: str, entries: Mapping[Any, Any], owner: str, store: Store) -> None:
        self._filename = filename
        self._entries = entries
        self._owner = owner
        self._store = store

    def write(self) -> None:
        """Write what has run. An error is logged, and keeps beat from nothing else."""
        try:
            runs = runs_for_stock(self._store.code_state(self._owner, "", 0.0).rows, environment.now())
            write_runs(self._filename, self._entries, runs)
        except Exception as error:
            events.noted(topic="last runs for stock beat", text=f"{self._filename} does not say what has run: {error}")


def runs_for_stock(rows: Iterable[CodeRow], now: datetime) -> dict[str, StockRun]:
    """Return from when stock beat is to count, by job name; `now` is of this host's clock."""
    runs = {}
    for row in rows:
        at = _counts_from(row, now)
        if at is not None:
            runs[row.job_name] = StockRun(at, row.last_run_time is not None or row.claimed_at is not None)
    return runs


def _counts_from(row: CodeRow, now: datetime) -> datetime | None:
    """Return from when stock beat's next run is the next slot; None to leave what it has."""
    if row.claimed_at is not None:
        return row.claimed_at  # stock beat counts from the sending
    slot = row.next_run_time
    if row.schedule == CODE_SCHEDULE or not isinstance(slot, datetime):
        return row.last_run_time if isinstance(row.last_run_time, datetime) else None
    if not row.enabled:
        return now  # stock beat knows no pause; at least nothing is overdue there
    try:
        schedule = parse(row.schedule)
    except FieldError:
        return None
    return min(now, slot - (schedule.interval if isinstance(schedule, Every) else _JUST_BEFORE))
