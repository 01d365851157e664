"""Units: read, decide, write; decided anew where somebody else was faster."""

from collections.abc import Sequence

import pytest

from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable
from celery_sqlbeat.store.keyvalue.memory import MemoryPlace
from celery_sqlbeat.store.keyvalue.rows import Change, Key, Row, Scan, Snapshot
from celery_sqlbeat.store.keyvalue.units import Busy, View, carry_out, sure
from tests.unit.store.keyvalue.steps import Interrupted


def indexed(table: str, row_id: str, row: Row) -> dict[str, int]:
    return {table: row["amount"]}


@pytest.fixture
def place() -> MemoryPlace:
    return MemoryPlace(indexed)


def keys(row_id: str) -> list[Key]:
    return [("purse", row_id)]


def add_one(view: View, row_id: str) -> int:
    row = view.row("purse", row_id)
    if row is None:
        view.add("purse", row_id, {"amount": 1})
        return 1
    row["amount"] += 1
    return int(row["amount"])


def amount(place: MemoryPlace, row_id: str) -> int | None:
    row = place.read([("purse", row_id)]).rows["purse", row_id].row
    return None if row is None else row["amount"]


def test_each_unit_gives_its_answer_in_the_order_of_the_items(place: MemoryPlace) -> None:
    carry_out(place, ["b"], keys, add_one)
    assert carry_out(place, ["a", "b", "c"], keys, add_one) == [1, 2, 1]


def test_a_unit_whose_row_has_changed_meanwhile_is_decided_anew(place: MemoryPlace) -> None:
    interrupted = Interrupted(place)
    interrupted.actions.append(lambda: carry_out(place, ["a"], keys, add_one))
    assert carry_out(interrupted, ["a", "b"], keys, add_one) == [2, 1]
    assert amount(place, "a") == 2


def test_units_of_one_batch_that_write_the_same_row_follow_each_other_in_one_round(place: MemoryPlace) -> None:
    writes: list[int] = []

    class Counted(Interrupted):
        def write(self, changes: Sequence[Change]) -> list[bool]:
            writes.append(len(changes))
            return super().write(changes)

    assert carry_out(Counted(place), ["a", "b", "a", "a"], keys, add_one) == [1, 1, 2, 3]
    assert writes == [2]


def test_units_that_build_on_each_other_are_lost_together(place: MemoryPlace) -> None:
    interrupted = Interrupted(place)
    interrupted.actions.append(lambda: carry_out(place, ["a"], keys, add_one))
    assert carry_out(interrupted, ["a", "a"], keys, add_one) == [2, 3]


def test_a_row_that_was_only_seen_is_compared(place: MemoryPlace) -> None:
    """Else what was decided by it might not hold any more."""

    def copy_of_a(view: View, row_id: str) -> int:
        seen = view.row("purse", "a")
        view.add("purse", row_id, {"amount": 0 if seen is None else seen["amount"]})
        return 0

    interrupted = Interrupted(place)
    interrupted.actions.append(lambda: carry_out(place, ["a"], keys, add_one))
    carry_out(interrupted, ["copy"], keys, copy_of_a)
    assert amount(place, "copy") == 1


def test_what_a_unit_asks_for_is_read_with_all_it_has_seen(place: MemoryPlace) -> None:
    """A unit never decides by rows of two instants."""
    for row_id in "ab":
        carry_out(place, [row_id], keys, add_one)

    class Moving(Interrupted):
        def read(self, keys: Sequence[Key] = (), scans: Sequence[Scan] = ()) -> Snapshot:
            snapshot = super().read(keys, scans)
            carry_out(self.place, ["a", "b"], lambda row_id: [("purse", row_id)], add_one)
            return snapshot

    def compare(view: View, _: str) -> tuple[int, int]:
        one, other = view.row("purse", "a"), view.row("purse", "b")
        assert one is not None and other is not None
        return one["amount"], other["amount"]

    ((one, other),) = sure(carry_out(Moving(place), ["a"], keys, compare))
    assert one == other == 2


def test_a_scan_is_answered_within_the_unit(place: MemoryPlace) -> None:
    carry_out(place, ["a", "b"], keys, add_one)

    def count(view: View, _: str) -> int:
        return view.scan(Scan("purse", only_count=True)).total

    assert carry_out(place, ["a"], keys, count) == [2]


def test_a_unit_that_always_loses_is_busy_and_harms_no_other(
    place: MemoryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_sqlbeat.store.keyvalue.units.sleep", lambda _: None)
    interrupted = Interrupted(place)
    interrupted.actions += [lambda: carry_out(place, ["a"], keys, add_one)] * 1000
    assert carry_out(interrupted, ["a", "b"], keys, add_one) == [Busy.BUSY, 1]
    with pytest.raises(DatabaseBusy):
        sure([1, Busy.BUSY])


def lose_the_place() -> None:
    raise DatabaseUnavailable("it is away")


def test_an_outage_before_anything_is_written_is_the_callers(place: MemoryPlace) -> None:
    interrupted = Interrupted(place)
    interrupted.actions.append(lose_the_place)
    with pytest.raises(DatabaseUnavailable):
        carry_out(interrupted, ["a"], keys, add_one)


def test_an_outage_after_some_are_written_leaves_the_others_open(place: MemoryPlace) -> None:
    interrupted = Interrupted(place)
    interrupted.actions += [lambda: carry_out(place, ["a"], keys, add_one), lose_the_place]
    assert carry_out(interrupted, ["a", "b"], keys, add_one) == [Busy.BUSY, 1]


def test_nothing_is_written_where_nothing_changes(place: MemoryPlace) -> None:
    interrupted = Interrupted(place)
    interrupted.actions.append(lose_the_place)
    assert carry_out(interrupted, ["a"], keys, lambda view, row_id: view.row("purse", row_id)) == [None]


def test_a_field_that_is_none_is_not_kept(place: MemoryPlace) -> None:
    def add(view: View, row_id: str) -> None:
        view.add("purse", row_id, {"amount": 1, "owner": None})

    carry_out(place, ["a"], keys, add)
    assert place.read([("purse", "a")]).rows["purse", "a"].row == {"amount": 1}


def test_the_counter_grows_with_news_alone(place: MemoryPlace) -> None:
    def tell(view: View, row_id: str) -> None:
        add_one(view, row_id)
        view.is_news = row_id == "a"

    carry_out(place, ["a", "b"], keys, tell)
    assert place.read().counter == 1
