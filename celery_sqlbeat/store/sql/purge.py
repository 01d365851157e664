"""Delete history, nodes and names in batches, around the rows that the database refuses."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from celery_sqlbeat import events
from celery_sqlbeat.errors import RowRefused
from celery_sqlbeat.store.beat_protocol import Purged, WriteResult
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.faults import in_halves
from celery_sqlbeat.store.sql.session import Row

FIRST_INSTANT = datetime(2, 1, 1, tzinfo=timezone.utc)


class History:
    """The ended runs of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._refused: set[str] = set()
        """The runs that were refused since the last batch that began at the oldest row."""
        self._told: set[str] = set()

    def purge(self, keep_seconds: float, batch_size: int, after: datetime | None) -> Purged:
        """Delete one batch, as `AdminStore.purge_history` says."""
        if after is None:
            self._refused.clear()
        scope = {"namespace": self._namespace, "keep_seconds": keep_seconds, "after": after or FIRST_INSTANT}
        try:
            deleted = self._database.fetch("purge_runs", batch_size=batch_size, **scope)
        except RowRefused:  # a foreign key or a trigger of the shop's own
            # With room for those that are passed by, so that they never fill a page.
            page = self._database.read("read_old_runs", page_size=batch_size + len(self._refused), **scope)
            return self._purge_around([(row[0], row[1]) for row in page])
        return Purged(
            sum(row[1] for row in deleted), max((row[0] for row in deleted if row[0] is not None), default=None)
        )

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
                events.row_refused(action="delete an old run", row=row[0], error=why)

        in_halves([(run_id,) for run_id, _ in page if run_id not in self._refused], delete, pass_by)
        return Purged(deleted, max((slot for _, slot in page), default=None), len(self._refused) - known)


_PAGE = 900  # rows; SQL Server locks the whole table from a few thousand on


class Leftovers:
    """What outlives its use in one namespace of a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._told: set[tuple[str, str]] = set()

    def purge(self, keep_seconds: float) -> None:
        """Forget what was not alive for so long, as `AdminStore.purge_nodes` says."""
        for page in self._pages("read_old_nodes", keep_seconds):
            self._write("purge_nodes", "forget a node", page, keep_seconds=keep_seconds)
        is_floor_low = False
        # A name is forgotten one pass after the floor was raised for it, so that a row that is
        # added meanwhile gets its fence from one of both.
        for page in self._pages("read_deleted_jobs", keep_seconds):
            new = [row for row in page if row[1]]
            below = [row for row in page if not row[1] and row[2]]
            is_floor_low |= len(new) + len(below) < len(page)
            self._write("note_deleted_jobs", "note the deletion of a job", new)
            self._write("forget_deleted_jobs", "forget a deleted job", below, keep_seconds=keep_seconds)
        if is_floor_low:
            self._database.fetch("raise_fence_floor", namespace=self._namespace, keep_seconds=keep_seconds)

    def purge_dead(self, rows: Sequence[tuple[str]]) -> WriteResult:
        """Delete dead letters, but for those that the database refuses to delete."""
        result = WriteResult(set(), {})

        def delete(part: Sequence[tuple[str]]) -> None:
            result.done.update(row[0] for row in self._database.fetch("purge_dead", part, namespace=self._namespace))

        in_halves(rows, delete, lambda row, why: result.refused.update({row[0]: str(why)}))
        return result

    def _pages(self, block: str, keep_seconds: float) -> Iterator[list[Row]]:
        scope = {"namespace": self._namespace, "keep_seconds": keep_seconds, "page_size": _PAGE}
        after = ""
        while page := self._database.read(block, after_name=after, **scope):
            yield page
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def _write(self, block: str, action: str, rows: Sequence[Row], **scalars: float) -> None:
        """Write rows that begin with a name; each one that is refused is told once."""

        def pass_by(row: tuple[str], why: RowRefused) -> None:
            if (block, row[0]) not in self._told:
                self._told.add((block, row[0]))
                events.row_refused(action=action, row=row[0], error=why)

        def write(part: Sequence[tuple[str]]) -> None:
            self._database.fetch(block, part, namespace=self._namespace, **scalars)

        in_halves([(row[0],) for row in rows], write, pass_by)
