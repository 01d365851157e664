"""Lines of a file of jobs: what a line may say, and what is said about one that cannot work."""

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.errors import LineError
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.transfer.jsonl import FIELDS, CheckedLine, read_lines

RULES = Rules(Policies(), "UTC", 120.0, 3)
GOOD: dict[str, Any] = {"name": "a", "task": "app.task", "schedule": "every 5m"}


def read(*lines: str) -> list[CheckedLine | LineError]:
    return list(read_lines(lines, RULES))


def error(line: str) -> LineError:
    (found,) = read(line)
    assert isinstance(found, LineError)
    return found


def test_a_line_is_a_job() -> None:
    (found,) = read(
        json.dumps({**GOOD, "args": [1], "options": {"queue": "q"}, "max_retries": 1, "start": "2027-01-01T00:00Z"})
    )
    assert isinstance(found, CheckedLine)
    assert found.job.name == "a"
    assert (found.spec.text.schedule, found.spec.text.args) == ("every 5m", "[1]")
    assert found.spec.definition.max_retries == 1
    assert found.spec.start_at == datetime(2027, 1, 1, tzinfo=timezone.utc)


def test_a_schedule_that_is_a_number_means_seconds() -> None:
    (found,) = read(json.dumps({**GOOD, "schedule": 90}))
    assert isinstance(found, CheckedLine) and found.spec.text.schedule == "every 1m30s"


def test_blank_lines_and_a_byte_order_mark_are_nothing() -> None:
    first, second = read("\ufeff" + json.dumps(GOOD), "", "  \n", json.dumps({**GOOD, "name": "b"}))
    assert isinstance(first, CheckedLine) and isinstance(second, CheckedLine)
    assert (first.line, second.line) == (1, 4)


@pytest.mark.parametrize(
    ("change", "field", "value", "remedy"),
    [
        ({"schedule": "evry 5m"}, "schedule", "evry 5m", "a schedule is one of"),
        ({"schedule": None}, "schedule", None, "say when the job runs"),
        ({"schedule": "cron 61 * * * *"}, "schedule", "cron 61 * * * *", "61"),
        ({"schedule": -1}, "schedule", ..., "0.001"),
        ({"name": ""}, "name", "", "write the name of a job"),
        ({"name": 5}, "name", 5, "write the name of a job"),
        ({"name": "x" * 201}, "name", ..., "at most 200 characters"),
        ({"task": None}, "task", None, "write the name of a Celery task"),
        ({"args": {"a": 1}}, "args", {"a": 1}, "write a list"),
        ({"kwargs": [1]}, "kwargs", [1], "write a mapping"),
        ({"options": {"priority": "high"}}, "options.priority", "high", "whole number"),
        ({"enabled": "yes"}, "enabled", "yes", "True or False"),
        ({"start": "tomorrow"}, "start", "tomorrow", "2027-01-31T09:00:00Z"),
        ({"start": "2027-01-01T00:00:00"}, "start", "2027-01-01T00:00:00", "with its time zone"),
        ({"start": "0001-01-02T00:00:00Z"}, "start", "0001-01-02T00:00:00Z", "years 2 to 9998"),
        ({"next_run_time": 5}, "next_run_time", 5, "2027-01-31T09:00:00Z"),
        ({"last_run_time": "9999-06-01T00:00:00Z"}, "last_run_time", "9999-06-01T00:00:00Z", "years"),
        ({"disabled_reason": "why"}, "disabled_reason", "why", '"enabled": false'),
        ({"enabled": False, "disabled_reason": ""}, "disabled_reason", "", "1 to 200"),
        ({"max_retries": -1}, "max_retries", -1, "whole number"),
        ({"overlap": "maybe"}, "overlap", "maybe", "skip"),
        ({"timezone": "Mars/Olympus"}, "timezone", "Mars/Olympus", "time zone"),
        ({"crontab": "5"}, "crontab", "5", "no such field; there are name, task"),
    ],
)
def test_what_cannot_work_is_named_with_its_value_and_what_helps(
    change: dict[str, Any], field: str, value: object, remedy: str
) -> None:
    found = error(json.dumps({**GOOD, **change}))
    assert (found.line, found.field) == (1, field)
    if value is not ...:
        assert found.value == value
    assert remedy in found.remedy
    assert str(found).startswith(f"line 1, {field} = ") and "\n" not in str(found)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("name: a", "not JSON"),
        ('{"name": "a", "schedule": NaN}', "NaN is not JSON"),
        ("[1]", "write an object"),
        ('"a"', "write an object"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_object_is_said(line: str, remedy: str) -> None:
    found = error(line)
    assert found.field == "" and remedy in str(found) and str(found).startswith("line 1: ")


def test_a_field_that_stands_there_twice_is_refused() -> None:
    found = error('{"name": "a", "task": "t", "schedule": 5, "task": "u"}')
    assert (found.field, found.value) == ("task", "u")


def test_a_name_that_stands_there_twice_is_refused() -> None:
    first, second = read(json.dumps(GOOD), json.dumps(GOOD))
    assert isinstance(first, CheckedLine)
    assert isinstance(second, LineError) and "line 1 has this name already" in str(second)


def test_every_wrong_line_is_found() -> None:
    found = read("x", json.dumps(GOOD), "y")
    assert [isinstance(one, LineError) for one in found] == [True, False, True]


def test_the_fields_are_those_of_put() -> None:
    from inspect import signature

    from celery_sqlbeat.api.jobs import Jobs

    taken = set(signature(Jobs.put).parameters) - {"self", "version"}
    assert set(FIELDS) == taken | {"next_run_time", "last_run_time", "disabled_reason"}
