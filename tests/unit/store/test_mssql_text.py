"""How values travel: parameters as typed variables, rows as JSON, scripts batch by batch."""

import json
from datetime import datetime, timedelta, timezone

from celery_sqlbeat.store.sql.dialects import mssql_driver
from celery_sqlbeat.store.sql.dialects.mssql_text import rows_as_json, scalar, sizes_of, split_batches
from celery_sqlbeat.store.sql.session import load

INSTANT = datetime(2027, 3, 1, 12, 0, 0, 1, timezone.utc)


def test_parameters_are_declared_once_in_front_each_with_its_one_type() -> None:
    block = load("mssql")["list_jobs"]
    declared = "DECLARE @page_size int = ?, @namespace nvarchar(100) = ?, @after_name nvarchar(200) = ?;\n"
    assert block.text.startswith(declared + "DECLARE @now ")
    assert block.parameters.names == ("page_size", "namespace", "after_name")
    wide = mssql_driver.SQL_WVARCHAR
    assert sizes_of(block) == [(mssql_driver.SQL_INTEGER, 0, 0), (wide, 100, 0), (wide, 200, 0)]


def test_the_rows_come_last_as_one_text() -> None:
    block = load("mssql")["read_run"]
    assert block.text.startswith("DECLARE @namespace nvarchar(100) = ?, @rows nvarchar(max) = ?;\n")
    assert sizes_of(block) == [(mssql_driver.SQL_WVARCHAR, 100, 0), (mssql_driver.SQL_WVARCHAR, 0, 0)]


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
