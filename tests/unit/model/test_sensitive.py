"""The arguments of a sensitive job, and of any job where arguments are encrypted, are not shown."""

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from cryptography.fernet import Fernet

from celery_sqlbeat.api.job_input import job_spec
from celery_sqlbeat.api.records import job_of
from celery_sqlbeat.beat_schedule.entries import read_entries
from celery_sqlbeat.celery_bridge.call_check import check_call
from celery_sqlbeat.celery_bridge.message_header import HIDDEN_ARGUMENTS, is_hidden
from celery_sqlbeat.celery_bridge.tasks import keep_hidden
from celery_sqlbeat.config.payload_key import Keyring
from celery_sqlbeat.config.policy import Policies, policies_from_setting
from celery_sqlbeat.errors import FieldError, LineError, PayloadLocked
from celery_sqlbeat.model import DueBatch, DueJob, JobRecord
from celery_sqlbeat.model.definition import Rules, read_definition
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.publish import messages
from celery_sqlbeat.transfer.jsonl import line_of, read_lines
from tests.support.claims import claim
from tests.support.stock import untyped

NOW = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
SECRET = "4711-0815"
KEYS = Keyring([Fernet.generate_key().decode()])
PLAIN = Rules(Policies(), "UTC", 120.0, 3)
BY_GLOB = PLAIN._replace(policies=policies_from_setting({"card*": {"sensitive": True}}))
SEALED = PLAIN._replace(payload_key=KEYS)
OWN = '{"sensitive": true}'
HIDING = [(BY_GLOB, None), (PLAIN, OWN), (SEALED, None)]
ARGS = json.dumps([SECRET])


def pay(amount: int) -> None:
    """Return a task that takes one argument."""


def row(**columns: Any) -> JobRecord:
    facts: dict[str, Any] = dict.fromkeys(JobRecord._fields)
    facts |= {"job_id": "1", "job_name": "card", "task_name": "shop.pay", "schedule": "every 60s", "args": ARGS}
    facts |= {"enabled": 1, "fence": 0, "version": 1, "republishes": 0, "delete_requested": 0, "now": NOW}
    return JobRecord(**{**facts, **columns})


def due(**columns: Any) -> DueBatch:
    of_row = {name: value for name, value in row(**columns)._asdict().items() if name in DueJob._fields}
    facts = {**dict.fromkeys(DueJob._fields), **of_row, "next_run_time": NOW, "extra": 0, "open_runs": 0}
    return DueBatch([DueJob(**facts)])


@pytest.mark.parametrize(("rules", "own"), HIDING)
@pytest.mark.parametrize("text", [f'["{SECRET}"', f'{{"{SECRET}": 1}}', f"{SECRET}"])
def test_a_quarantine_does_not_repeat_arguments(rules: Rules, own: str | None, text: str) -> None:
    (quarantine,) = Planner(rules)(due(args=text, policies=own)).quarantines
    assert quarantine.reason.startswith("Args = '***': write a JSON array")
    _, (told,) = Planner(rules).repairs([row(kwargs=text if text[0] != "{" else SECRET, policies=own)])
    assert told.reason.startswith("Kwargs = '***': write a JSON object") and SECRET not in told.reason


def test_of_other_jobs_a_quarantine_shows_what_is_wrong() -> None:
    (quarantine,) = Planner(PLAIN)(due(args="[1")).quarantines
    assert quarantine.reason.startswith("Args = '[1'")


@pytest.mark.parametrize(("rules", "own"), HIDING)
@pytest.mark.parametrize(
    "wrong",
    [{"args": SECRET}, {"args": [{SECRET}]}, {"kwargs": [SECRET]}, {"kwargs": {"a": {SECRET}}}, {"args": {SECRET: 1}}],
)
def test_a_definition_that_is_refused_does_not_repeat_arguments(rules: Rules, own: str | None, wrong: Any) -> None:
    policies = json.loads(own or "{}")
    with pytest.raises(FieldError, match=r"(Args|Kwargs) = '\*\*\*'") as caught:
        job_spec(rules, "card", "shop.pay", 60, **wrong, **policies)
    assert SECRET not in str(caught.value) + repr(caught.value.value)
    assert caught.value.__suppress_context__, "a traceback would show the error with them"


@pytest.mark.parametrize(("rules", "own"), HIDING)
def test_what_a_task_does_not_take_is_told_without_the_arguments(rules: Rules, own: str | None) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.task(name="shop.pay", shared=False)(pay)
    for columns in ({"args": json.dumps([SECRET, SECRET])}, {"kwargs": json.dumps({"card": SECRET})}):
        call = read_definition(row(policies=own, **columns), rules).call
        with pytest.raises(FieldError, match=r"= '\*\*\*': task shop.pay does not take these") as caught:
            check_call(app, call)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("rules", "own"), [*HIDING[:2], (PLAIN, '{"sensitive": tru'), (PLAIN, 5)])
def test_json_has_stars_for_the_arguments_and_no_repr_has_them(rules: Rules, own: Any) -> None:
    """Where the policies cannot be read, the job may be sensitive."""
    job = job_of(row(policies=own, kwargs=json.dumps({"card": SECRET})), rules.policies)
    assert (job.sensitive, job.as_json()["args"], job.as_json()["kwargs"]) == (True, "***", "***")
    assert SECRET not in json.dumps(job.as_json()) + repr(job)
    assert job.args == [SECRET], "a program that may read them changes them by what it has read"


def test_of_other_jobs_json_has_the_arguments() -> None:
    job = job_of(row(), PLAIN.policies)
    assert (job.sensitive, job.as_json()["args"]) == (False, [SECRET])


def test_what_no_key_opens_is_not_shown_either() -> None:
    sealed = KEYS.sealed(ARGS)
    assert job_of(row(args=sealed), PLAIN.policies).as_json()["args"] == "***"


def test_a_row_that_is_sealed_is_left_as_it_is_without_its_key() -> None:
    for column in ("args", "kwargs"):
        plan = Planner(PLAIN)(due(**{column: KEYS.sealed("[]")}))
        assert [job.job_name for job in plan.locked] == ["card"]
        assert not any(plan._replace(locked=[]))
        assert Planner(PLAIN).repairs([row(**{column: KEYS.sealed("[]")})]) == ([], [])
    with pytest.raises(PayloadLocked, match=r"Kwargs = '\*\*\*': arguments are encrypted, and no key of this process"):
        read_definition(row(kwargs=KEYS.sealed("{}")), SEALED)


@pytest.mark.parametrize("sensitive", [True, False])
def test_a_message_shows_stars_for_the_arguments_of_a_sensitive_job(sensitive: bool) -> None:
    each = claim("shop.pay", SECRET)._replace(is_sensitive=sensitive)
    options = messages.options(each, "s1", "default")
    app = Celery("shop", set_as_current=False)
    made = untyped(app).amqp.as_task_v2(
        "1", "shop.pay", each.args, each.kwargs, **{k: options.get(k) for k in HIDDEN_ARGUMENTS}
    )
    assert (SECRET in repr(made.headers)) is not sensitive
    assert is_hidden(made.headers) is sensitive


def test_what_a_job_says_of_its_own_arguments_is_hidden_as_well() -> None:
    each = claim("shop.pay", SECRET, argsrepr=SECRET)._replace(is_sensitive=True)
    assert SECRET not in repr({**messages.options(each, "s1", "default"), "args": None})


@pytest.mark.parametrize("hidden", [True, False])
def test_celerys_own_retry_hides_them_again(hidden: bool) -> None:
    headers = {**HIDDEN_ARGUMENTS, "argsrepr": HIDDEN_ARGUMENTS["argsrepr"] + "  # card, attempt 1"} if hidden else {}
    request = Context({"id": "1", "args": [SECRET], "kwargs": {}, **headers})
    before = request.as_execution_options()
    for _ in range(2):  # before_start, and the body
        keep_hidden(request)
    assert request.as_execution_options() == {**before, **(HIDDEN_ARGUMENTS if hidden else {})}
    assert isinstance(request, Context)


def test_an_export_seals_arguments_and_reads_them_back() -> None:
    line = line_of(row(kwargs='{"a": "ü"}', policies=OWN), SEALED)
    assert SECRET not in line and "ü" not in line and json.loads(line)["args"].startswith("fernet:")
    (back,) = read_lines([line], SEALED)
    assert not isinstance(back, LineError)
    assert (back.spec.text.args, json.loads(back.spec.text.kwargs or "")) == (ARGS, {"a": "ü"})


@pytest.mark.parametrize("rules", [PLAIN, PLAIN._replace(payload_key=Keyring([Fernet.generate_key().decode()]))])
def test_a_line_that_no_key_opens_is_refused(rules: Rules) -> None:
    (back,) = read_lines([line_of(row(), SEALED)], rules)
    assert isinstance(back, LineError) and "line 1, args = '***': arguments are encrypted, and no key" in str(back)


def test_a_sealed_line_that_is_no_json_is_refused_without_being_shown() -> None:
    line = json.dumps({"name": "a", "task": "shop.pay", "schedule": 60, "args": KEYS.sealed(SECRET)})
    (back,) = read_lines([line], SEALED)
    assert isinstance(back, LineError) and SECRET not in str(back) and "not JSON" in str(back)


def test_a_sensitive_job_is_exported_in_plain_text_on_demand_only() -> None:
    with pytest.raises(
        FieldError, match=r"Args = '\*\*\*': the job is sensitive: set sqlbeat_payload_key .*--with-sec"
    ):
        line_of(row(policies=OWN), PLAIN)
    assert SECRET in line_of(row(), PLAIN)
    assert json.loads(line_of(row(args=None, policies=OWN), PLAIN))["sensitive"] is True
    for rules in (PLAIN, SEALED):
        line = line_of(row(policies=OWN), rules, with_secrets=True)
        assert json.loads(line)["args"] == [SECRET]


@pytest.mark.parametrize("wrong", [{"args": SECRET}, {"kwargs": [SECRET]}])
def test_an_entry_that_is_left_out_is_told_of_without_its_arguments(wrong: Any) -> None:
    app = Celery("shop", set_as_current=False)
    entries = {name: {"task": "shop.pay", "schedule": 60.0, **wrong} for name in ("card", "other")}
    reasons = {each.name: each.reason for each in read_entries(app, entries, policies=BY_GLOB.policies).problems}
    assert SECRET in reasons["other"] and SECRET not in reasons["card"] and "= '***': write a" in reasons["card"]
