"""Delete history, dead letters, nodes and names, around the rows that the database refuses."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from celery_sqlbeat import events
from celery_sqlbeat.errors import RowRefused
from celery_sqlbeat.store.purges import DeadLetters, OldKeys, OldNodes, OldRuns, Purged, WholeNamespace
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.faults import in_halves
from celery_sqlbeat.store.sql.session import Row, Session

FIRST_INSTANT = datetime(2, 1, 1, tzinfo=timezone.utc)
_PAGE = 900  # rows; SQL Server locks the whole table from a few thousand on

# The rows of a batch, and the rest after it. SQL Server: below the number of locks at which it
# would lock the whole table. SQLite has one writer at a time, so a batch is short, and takes a
# quarter of the time.
_BATCHES = {"mssql": (900, 0.0), "sqlite": (100, 3.0)}
_BATCH = (2000, 0.0)

_OF_A_NAMESPACE = ("forget_releases", "forget_names", "forget_locks", "forget_keys", "forget_counter")


class Purger:
    """What is no longer needed in one namespace of a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._batch, self._rest = _BATCHES.get(database.dialect.name, _BATCH)
        self._refused: set[str] = set()
        """The runs that were refused since the last batch that began at the oldest row."""
        self._told: set[tuple[str, str]] = set()
        self._fence_floor: int | None = None

    def purge(self, what: DeadLetters | OldRuns | OldNodes | OldKeys | WholeNamespace) -> Purged:
        """Delete rows, as `Store.purge` says."""
        if isinstance(what, DeadLetters):
            return self._write("purge_dead", [(run_id,) for run_id in what.run_ids])
        if isinstance(what, OldNodes):
            rows = self._purge_nodes(what.keep_seconds)
            self._purge_locks(what.keep_seconds)
            return Purged(rows)
        if isinstance(what, OldKeys):
            batch = what.limit or self._batch
            purged = self._database.fetch("purge_keys", namespace=self._namespace, batch_size=batch)
            return Purged(sum(row[0] for row in purged), limit=batch, rest=self._rest)
        if isinstance(what, WholeNamespace):
            return Purged(self._database.write(self._forget_namespace))
        return self._purge_runs(what)._replace(limit=what.limit or self._batch, rest=self._rest)

    def _purge_runs(self, what: OldRuns) -> Purged:
        if what.after is None:
            self._refused.clear()
        after, batch = what.after or FIRST_INSTANT, what.limit or self._batch
        scope = {"namespace": self._namespace, "keep_seconds": what.keep_seconds, "after": after}
        try:
            deleted = self._database.fetch("purge_runs", batch_size=batch, **scope)
        except RowRefused:  # a foreign key or a trigger of the shop's own
            # With room for those that are passed by, so that they never fill a page.
            page = self._database.read("read_old_runs", page_size=batch + len(self._refused), **scope)
            untried = [row for row in page if row[0] not in self._refused]
            purged = self._write("purge_old_runs", untried, "delete an old run")
            self._refused.update(purged.refused)
            return purged._replace(last=max((slot for _, slot in page), default=None))
        last = max((slot for slot, _ in deleted if slot is not None), default=None)
        return Purged(sum(rows for _, rows in deleted), last=last)

    def _forget_namespace(self, session: Session) -> int:
        is_used, rows = session.fetch("read_namespace", namespace=self._namespace)[0]
        if is_used:
            return 0
        for block in _OF_A_NAMESPACE:
            session.fetch(block, namespace=self._namespace)
        return int(rows)

    def _purge_nodes(self, keep_seconds: float) -> int:
        deleted = 0
        for page in self._pages("read_old_nodes", keep_seconds):
            deleted += self._write("purge_nodes", page, "forget a node", keep_seconds=keep_seconds).rows
        is_floor_low = False
        # A name is forgotten one pass after the floor was raised for it, so that a row that is
        # added meanwhile gets its fence from one of both.
        for page in self._pages("read_deleted_jobs", keep_seconds):
            new = [row for row in page if row[1]]
            below = [row for row in page if not row[1] and row[2]]
            is_floor_low |= len(new) + len(below) < len(page)
            self._write("note_deleted_jobs", new, "note the deletion of a job")
            gone = self._write("forget_deleted_jobs", below, "forget a deleted job", keep_seconds=keep_seconds)
            deleted += gone.rows
        if is_floor_low:
            self._database.fetch("raise_fence_floor", namespace=self._namespace, keep_seconds=keep_seconds)
        return deleted

    def _purge_locks(self, keep_seconds: float) -> None:
        """Forget old locks below the floor that the pass before has read, then raise the floor.

        Whoever takes one of them at this moment has seen its row, or that floor.
        """
        scope = {"namespace": self._namespace, "keep_seconds": keep_seconds}
        if self._fence_floor is not None:
            self._database.fetch("purge_locks", floor=self._fence_floor, **scope)
        self._database.fetch("raise_lock_floor", **scope)
        floor = self._database.read("read_fence_floor", namespace=self._namespace)
        self._fence_floor = int(floor[0][0]) if floor else None

    def _pages(self, block: str, keep_seconds: float) -> Iterator[list[Row]]:
        scope = {"namespace": self._namespace, "keep_seconds": keep_seconds, "page_size": _PAGE}
        after = ""
        while page := self._database.read(block, after_name=after, **scope):
            yield page
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def _write(self, block: str, rows: Sequence[Row], action: str | None = None, **scalars: float) -> Purged:
        """Write rows, which begin with a name; with an action each refused one is logged once."""
        written, refused = 0, dict[str, str]()

        def write(part: Sequence[tuple[str]]) -> None:
            nonlocal written
            written += len(self._database.fetch(block, part, namespace=self._namespace, **scalars))

        def pass_by(row: tuple[str], why: RowRefused) -> None:
            refused[row[0]] = str(why)
            if action is not None and (block, row[0]) not in self._told:
                self._told.add((block, row[0]))
                events.row_refused(action=action, row=row[0], error=why)

        in_halves([(row[0],) for row in rows], write, pass_by)
        return Purged(written, refused)
