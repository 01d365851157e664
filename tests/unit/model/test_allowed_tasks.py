"""Only tasks that the settings allow may stand in a row, and no arguments that are too large."""

import json
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat.api.job_input import JobText, job_spec
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import FieldError, LineError, SettingError
from celery_sqlbeat.model.definition import Rules, read_definition
from celery_sqlbeat.transfer.jsonl import CheckedLine, read_lines

RULES = Rules(Policies(), "UTC", 120.0, 3, allowed_tasks=("billing.*", "report"), max_payload=100)


def row(task: str, **columns: Any) -> JobText:
    return JobText("job", task, "every 5m", None, None, None, None, None, None, None)._replace(**columns)


@pytest.mark.parametrize("task", ["billing.close", "billing.a.b", "report"])
def test_a_task_that_is_allowed_may_run(task: str) -> None:
    assert read_definition(row(task), RULES).call.task_name == task


@pytest.mark.parametrize("task", ["os.system", "Billing.close", "xbilling.close", "reporter"])
def test_a_row_with_another_task_cannot_run_and_says_why(task: str) -> None:
    with pytest.raises(FieldError, match=r"TaskName = .*sqlbeat_allowed_tasks has \(billing\.\*, report\)"):
        read_definition(row(task), RULES)
    with pytest.raises(FieldError, match="TaskName"):
        job_spec(RULES, "job", task, "every 5m")


def test_by_default_every_task_may_run() -> None:
    rules = RULES._replace(allowed_tasks=("*",))
    assert read_definition(row("os.system"), rules).call.task_name == "os.system"


@pytest.mark.parametrize(
    ("args", "kwargs"), [(["x" * 99], None), (None, {"a": "ä" * 50}), (["x" * 48], {"a": "x" * 48})]
)
def test_arguments_that_are_too_large_are_refused_with_their_size(args: Any, kwargs: Any) -> None:
    with pytest.raises(FieldError, match=r"= '1\d\d bytes': arguments have at most 100 bytes \(sqlbeat_max_payload\)"):
        job_spec(RULES, "job", "report", "every 5m", args, kwargs)
    assert job_spec(RULES, "job", "report", "every 5m", ["x" * 96]).text.args


@pytest.mark.parametrize("value", ["billing.*", [], [""], [7], None])
def test_a_bad_list_of_tasks_is_refused(value: object) -> None:
    with pytest.raises(SettingError, match="sqlbeat_allowed_tasks"):
        read_settings({"sqlbeat_allowed_tasks": value}, {})


def test_the_list_of_tasks_can_stand_in_a_variable() -> None:
    settings = read_settings({}, {"SQLBEAT_ALLOWED_TASKS": "billing.*, report"})
    assert settings.allowed_tasks == ("billing.*", "report")


SIGNATURE = {"task": "os.system", "args": ["x"], "kwargs": {}, "options": {}}


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"task": "os.system"}},
        {"link": SIGNATURE},
        {"link": [{"task": "report", "options": {"link_error": [SIGNATURE]}}]},
        {"link_error": SIGNATURE},
        {"chain": [SIGNATURE]},
        {"chord": {"task": "report", "kwargs": {"body": SIGNATURE}}},
        {"headers": {"task": None}},
        {"headers": {"task": ["report"]}},
    ],
)
def test_no_option_leads_to_another_task(options: dict[str, Any]) -> None:
    """A header replaces the task of its message, and a link is a message that the worker sends."""
    with pytest.raises(FieldError, match=r"Options = .*sqlbeat_allowed_tasks has"):
        read_definition(row("report", options=json.dumps(options)), RULES)
    with pytest.raises(FieldError, match="sqlbeat_allowed_tasks"):
        job_spec(RULES, "job", "report", "every 5m", options=options)


def test_a_link_to_a_task_that_is_allowed_may_stand_there() -> None:
    options = {"link": [{"task": "billing.close", "args": []}], "queue": "q"}
    assert read_definition(row("report", options=json.dumps(options)), RULES).call.options == options


def test_what_is_checked_is_what_celery_would_run() -> None:
    """The header is no made-up danger: with it Celery sends another task than the one named."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    with app.connection_for_write() as connection:
        app.send_task("report", headers={"task": "os.system"}, connection=connection, queue="allowed-tasks")
        message = connection.SimpleQueue("allowed-tasks").get(timeout=1)
    assert message.headers["task"] == "os.system"


@pytest.mark.parametrize(
    ("task", "column", "value"),
    [
        ("celery.chord", "kwargs", {"header": [SIGNATURE], "body": {"task": "report"}}),
        ("celery.map", "kwargs", {"task": SIGNATURE, "it": [1]}),
        ("celery.starmap", "args", [{"task": "os.system"}, [1]]),
    ],
)
def test_a_task_of_celery_that_is_allowed_sends_no_others(task: str, column: str, value: Any) -> None:
    rules = RULES._replace(allowed_tasks=("celery.*", "report"), max_payload=1000)
    with pytest.raises(FieldError, match="sqlbeat_allowed_tasks"):
        read_definition(row(task, **{column: json.dumps(value)}), rules)


def test_arguments_of_other_tasks_may_say_what_they_like() -> None:
    assert read_definition(row("report", kwargs='{"task": "os.system"}'), RULES).call.kwargs == {"task": "os.system"}


@pytest.mark.parametrize("task", ["billing.\nos.system", "billing.*", "billing.[", "billing.ünïcode"])
def test_a_glob_is_matched_as_a_whole_and_a_name_is_no_glob(task: str) -> None:
    assert read_definition(row(task), RULES).call.task_name == task
    with pytest.raises(FieldError):
        read_definition(row(f"x\n{task}"), RULES)
    with pytest.raises(FieldError):
        read_definition(row(task), RULES._replace(allowed_tasks=("billing",)))


@pytest.mark.parametrize("globs", [("*", "report"), ("rep*", "*")])
def test_a_list_with_a_glob_for_all_allows_all(globs: tuple[str, ...]) -> None:
    assert read_definition(row("os.system"), RULES._replace(allowed_tasks=globs)).call.task_name == "os.system"


@pytest.mark.parametrize("columns", [{"args": '["%s"]'}, {"kwargs": '{"a": "%s"}'}])
def test_a_row_by_hand_with_arguments_that_are_too_large_cannot_run(columns: dict[str, str]) -> None:
    ((column, text),) = columns.items()
    fits = text % ("ä" * ((100 - len(text) + 2) // 2))
    assert len(fits.encode()) in (99, 100)
    read_definition(row("report", **{column: fits}), RULES)
    with pytest.raises(FieldError, match=rf"{column.title()} = '\d+ bytes': arguments have at most 100 bytes"):
        read_definition(row("report", **{column: text % ("ä" * 50)}), RULES)


def test_arguments_that_are_too_large_are_not_parsed() -> None:
    with pytest.raises(FieldError, match="100000 bytes"):
        read_definition(row("report", args="[" * 100_000), RULES)


def test_a_deeply_nested_option_is_one_clear_error() -> None:
    deep = '{"headers": ' + '{"a": ' * 400 + '{"task": "os.system"}' + "}" * 401
    with pytest.raises(FieldError, match="sqlbeat_allowed_tasks"):
        read_definition(row("report", options=deep), RULES)


def test_an_imported_line_is_held_to_the_same_rules() -> None:
    lines = [
        {"name": "a", "task": "os.system", "schedule": "every 5m"},
        {"name": "b", "task": "report", "schedule": "every 5m", "options": {"link": SIGNATURE}},
        {"name": "c", "task": "report", "schedule": "every 5m", "args": ["x" * 100]},
        {"name": "d", "task": "report", "schedule": "every 5m", "args": ["x"]},
    ]
    read = list(read_lines(map(json.dumps, lines), RULES))
    assert [type(each) for each in read] == [LineError, LineError, LineError, CheckedLine]
    assert [each.field for each in read if isinstance(each, LineError)] == ["task", "options", "args"]
