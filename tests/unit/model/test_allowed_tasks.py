"""Only tasks that the settings allow may stand in a row, and no arguments that are too large."""

from typing import Any

import pytest

from celery_sqlbeat.api.job_input import JobText, job_spec
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import FieldError, SettingError
from celery_sqlbeat.model.definition import Rules, read_definition

RULES = Rules(Policies(), "UTC", 120.0, 3, allowed_tasks=("billing.*", "report"), max_payload=100)


def row(task: str) -> JobText:
    return JobText("job", task, "every 5m", None, None, None, None, None, None, None)


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
