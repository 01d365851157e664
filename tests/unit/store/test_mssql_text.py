"""How values travel: parameters as typed variables, rows as JSON, scripts batch by batch."""

import json
from datetime import datetime, timedelta, timezone

from celery_sqlbeat.store.sql.dialects import mssql_driver
from celery_sqlbeat.store.sql.dialects.mssql_text import CLOCK, batch_of, rows_as_json, scalar, split_batches
from celery_sqlbeat.store.sql.session import blocks_in

INSTANT = datetime(2027, 3, 1, 12, 0, 0, 1, timezone.utc)


def test_parameters_are_declared_once_in_front_each_with_its_one_type() -> None:
    block = blocks_in("-- name: x\nSELECT @batch_size, @namespace, @NAME, @batch_size, @@ROWCOUNT, @local;\n")["x"]
    batch = batch_of(block, CLOCK)
    assert batch.text.startswith("DECLARE @batch_size int = ?, @namespace nvarchar(100) = ?;\nSELECT")
    assert batch.names == ("batch_size", "namespace")
    assert batch.sizes == [(mssql_driver.SQL_INTEGER, 0, 0), (mssql_driver.SQL_WVARCHAR, 100, 0)]


def test_a_block_without_parameters_is_sent_as_it_is() -> None:
    block = blocks_in(f"-- name: x\nSELECT {CLOCK} AS Now;\n")["x"]
    assert batch_of(block, CLOCK) == (f"SELECT {CLOCK} AS Now", (), [])


def test_a_test_may_set_the_clock() -> None:
    block = blocks_in(f"-- name: x\nDECLARE @now datetime2(6) = {CLOCK};\n")["x"]
    assert (
        batch_of(block, "(SELECT At FROM TestClock)").text == "DECLARE @now datetime2(6) = (SELECT At FROM TestClock)"
    )


def test_rows_keep_their_order_and_their_values() -> None:
    rows = [("b", 2, None, 1.5, True), ("a", -1, "ü", 0.0, False)]
    assert json.loads(rows_as_json(rows)) == [["b", 2, None, 1.5, True], ["a", -1, "ü", 0.0, False]]


def test_an_instant_is_exact_and_in_utc() -> None:
    east = INSTANT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    for value in (INSTANT, east, INSTANT.replace(tzinfo=None)):
        assert json.loads(rows_as_json([(value,)])) == [["2027-03-01T12:00:00.000001"]]
        assert scalar(value) == "2027-03-01T12:00:00.000001"


def test_what_no_database_keeps_is_replaced() -> None:
    assert json.loads(rows_as_json([("a\0b", "\\u0000")])) == [["a\ufffdb", "\\u0000"]]
    assert json.loads(rows_as_json([("caf\udce9 \U0001f570",)])) == [["caf? \U0001f570"]]


def test_a_list_is_a_json_parameter() -> None:
    assert scalar(["a", "ü"]) == '["a","ü"]'


def test_a_script_is_cut_at_lines_that_hold_only_go() -> None:
    script = "SELECT 1;\nGO\n\n  go ;\r\nSELECT 'GO';\nSELECT 2 AS GO_AHEAD;\nGO"
    assert split_batches(script) == ["SELECT 1;", "SELECT 'GO';\nSELECT 2 AS GO_AHEAD;"]


def test_a_line_within_a_text_that_says_more_than_go_is_no_cut() -> None:
    assert len(split_batches("PRINT N'\nGO on\n';")) == 1
