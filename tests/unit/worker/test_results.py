"""What becomes of a run by the way its task ended, and by what it has behind it."""

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sqlbeat.config.policy import RetryRule
from celery_sqlbeat.config.settings import Settings, read_settings
from celery_sqlbeat.errors import SettingError
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.model.lifecycle import RUNNING, TRANSITIONS, Backoff, Ending, by_way_of
from celery_sqlbeat.model.retries import Decided
from celery_sqlbeat.worker.results import OutcomeRules, TaskResult, backoff_of, outcome_of

RUN = StartedRun(
    "run",
    "claim",
    7,
    "job",
    "nightly",
    "schedule",
    datetime(2027, 3, 1, tzinfo=timezone.utc),
    1,
    120.0,
    3,
    0,
    0,
    1,
    "s",
)


def ended(end: TaskResult, run: StartedRun = RUN) -> Ending:
    return outcome_of(end, run, Backoff(), lambda: 0.5, "Boom()", "Traceback ...")


def lease(rule: RetryRule | None = None, run: StartedRun = RUN) -> Any:
    return SimpleNamespace(run=run, retry=rule, luck=0.5)


def test_a_job_without_a_rule_waits_as_ever() -> None:
    rules = OutcomeRules(Settings())
    assert rules.again_of(lease()) == 1.0
    assert rules.tried_again_in(lease(), ("builtins.KeyError",)) == 1.0
    assert rules.ending(lease(), TaskResult.FAILURE, "e", "t", ("builtins.KeyError",)) == ended(
        TaskResult.FAILURE
    )._replace(error="e", traceback="t")


def test_the_strategy_of_the_settings_holds_for_each_job_and_that_of_the_job_wins() -> None:
    rules = OutcomeRules(Settings(retry_strategy="linear"))
    assert rules.tried_again_in(lease(run=RUN._replace(failures=2)), ()) == 6.0
    assert rules.tried_again_in(lease(RetryRule("fixed"), RUN._replace(failures=2)), ()) == 2.0
    assert rules.tried_again_in(lease(RetryRule("none")), ()) is None


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (TaskResult.FAILURE, "dlq"),
        (TaskResult.TIME_LIMIT, "dlq"),
        (TaskResult.CHILD_LOST, "dlq"),
        (TaskResult.REQUEUED, "retry"),  # the task asks for it
        (TaskResult.STOPPED, "retry"),  # no failure of the slot
        (TaskResult.SUCCESS, "success"),
    ],
)
def test_an_error_decides_about_failures_alone(end: TaskResult, state: str) -> None:
    rules = OutcomeRules(Settings())
    ending = rules.ending(lease(RetryRule(dead_on=["Exception"])), end, "e", None, ("shop.Bad", "builtins.Exception"))
    assert ending.state == state and ending.reason != "retries exhausted"


def test_what_was_decided_where_the_error_was_raised_is_what_is_written() -> None:
    rules, rule = OutcomeRules(Settings()), RetryRule(dead_on=["KeyError"])
    decided = rules.ending(lease(rule), TaskResult.FAILURE, "e", None, ("builtins.KeyError",), Decided(7.0))
    assert (decided.state, decided.retry_seconds) == ("retry", 7.0)
    assert rules.ending(lease(), TaskResult.FAILURE, "e", None, (), Decided(None)).reason == "not retried"


def test_a_body_that_took_too_long_may_be_a_dead_letter_at_once() -> None:
    rules = OutcomeRules(Settings())
    assert rules.overdue(lease(), "too long")[:3] == ("retry", "too long", 1.0)
    assert rules.overdue(lease(RetryRule(dead_on=["MaxRuntimeExceeded"])), "too long")[:2] == ("dlq", "not retried")


def test_a_worker_does_not_start_without_a_strategy_that_its_settings_name() -> None:
    settings = read_settings({"sqlbeat_retry_strategy": "tests.nothing.here"}, {})
    with pytest.raises(SettingError, match=r"sqlbeat_retry_strategy = 'tests.nothing.here': .*cannot be loaded"):
        OutcomeRules(settings)


@pytest.mark.parametrize("end", TaskResult)
@pytest.mark.parametrize("failures", [0, 3, 99])
def test_every_end_leads_where_a_running_run_may_go(end: TaskResult, failures: int) -> None:
    found = ended(end, RUN._replace(failures=failures, lost_leases=99))
    assert (by_way_of(found.state) or RUNNING, found.state) in TRANSITIONS


@pytest.mark.parametrize("end", [TaskResult.FAILURE, TaskResult.TIME_LIMIT, TaskResult.CHILD_LOST, TaskResult.REQUEUED])
def test_a_failure_is_tried_again_until_its_retries_are_exhausted(end: TaskResult) -> None:
    first = ended(end)
    assert (first.state, first.failures, first.retry_seconds) == ("retry", 1, 1.0)
    assert (first.error, first.traceback) == ("Boom()", "Traceback ...")
    third = ended(end, RUN._replace(failures=2))
    assert (third.state, third.retry_seconds) == ("retry", 4.0)
    last = ended(end, RUN._replace(failures=3))
    assert (last.state, last.retry_seconds, last.error) == ("dlq", None, "Boom()")


def test_a_rejected_message_goes_to_the_dead_letters_at_once() -> None:
    assert ended(TaskResult.REJECTED)[:3] == ("dlq", "rejected", None)


@pytest.mark.parametrize("end", [TaskResult.SUCCESS, TaskResult.IGNORED, TaskResult.REPLACED])
def test_what_the_task_wanted_is_a_success(end: TaskResult) -> None:
    found = ended(end)
    assert (found.state, found.failures, found.error) == ("success", 0, None)
    assert found.reason == (None if end is TaskResult.SUCCESS else end.value)


def test_effects_that_were_done_before_are_the_reason_of_a_success() -> None:
    assert ended(TaskResult.DONE) == Ending("success", "Boom()")


def test_the_end_of_the_worker_counts_for_nothing() -> None:
    found = ended(TaskResult.STOPPED, RUN._replace(lost_leases=99, failures=99))
    assert (found.state, found.retry_seconds, found.failures, found.lost_leases) == ("retry", 0.0, 0, 0)


def test_what_nobody_wants_any_more_ends_its_slot() -> None:
    assert ended(TaskResult.REVOKED)[:3] == ("cancelled", "revoked", None)
    assert ended(TaskResult.EXPIRED)[:3] == ("skipped", "expired", None)


def test_what_never_began_is_the_same_attempt_again() -> None:
    assert ended(TaskResult.NOT_BEGUN)[:3] == ("scheduled", "not begun", 0.0)


def test_a_task_that_is_unknown_here_is_the_same_attempt_again_in_a_moment() -> None:
    assert ended(TaskResult.UNKNOWN_TASK)[:5] == ("scheduled", "unknown task", 2.0, 0, 0)


def test_the_backoff_is_that_of_the_settings() -> None:
    backoff = backoff_of(Settings(retry_base=10.0, retry_factor=3.0, retry_max=25.0))
    waits = [
        outcome_of(TaskResult.FAILURE, RUN._replace(failures=n), backoff, lambda: 1.0).retry_seconds for n in range(3)
    ]
    assert waits == [10.0, 25.0, 25.0]
