"""What stock beat has to know to go on where these beats stand: what ran here must not run there again, or get lost."""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_sqlbeat.beat.code import StockRun
from celery_sqlbeat.beat.stock_file import write_runs
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model import CODE_SCHEDULE, CodeRow
from celery_sqlbeat.schedule import Every, parse
from celery_sqlbeat.store.protocol import CodeStore

logger = logging.getLogger(__name__)

_JUST_BEFORE = timedelta(seconds=1)  # a crontab counts in minutes, the sun is no more exact


class HandingBack:
    """Keeps the file of stock beat true for the jobs of one `beat_schedule`."""

    def __init__(self, filename: str, entries: Mapping[Any, Any], owner: str, store: CodeStore) -> None:
        self._filename = filename
        self._entries = entries
        self._owner = owner
        self._store = store

    def write(self) -> None:
        """Write down what has run. Whatever keeps it from that keeps beat from nothing else."""
        try:
            runs = runs_for_stock(self._store.code_rows(self._owner), datetime.now(timezone.utc))
            write_runs(self._filename, self._entries, runs)
        except Exception as error:
            logger.info("%s does not say what has run, stock beat would not know it: %s", self._filename, error)


def runs_for_stock(rows: Iterable[CodeRow], now: datetime) -> dict[str, StockRun]:
    """From when stock beat is to count, by job name; `now` is this host's clock, by which stock beat goes, too."""
    found = {}
    for row in rows:
        at = _counts_from(row, now)
        if at is not None:
            found[row.job_name] = StockRun(at, row.last_run_time is not None or row.claimed_at is not None)
    return found


def _counts_from(row: CodeRow, now: datetime) -> datetime | None:
    """Such that stock beat's next run is the next slot here; None where it knows better itself."""
    if row.claimed_at is not None:
        return row.claimed_at  # it is sent, and stock beat counts from the sending
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
