"""Keep rows in the memory of one process: for tests, examples, and one process that does it all."""

import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from datetime import datetime

from celery_sqlbeat import environment, events
from celery_sqlbeat.store.keyvalue.entries import entries
from celery_sqlbeat.store.keyvalue.identity import new_store
from celery_sqlbeat.store.keyvalue.rows import ABSENT, Change, Entries, Found, Key, Row, Scan, Snapshot, Versioned
from celery_sqlbeat.store.keyvalue.store import KeyValueStore
from celery_sqlbeat.store.keyvalue.tables import micros
from celery_sqlbeat.store.records import Remark

_BEHIND_EVERY_ID = "\U0010ffff"
Index = list[tuple[int, str]]


_places: dict[tuple[str, str], "MemoryPlace"] = {}
_guard = environment.lock()


def place_named(name: str, namespace: str, clock: Callable[[], datetime] = environment.now) -> "MemoryPlace":
    """Return the place of this name, the same for every part of the process."""
    with _guard:
        if (name, namespace) not in _places:
            _places[name, namespace] = MemoryPlace(entries, [new_store(clock())], clock)
        return _places[name, namespace]


def memory_store(
    name: str = "", namespace: str = "default", clock: Callable[[], datetime] = environment.now
) -> KeyValueStore:
    """Return the store of this name; it needs no `init`. The clock is that of its first opening."""
    return KeyValueStore(place_named(name, namespace, clock), namespace, lambda: _REMARKS)


_REMARKS = [
    Remark(
        "note",
        "memory",
        "jobs and history are in the memory of this process: nobody else sees them, and they end with it",
        "use a database where anything must outlive a process",
    )
]


class MemoryPlace:
    """Rows, indexes, counter and clock of one namespace, for all threads of a process."""

    def __init__(
        self, entries_of: Entries, first: Sequence[Change] = (), clock: Callable[[], datetime] = environment.now
    ) -> None:
        """Derive the indexes by `entries_of`. `first` is written to it whenever it is empty."""
        self._entries = entries_of
        self._first = first
        self._clock = clock
        self._lock = environment.lock()
        self._clear()

    def read(self, keys: Sequence[Key] = (), scans: Sequence[Scan] = ()) -> Snapshot:
        """Read rows and indexes, the clock and the counter."""
        with self._lock:
            self._check_process()
            rows = {key: _copied(self._rows.get(key, ABSENT)) for key in keys}
            return Snapshot(micros(self._clock()), self._counter, rows, [self._scan(scan) for scan in scans])

    def write(self, changes: Sequence[Change]) -> list[bool]:
        """Write changes in this order; return which of them were written."""
        with self._lock:
            self._check_process()
            return [self._write(change) for change in changes]

    def forget(self) -> None:
        """Forget the counter; it begins anew, with the first rows."""
        with self._lock:
            self._counter = 0
            for change in self._first:
                self._write(change)

    def close(self) -> None:
        """Keep everything: it lives as long as its process."""

    def _check_process(self) -> None:
        """Start empty in a process that was forked: what it would write, nobody else would see."""
        if self._process != os.getpid():
            had = len(self._rows) > len(self._first)
            self._clear()
            if had:
                events.advice(
                    topic="memory",
                    text="this process was forked from one that keeps its store in memory: its own is empty",
                    remedy="keep beat and workers in one process without forks, or use a database",
                )

    def _clear(self) -> None:
        self._process = os.getpid()
        self._rows: dict[Key, Versioned] = {}
        self._indexes: dict[str, Index] = {}
        self._counter = 0
        self._version = 0
        for change in self._first:
            self._write(change)

    def _scan(self, scan: Scan) -> Found:
        index = self._indexes.get(scan.index_name, [])
        low = 0 if scan.low is None else bisect_left(index, (scan.low, ""))
        high = len(index) if scan.high is None else bisect_right(index, (scan.high, _BEHIND_EVERY_ID))
        if scan.after is not None and index:
            score = index[0][0]
            if scan.is_reversed:
                high = min(high, bisect_left(index, (score, scan.after)))
            else:
                low = max(low, bisect_right(index, (score, scan.after)))
        if scan.only_count:
            return Found([], max(0, high - low))
        size = max(0, high - low) if scan.limit is None else min(scan.limit, max(0, high - low))
        part = index[high - size : high][::-1] if scan.is_reversed else index[low : low + size]
        return Found([(row_id, score) for score, row_id in part], len(part))

    def _write(self, change: Change) -> bool:
        if any(self._rows.get(key, ABSENT).version != read.version for key, (read, _) in change.rows.items()):
            return False
        for key, (_, row) in change.rows.items():
            old = self._rows.get(key, ABSENT).row
            if row == old:
                continue
            self._version += 1
            if row is None:
                del self._rows[key]
            else:
                self._rows[key] = Versioned(self._version, dict(row))
            self._index(key, old, row)
        self._counter += change.is_news
        return True

    def _index(self, key: Key, old: Row | None, new: Row | None) -> None:
        before = {} if old is None else self._entries(*key, old)
        after = {} if new is None else self._entries(*key, new)
        for name, score in before.items() - after.items():
            index = self._indexes[name]
            del index[bisect_left(index, (score, key[1]))]
            if not index:
                del self._indexes[name]
        for name, score in after.items() - before.items():
            insort(self._indexes.setdefault(name, []), (score, key[1]))


def _copied(read: Versioned) -> Versioned:
    return read if read.row is None else Versioned(read.version, dict(read.row))
