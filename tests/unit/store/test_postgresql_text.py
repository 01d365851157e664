"""How values travel to PostgreSQL: an array for each column of a batch, then the parameters."""

from datetime import datetime, timedelta, timezone

from celery_sqlbeat.store.sql.dialects.postgresql_text import arrays, filled, values_of
from celery_sqlbeat.store.sql.session import load

INSTANT = datetime(2027, 3, 1, 12, 0, 0, 1, timezone.utc)


def test_the_columns_of_a_batch_come_before_the_parameters() -> None:
    block = load("postgresql")["adopt_jobs"]
    assert "$1::uuid[]" in block.text and "CodeOwner = $2" in block.text
    scalars = {"code_owner": "shop", "former_owner": "office"}
    assert values_of(block, [("a",), ("b",)], scalars) == ["{a,b}", "shop", "office"]
    assert values_of(load("postgresql")["read_changes"], None, {"namespace": "n", "unused": 1}) == ["n"]


def test_an_array_holds_each_kind_of_value_as_postgresql_reads_it() -> None:
    kinds = ("id", "instant", "flag", "text(10)", "word(20)", "seconds", "int")
    rows = [("1f", INSTANT, True, 'a "b" \\ \0', "claimed", 0.5, None), (None, None, None, None, None, None, 7)]
    assert arrays(kinds, rows) == [
        "{1f,NULL}",
        "{2027-03-01T12:00:00.000001+00:00,NULL}",
        "{1,NULL}",
        '{"a \\"b\\" \\\\ \ufffd",NULL}',
        '{"claimed",NULL}',
        "{0.5,NULL}",
        "{NULL,7}",
    ]
    east = INSTANT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert arrays(("instant",), [(east,)]) == ["{2027-03-01T17:30:00.000001+05:30}"]


def test_behind_a_pooler_the_values_stand_in_the_text() -> None:
    assert filled(b"SELECT $2, $1, $10", [b"%d" % at for at in range(1, 11)]) == b"SELECT 2, 1, 10"
