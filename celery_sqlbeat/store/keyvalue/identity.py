"""Tell whose store this is: its row, which `init` writes, and the epoch of its fences."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone

from celery_sqlbeat import environment
from celery_sqlbeat.errors import TablesMissing
from celery_sqlbeat.model.lifecycle import CLAIMED, RUNNING
from celery_sqlbeat.store.keyvalue.rows import ABSENT, Change, Key, Place, Row, Scan
from celery_sqlbeat.store.keyvalue.tables import (
    ALL_RELEASES,
    DELETED,
    JOB,
    KEY,
    KEYS,
    LOCK,
    LOCKS,
    NAME,
    NAMES,
    NODES,
    ONE_OFFS,
    OPEN,
    OWNER,
    OWNERS,
    RELEASE,
    RUN,
    RUNS,
    STEP,
    STORE,
    TAKEN,
    instant,
    micros,
    slots_index,
)
from celery_sqlbeat.store.keyvalue.units import View, carry_out, parts, sure
from celery_sqlbeat.store.records import Schema
from celery_sqlbeat.store.versions import usable_schema

VERSION = 1
"""Of the tables; one more with each change that an older release cannot live with."""
OLDEST_RELEASE = "0.1.0"
_FIRST_STEP = "0001_rows"
_PAGE = 500  # rows of one read
_BEGINNING = datetime(2025, 1, 1, tzinfo=timezone.utc)


def new_store(now: datetime) -> Change:
    """Return what makes an empty place a store."""
    row = {
        "store_id": environment.random_hex(16),
        "epoch": 0,
        "fence_floor": 0,
        "version": VERSION,
        "oldest_release": OLDEST_RELEASE,
        "created_at": micros(now),
    }
    return Change({STORE: (ABSENT, row)})


class Identity:
    """The row of a store, in its place."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def migrate(self, progress: Callable[[str], None] = lambda _: None) -> list[str]:
        """Write the row where there is none; return the names of the steps taken."""
        snapshot = self._place.read([STORE])
        if snapshot.rows[STORE].row is None and all(self._place.write([new_store(instant(snapshot.now))])):
            progress(f"applied {_FIRST_STEP} (1 of 1)")
            return [_FIRST_STEP]
        self.check_schema()
        return []

    def check_schema(self) -> Schema:
        """Return its version and the store's id; a SchemaError: this release cannot use it."""
        row = self._place.read([STORE]).rows[STORE].row
        if row is None:
            raise TablesMissing
        schema = usable_schema(row["version"], VERSION, lambda: str(row["oldest_release"]))
        return schema._replace(store_id=row["store_id"], epoch=row["epoch"])

    def recover(self, progress: Callable[[int], None] = lambda _: None) -> int:
        """Raise every fence by an epoch, after a restore; return the new epoch.

        Safe to repeat, and while beats and workers run.
        """
        self.check_schema()
        epoch = sure(carry_out(self._place, [STORE], lambda key: [key], _raise_epoch))[0]
        for names in self._ids(NAMES):
            rows = self._place.read([(NAME, name) for name in names]).rows.values()
            self._raise([(JOB, read.row["job_id"]) for read in rows if read.row and read.row.get("job_id")], epoch)
            progress(len(names))
        for run_ids in self._ids(ONE_OFFS):
            self._raise([(table, run_id) for table in (RUN, JOB) for run_id in run_ids], epoch)
            progress(len(run_ids))
        # What was dispatched keeps its fence: nobody would send its message again.
        open_runs = self._place.read(scans=[Scan(slots_index(OPEN))]).scanned[0].ids
        for part in parts(open_runs):
            self._raise([(RUN, run_id) for run_id, _ in part], epoch)
            progress(len(part))
        for part in parts(self._place.read(scans=[Scan(TAKEN)]).scanned[0].ids):
            self._raise([(LOCK, key) for key, _ in part], epoch)
        return epoch

    def _ids(self, index_name: str) -> Iterator[list[str]]:
        """Yield pages of an index whose scores are all the same."""
        after: str | None = None
        while found := self._place.read(scans=[Scan(index_name, limit=_PAGE, after=after)]).scanned[0].ids:
            ids = [row_id for row_id, _ in found]
            yield ids
            after = ids[-1]

    def _raise(self, keys: Sequence[Key], epoch: int) -> None:
        def lift(view: View, key: Key) -> None:
            row = view.row(*key)
            if row is not None and row["fence"] < epoch * STEP and _may_be_raised(key, row):
                row["fence"] = epoch * STEP + row["fence"] % STEP

        sure(carry_out(self._place, keys, lambda key: [key], lift))


def forget_namespace(place: Place) -> int:
    """Delete the row of a store that nobody uses, and what is left beside it; return how much."""
    read = place.read(scans=[*(Scan(name, limit=1) for name in (NAMES, RUNS, NODES)), Scan(LOCKS)])
    locks = place.read([(LOCK, key) for key, _ in read.scanned[-1].ids]).rows.values()
    is_held = any((lock.row or {}).get("lease_ends_at", 0) > read.now for lock in locks)
    if is_held or any(found.ids for found in read.scanned[:-1]):
        return 0
    tables = {RELEASE: ALL_RELEASES, OWNER: OWNERS, NAME: DELETED, LOCK: TAKEN, KEY: KEYS}
    scanned = place.read(scans=[Scan(index) for index in tables.values()]).scanned
    left = [(table, row_id) for table, found in zip(tables, scanned, strict=True) for row_id, _ in found.ids]
    sure(carry_out(place, [*left, STORE], lambda key: [key], lambda view, key: view.remove(*key)))
    place.forget()
    return len(left)


def _may_be_raised(key: Key, row: Row) -> bool:
    return key[0] in (JOB, LOCK) or row["state"] in (CLAIMED, RUNNING)


def _raise_epoch(view: View, key: Key) -> int:
    row = view.row(*key)
    if row is None:
        raise TablesMissing
    # The minute, not only the next number: a backup that is restored twice comes with the same
    # number both times.
    row["epoch"] = max(row["epoch"] + 1, (view.now - micros(_BEGINNING)) // 60_000_000)
    return int(row["epoch"])
