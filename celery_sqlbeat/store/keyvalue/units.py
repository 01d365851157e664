"""Carry out units of work: read what each needs, decide in Python, write what nobody has changed.

A unit is one job or one run. One whose rows somebody else has written meanwhile is decided anew,
and all others stand.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from time import sleep
from typing import Generic, TypeVar

from celery_sqlbeat import environment
from celery_sqlbeat.errors import DatabaseBusy, TransientError
from celery_sqlbeat.store.keyvalue.rows import ABSENT, Change, Found, Key, Place, Row, Scan, Snapshot, Versioned

_TRIES = 30  # of a unit whose rows are other ones at each write; somebody else got on each time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05  # seconds
_PART = 250  # units of one round: no answer and no write keeps a server from others for long

T = TypeVar("T")
Item = TypeVar("Item")
Pair = tuple[Versioned, Row | None]
"""A row as it was read, and as it becomes."""


class Busy(Enum):
    """The answer of a unit that lost every time, or whose write has no answer."""

    BUSY = "busy"


class _Unread(Exception):  # never leaves this module
    def __init__(self, wanted: "Key | Scan") -> None:
        super().__init__(wanted)
        self.wanted = wanted


class View:
    """What a unit sees of the place, and what it makes of it.

    All that it sees is of one instant, and is compared when something is written.
    """

    def __init__(self, read: "_Read", overlay: dict[Key, Row | None]) -> None:
        self._read = read
        self._before = overlay
        self._rows: dict[Key, Row | None] = {}
        """What this unit has seen, and may have changed."""
        self.now = read.now
        self.is_news = False
        """Whether the change counter grows with what is written."""

    def row(self, table: str, row_id: str | None) -> Row | None:
        """Return a row, which the unit may change; None where there is none, or no id."""
        if row_id is None:
            return None
        key = (table, row_id)
        if key not in self._rows:
            if key in self._before:
                row = self._before[key]
            elif key in self._read.rows:
                row = self._read.rows[key].row
            else:
                raise _Unread(key)
            self._rows[key] = None if row is None else dict(row)
        return self._rows[key]

    def scan(self, scan: Scan) -> Found:
        """Return ids in an index, which are not compared: only a row that others write, too, is."""
        if scan not in self._read.scanned:
            raise _Unread(scan)
        return self._read.scanned[scan]

    def add(self, table: str, row_id: str, row: Row) -> None:
        """Write a row that is not there, or in the place of one that was seen."""
        self._rows[table, row_id] = row

    def remove(self, table: str, row_id: str) -> None:
        """Delete a row."""
        self.row(table, row_id)
        self._rows[table, row_id] = None

    def pairs(self) -> tuple[dict[Key, Pair], bool]:
        """Return each row as it was read and as it becomes, and whether any is another one now."""
        pairs: dict[Key, Pair] = {}
        has_changes = False
        for key, row in self._rows.items():
            read = self._read.rows.get(key, ABSENT)
            before = self._before.get(key, read.row)
            if row is not None and row != before:
                row = {field: value for field, value in row.items() if value is not None}
            if row == before:
                pairs[key] = (read, before)
            else:
                pairs[key] = (read, row)
                has_changes = True
        return pairs, has_changes


Decide = Callable[[View, Item], T]
"""Changes rows of the view and returns the answer; may be called again, on a later view."""


class _Read:
    """What one round has read."""

    def __init__(self, snapshot: Snapshot, scans: Sequence[Scan]) -> None:
        self.now = snapshot.now
        self.rows = snapshot.rows
        self.scanned = dict(zip(scans, snapshot.scanned, strict=True))


class _Unit(Generic[Item]):
    def __init__(self, at: int, item: Item, keys: Iterable[Key]) -> None:
        self.at = at
        self.item = item
        self.keys = list(keys)
        self.scans: list[Scan] = []
        self.tries = 0


class _Group(Generic[Item]):
    """Units that build on each other's rows: they are written together."""

    def __init__(self, unit: _Unit[Item], pairs: dict[Key, Pair], is_news: bool) -> None:
        self.units = [unit]
        self.pairs = pairs
        self.is_news = is_news

    def take(self, other: "_Group[Item]") -> None:
        """Put another group before this one, whose rows may be later."""
        self.units = [*other.units, *self.units]
        self.pairs = other.pairs | self.pairs
        self.is_news |= other.is_news


def carry_out(
    place: Place, items: Sequence[Item], keys: Callable[[Item], Iterable[Key]], decide: Decide[Item, T]
) -> list[T | Busy]:
    """Carry out a unit for each item; return their answers in order.

    `keys`: what a unit reads in any case. What it asks for beyond that costs another round.
    """
    answers: list[T | Busy] = []
    for part in parts(items):
        try:
            answers += _carry_out(place, part, keys, decide)
        except TransientError:
            if not answers:
                raise
            # What is written stands; nobody knows about the rest.
            answers += [Busy.BUSY] * (len(items) - len(answers))
            break
    return answers


def _carry_out(
    place: Place, items: Sequence[Item], keys: Callable[[Item], Iterable[Key]], decide: Decide[Item, T]
) -> list[T | Busy]:
    answers: list[T | Busy] = [Busy.BUSY] * len(items)
    pending = [_Unit(at, item, keys(item)) for at, item in enumerate(items)]
    has_success = False
    while pending:
        try:
            pending, has_won = _round(place, pending, decide, answers)
        except TransientError:
            if not has_success:
                raise
            return answers  # those that are written stand; nobody knows about the others
        has_success |= has_won
        lost = max((unit.tries for unit in pending), default=0)
        if lost > 1:
            sleep(environment.chance() * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**lost))
        pending = [unit for unit in pending if unit.tries < _TRIES]
    return answers


def _round(
    place: Place, pending: Sequence[_Unit[Item]], decide: Decide[Item, T], answers: list[T | Busy]
) -> tuple[list[_Unit[Item]], bool]:
    """Read, decide and write once; return the units that go on, and whether anything is written."""
    scans = list(dict.fromkeys(scan for unit in pending for scan in unit.scans))
    read = _Read(place.read(list(dict.fromkeys(key for unit in pending for key in unit.keys)), scans), scans)
    rest: list[_Unit[Item]] = []
    groups: dict[int, _Group[Item]] = {}
    writers: dict[Key, _Group[Item]] = {}
    overlay: dict[Key, Row | None] = {}
    made: dict[int, T] = {}
    for unit in pending:
        view = View(read, overlay)
        try:
            answer = decide(view, unit.item)
        except _Unread as unread:
            if isinstance(unread.wanted, Scan):
                unit.scans.append(unread.wanted)
            else:
                unit.keys.append(unread.wanted)
            rest.append(unit)
            continue
        pairs, has_changes = view.pairs()
        before = {id(writers[key]): writers[key] for key in pairs if key in writers} if writers else {}
        if not has_changes and not before:
            answers[unit.at] = answer
            continue
        group = _Group(unit, pairs, view.is_news)
        for other in before.values():
            group.take(other)
            del groups[id(other)]
        groups[id(group)] = group
        for key, (read_row, row) in group.pairs.items():
            if row is not read_row.row:
                writers[key] = group
                overlay[key] = row
        made[unit.at] = answer
    ready = list(groups.values())
    wins = place.write([Change(group.pairs, group.is_news) for group in ready]) if ready else []
    for group, has_won in zip(ready, wins, strict=True):
        for unit in group.units:
            if has_won:
                answers[unit.at] = made[unit.at]
            else:
                unit.tries += 1
                rest.append(unit)
    return rest, any(wins)


def parts(items: Sequence[T], size: int = _PART) -> Iterator[Sequence[T]]:
    """Return the items in parts of a bearable size."""
    for first in range(0, len(items), size):
        yield items[first : first + size]


def sure(answers: Iterable[T | Busy]) -> list[T]:
    """Return the answers; a DatabaseBusy where a unit has none."""
    answered: list[T] = []
    for answer in answers:
        if isinstance(answer, Busy):
            raise busy()
        answered.append(answer)
    return answered


def busy() -> DatabaseBusy:
    """Return the error of a verb that has no answer for a unit."""
    return DatabaseBusy("others change the same rows all the time: they could not be written for now")
