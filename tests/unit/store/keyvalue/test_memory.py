"""A place in memory: rows, indexes, versions, and what a fork leaves behind."""

import os
from typing import Any

import pytest

from celery_sqlbeat.store.keyvalue.memory import MemoryPlace, memory_store
from celery_sqlbeat.store.keyvalue.rows import ABSENT, Change, Key, Row, Scan, Versioned
from tests.unit.store.keyvalue.steps import NOON, Clock, Steps

A, B, C = ("t", "a"), ("t", "b"), ("t", "c")


def indexed(table: str, row_id: str, row: Row) -> dict[str, int]:
    return {"all": row["score"], "same": 0}


@pytest.fixture
def place() -> MemoryPlace:
    place = MemoryPlace(indexed, clock=Clock())
    assert place.write([Change({A: (ABSENT, {"score": 3}), B: (ABSENT, {"score": 1}), C: (ABSENT, {"score": 2})})])
    return place


def ids(place: MemoryPlace, index_name: str, **scan: Any) -> list[str]:
    return [row_id for row_id, _ in place.read(scans=[Scan(index_name, **scan)]).scanned[0].ids]


def row(place: MemoryPlace, key: Key) -> Versioned:
    return place.read([key]).rows[key]


@pytest.mark.parametrize(
    ("scan", "expected"),
    [
        ({}, "bca"),
        ({"limit": 2}, "bc"),
        ({"low": 2}, "ca"),
        ({"high": 2}, "bc"),
        ({"low": 2, "high": 2}, "c"),
        ({"is_reversed": True}, "acb"),
        ({"is_reversed": True, "limit": 1, "high": 2}, "c"),
        ({"low": 4}, ""),
    ],
)
def test_an_index_is_in_the_order_of_its_scores(place: MemoryPlace, scan: dict[str, Any], expected: str) -> None:
    assert "".join(ids(place, "all", **scan)) == expected
    assert place.read(scans=[Scan("all", **{**scan, "limit": None}, only_count=True)]).scanned[0].total == len(
        ids(place, "all", **{**scan, "limit": None})
    )


def test_ids_of_the_same_score_are_in_their_own_order_page_by_page(place: MemoryPlace) -> None:
    assert ids(place, "same", limit=2) == ["a", "b"]
    assert ids(place, "same", limit=2, after="b") == ["c"]
    assert ids(place, "same", limit=2, is_reversed=True) == ["c", "b"]
    assert ids(place, "same", limit=2, is_reversed=True, after="b") == ["a"]
    assert ids(place, "nobody's", after="b") == []


def test_a_change_is_written_where_all_rows_are_as_they_were_read(place: MemoryPlace) -> None:
    one, other = row(place, A), row(place, B)
    first = Change({A: (one, {"score": 9}), B: (other, other.row)})
    second = Change({A: (one, {"score": 8}), C: (row(place, C), None)})
    assert place.write([first, second]) == [True, False]
    assert ids(place, "all") == ["b", "c", "a"]


def test_a_version_is_never_used_twice(place: MemoryPlace) -> None:
    before = row(place, A)
    place.write([Change({A: (before, None)})])
    place.write([Change({A: (ABSENT, {"score": 3})})])
    assert row(place, A).row == before.row
    assert row(place, A).version != before.version
    assert place.write([Change({A: (before, None)})]) == [False]


def test_nobody_shares_a_row_with_the_place(place: MemoryPlace) -> None:
    read = row(place, A).row
    assert read is not None
    read["score"] = 7
    given = {"score": 5}
    place.write([Change({B: (row(place, B), given)})])
    given["score"] = 6
    assert (row(place, A).row, row(place, B).row) == ({"score": 3}, {"score": 5})


def test_all_parts_of_a_process_have_the_same_store() -> None:
    clock = Clock()
    one, other = (memory_store("same", "default", clock) for _ in range(2))
    beside, elsewhere = memory_store("same", "other", clock), memory_store("another", "default", clock)
    Steps(clock, place=one.place).add()  # type: ignore[arg-type]  # it is in memory
    assert other.counts().total == 1
    assert beside.counts().total == elsewhere.counts().total == 0


def test_it_needs_no_init() -> None:
    store = memory_store("fresh", clock=Clock())
    assert store.check_schema().store_id
    assert store.migrate() == []
    assert [remark.topic for remark in store.remarks()] == ["memory"]


def test_a_fork_starts_empty_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    steps.add()
    told: list[str] = []
    monkeypatch.setattr("celery_sqlbeat.events.advice", lambda **facts: told.append(facts["topic"]))
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert steps.store.counts().total == 0
    assert steps.store.check_schema().version == 1
    assert told == ["memory"]


def test_its_clock_is_the_one_that_it_was_given(place: MemoryPlace) -> None:
    assert Steps().store.pulse().now == NOON
