"""Reads the file in which stock beat keeps what ran, so that the switch from it loses no slot."""

import logging
import os
import shelve
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from celery_sqlbeat.beat.code import StockRun
from celery_sqlbeat.beat.entries import job_name_of

logger = logging.getLogger(__name__)

_SUFFIXES = ("", ".db", ".dat", ".dir")  # what the kinds of dbm make of one name


def entries_in(filename: str) -> Mapping[Any, Any] | None:
    """The entries that stock beat wrote down, by name; None where there is no such file.

    Raises anything where it cannot be read: a class that is gone, another kind of dbm, a file cut short.
    """
    if not any(os.path.exists(filename + suffix) for suffix in _SUFFIXES):
        return None
    # The file is of the user who runs beat, and stock beat unpickles it as well.
    with shelve.open(filename, flag="r") as stored:  # noqa: S301
        return dict(stored.get("entries", {}))


def runs_in_file(filename: str) -> dict[str, StockRun]:
    """The last runs that stock beat wrote down, by job name; nothing where the file cannot be read."""
    try:
        return runs_of(entries_in(filename) or {})
    except Exception as error:
        logger.warning("the last runs in %s cannot be read, so its entries begin anew: %s", filename, error)
        return {}


def runs_of(entries: Mapping[Any, Any]) -> dict[str, StockRun]:
    """The last runs that stock beat's own entries know."""
    found = {}
    for name, entry in entries.items():
        at = getattr(entry, "last_run_at", None)
        if isinstance(at, datetime):
            aware = at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)
            found[job_name_of(name)] = StockRun(aware, bool(getattr(entry, "total_run_count", 0)))
    return found
