"""Deletes the history of a namespace in batches, around the rows that the database does not let go."""

import logging
from collections.abc import Sequence
from datetime import datetime, timezone

from celery_sqlbeat.errors import RowRefused
from celery_sqlbeat.store.database import Database
from celery_sqlbeat.store.halving import in_halves
from celery_sqlbeat.store.protocol import Purged

logger = logging.getLogger(__name__)

FIRST_INSTANT = datetime(2, 1, 1, tzinfo=timezone.utc)


class History:
    """The ended runs of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._refused: set[str] = set()
        """The runs that were refused since a batch began without a place; then they are tried again."""
        self._told: set[str] = set()

    def purge(self, keep_seconds: float, batch_size: int, after: datetime | None) -> Purged:
        """Delete one batch, as `AdminStore.purge_history` says."""
        if after is None:
            self._refused.clear()
        scope = {"namespace": self._namespace, "keep_seconds": keep_seconds, "after": after or FIRST_INSTANT}
        try:
            found = self._database.fetch("purge_runs", batch_size=batch_size, **scope)
        except RowRefused:  # a foreign key or a trigger of the shop's own
            # With room for those that are passed by, so that they never fill a page.
            page = self._database.read("read_old_runs", page_size=batch_size + len(self._refused), **scope)
            return self._purge_around([(row[0], row[1]) for row in page])
        return Purged(sum(row[1] for row in found), max((row[0] for row in found if row[0] is not None), default=None))

    def _purge_around(self, page: Sequence[tuple[str, datetime]]) -> Purged:
        deleted = 0
        known = len(self._refused)

        def delete(part: Sequence[tuple[str]]) -> None:
            nonlocal deleted
            deleted += len(self._database.fetch("purge_old_runs", part, namespace=self._namespace))

        def pass_by(row: tuple[str], why: RowRefused) -> None:
            self._refused.add(row[0])
            if row[0] not in self._told:
                self._told.add(row[0])
                logger.error("run %s is older than the history is kept, and cannot be deleted: %s", row[0], why)

        in_halves([(run_id,) for run_id, _ in page if run_id not in self._refused], delete, pass_by)
        return Purged(deleted, max((slot for _, slot in page), default=None), len(self._refused) - known)
