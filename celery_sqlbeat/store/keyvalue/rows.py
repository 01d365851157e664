"""State what a place for rows must do, so that the verbs can be built on it.

A verb reads rows, decides in Python what they become, and writes them where they are as they were
read. A place is one namespace in one process's memory, or on a Redis server. It keeps rows, sorted
indexes of their ids, a counter and a clock, and knows nothing of jobs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Key = tuple[str, str]
"""A table, and an id in it."""
Row = dict[str, Any]
"""Values that JSON keeps as they are. An instant is a count of microseconds since 1970."""


class Versioned(NamedTuple):
    """A row as it was read; version 0 and None where there is none."""

    version: int
    row: Row | None


ABSENT = Versioned(0, None)


class Scan(NamedTuple):
    """Ask for ids in an index, in the order of their scores and, of equal ones, of the ids."""

    index_name: str
    low: int | None = None
    """The least score; None: from the first on."""
    high: int | None = None
    limit: int | None = None
    after: str | None = None
    """Only ids behind this one in the order, for an index whose scores are all the same."""
    is_reversed: bool = False
    """Whether the last comes first; `after` is then the one before which the page ends."""
    only_count: bool = False
    """Whether only the number of ids is wanted."""


class Found(NamedTuple):
    """The answer to a scan."""

    ids: list[tuple[str, int]]
    """With their scores."""
    total: int
    """How many there are, where only that was asked for; else how many were found."""


class Snapshot(NamedTuple):
    """What was read in one round trip."""

    now: int
    """The clock of the place."""
    counter: int
    rows: dict[Key, Versioned]
    """Of each key that was asked for."""
    scanned: list[Found]
    """In the order of the scans."""


class Change(NamedTuple):
    """Rows that are written together: all of them, or none where one is not as it was read."""

    rows: Mapping[Key, tuple[Versioned, Row | None]]
    """What was read, and what the row becomes: None deletes it. What stays as it was read may stand
    here, too, so that it is compared."""
    is_news: bool = False
    """Whether the counter grows with it."""


class Place(Protocol):
    """Where the rows of one namespace are kept."""

    def read(self, keys: Sequence[Key] = (), scans: Sequence[Scan] = ()) -> Snapshot:
        """Read rows and indexes, the clock and the counter."""

    def write(self, changes: Sequence[Change]) -> list[bool]:
        """Write changes in this order; return which of them were written.

        The place derives the indexes from the rows, by the function that it was made with. Where
        the answer was lost, it finds out itself which ones were written: a version is never used
        twice for a key, not even after the row was deleted.
        """

    def forget(self) -> None:
        """Forget the counter, and all else that is no row; it begins anew."""

    def close(self) -> None:
        """Close the idle connections."""


class Entries(Protocol):
    """Tell in which indexes a row stands, and with which scores."""

    def __call__(self, table: str, row_id: str, row: Row) -> Mapping[str, int]:
        """Return the scores by index."""
