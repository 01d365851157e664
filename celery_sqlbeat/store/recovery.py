"""What follows a restore or a lossy fail-over: every fence is raised by an epoch, so that none of before is valid.

The database has forgotten claims whose messages and runs may still be about. Their fences would be given out again.
"""

from collections.abc import Callable
from datetime import datetime, timezone

from celery_sqlbeat.store.database import Database
from celery_sqlbeat.store.protocol import FIRST_ID
from celery_sqlbeat.store.session import Session

STEP = 1_000_000_000  # fences per epoch; a job that is claimed every second has enough of them for 31 years
_PAGE = 500  # rows; a transaction each
_FIRST = datetime(2025, 1, 1, tzinfo=timezone.utc)
_PAGES = (("list_low_jobs", "raise_job_fences"), ("list_low_runs", "raise_run_fences"))


def recover(database: Database, progress: Callable[[int], None] = lambda _: None) -> int:
    """Raise every fence, in all namespaces; returns the new epoch. Safe to repeat, and while beats and workers run."""

    def begin(session: Session) -> int:
        ((_, epoch),) = session.fetch("read_store")
        ((now,),) = session.fetch("read_clock")
        # The minute, not only the next number: a backup that is restored twice comes with the same number both times.
        new = max(int(epoch) + 1, int((now - _FIRST).total_seconds() // 60))
        session.fetch("raise_epoch", epoch=new)
        return new

    epoch = database.write(begin)
    for listing, raising in _PAGES:
        after = FIRST_ID
        while page := database.read(listing, floor=epoch * STEP, after_id=after, page_size=_PAGE):
            after = str(page[-1][0])
            rows = [(str(row[0]),) for row in page]
            _raise(database, raising, rows, epoch * STEP)
            progress(len(page))
    return epoch


def _raise(database: Database, block: str, rows: list[tuple[str]], floor: int) -> None:
    database.write(lambda session: session.fetch(block, rows, floor=floor, step=STEP))
