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

SUFFIXES = ("", ".db", ".dat", ".dir")  # what the kinds of dbm make of one name


def runs_in_file(filename: str) -> dict[str, StockRun]:
    """The last runs that stock beat wrote down, by job name; nothing where the file cannot be read."""
    if not any(os.path.exists(filename + suffix) for suffix in SUFFIXES):
        return {}
    try:
        # The file is of the user who runs beat, and stock beat unpickles it as well.
        with shelve.open(filename, flag="r") as stored:  # noqa: S301
            return runs_of(stored.get("entries", {}))
    except Exception as error:  # a class that is gone, another kind of dbm, a file cut short
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
