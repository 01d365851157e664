"""A retry strategy says how long to wait; the error of the attempt may forbid the retry at all."""

from typing import Any

import pytest

from celery_sqlbeat import events
from celery_sqlbeat.config.plugins import RETRY_STRATEGIES
from celery_sqlbeat.config.policy import Policy, RetryRule
from celery_sqlbeat.model.lifecycle import Backoff, after_failure
from celery_sqlbeat.model.retries import (
    Decided,
    JobBackoff,
    RetryFacts,
    again_after,
    classes_of,
    names_one,
    question_of,
)

PATH = "tests.support.plugged"
FACTS = RetryFacts("nightly", "slot", 1, 9, 2.0, 3.0, 100.0, 0.5)


class Timeout(ConnectionError):
    """An error of a library."""


class Worse(Timeout):
    """A kind of it."""


def backoff(strategy: str, error: BaseException | None = None, **fields: Any) -> JobBackoff:
    made = JobBackoff(strategy, "exponential", None, None, "nightly", "slot", 9, 2.0, 3.0, 100.0)
    return made._replace(errors=classes_of(error) if error else (), **fields)


@pytest.fixture(autouse=True)
def added(as_installed: None) -> None:
    for name in ("patient", "hopeless", "broken", "nonsense", "missing"):
        RETRY_STRATEGIES.add(f"{PATH}.{name}", f"{PATH}.{name}")


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("exponential", [1, 3, 9, 27, 50]),  # half of the bound, as chance has it
        ("fixed", [2, 2, 2, 2, 2]),
        ("linear", [2, 4, 6, 8, 10]),
        ("none", [None] * 5),
    ],
)
def test_a_strategy_answers_by_the_failures(name: str, waits: list[float | None]) -> None:
    assert [backoff(name).seconds(failures, lambda: 0.5) for failures in range(1, 6)] == waits


@pytest.mark.parametrize("name", ["exponential", "fixed", "linear", "decorrelated"])
def test_no_strategy_of_ours_waits_longer_than_the_longest(name: str) -> None:
    strategy = RETRY_STRATEGIES.load(name)
    for failures in (1, 7, 1000):
        for longest in (0.0, 1.0, 50.0):
            assert 0 <= strategy(FACTS._replace(failures=failures, longest=longest, random=0.99)) <= longest


def test_decorrelated_waits_follow_from_the_one_before_wherever_they_are_computed() -> None:
    decorrelated = RETRY_STRATEGIES.load("decorrelated")
    waits = [decorrelated(FACTS._replace(failures=failures, random=0.1 * failures)) for failures in range(1, 9)]
    assert all(2.0 <= wait <= min(3 * before, 100.0) for before, wait in zip([2.0, *waits], waits, strict=False))
    assert waits == [decorrelated(FACTS._replace(failures=failures)) for failures in range(1, 9)]
    other = [decorrelated(FACTS._replace(failures=failures, slot="other")) for failures in range(1, 9)]
    assert waits != other and len(set(waits)) > 5


@pytest.mark.parametrize(
    ("names", "is_named"),
    [
        (["Worse"], True),
        (["Timeout"], True),  # a base, as `except` has it
        (["OSError"], True),
        (["builtins.OSError"], True),
        (["Exception"], True),
        ([f"{__name__}.Worse"], True),
        (["ValueError", "W*"], True),
        ([f"{__name__}.*"], True),
        (["*Error"], False),  # a glob sees the class itself, not ConnectionError
        (["T*"], False),
        (["worse"], False),
        (["Wors"], False),
        (["KeyError"], False),
        ([], False),
    ],
)
def test_an_error_is_named_by_its_class_a_base_or_a_glob_of_its_own_name(names: list[str], is_named: bool) -> None:
    assert names_one(names, classes_of(Worse())) is is_named


@pytest.mark.parametrize(
    ("rule", "error", "is_retried"),
    [
        ({"retry_on": ["OSError"]}, Worse(), True),
        ({"retry_on": ["OSError"]}, KeyError(), False),
        ({"dead_on": ["KeyError", "IndexError"]}, KeyError(), False),
        ({"dead_on": ["KeyError"]}, Worse(), True),
        ({"retry_on": ["OSError"], "dead_on": ["Worse"]}, Worse(), False),
        ({"retry_on": ["OSError"], "dead_on": ["Worse"]}, Timeout(), True),
        ({"retry_on": ["OSError"], "dead_on": ["Exception"]}, None, True),  # the task asked for it by itself
    ],
)
def test_the_error_decides_whether_there_is_a_retry(
    rule: dict[str, object], error: BaseException | None, is_retried: bool
) -> None:
    assert (backoff("fixed", error, **rule).seconds(1, lambda: 0.5) is not None) is is_retried


def test_what_is_not_retried_is_a_dead_letter_with_its_reason_and_its_error() -> None:
    dead = backoff("fixed", KeyError(), dead_on=["KeyError"])
    ending = after_failure(0, 9, dead, lambda: 0.5, "KeyError()", "Traceback")
    assert ending[:5] == ("dlq", "not retried", None, 1, 0) and ending.error == "KeyError()"
    assert after_failure(9, 9, dead, lambda: 0.5).reason == "retries exhausted"
    assert after_failure(0, 9, Decided(None), lambda: 0.5).reason == "not retried"


def test_a_strategy_of_the_shop_is_told_the_error() -> None:
    assert backoff(f"{PATH}.patient", ConnectionError()).seconds(2, lambda: 0.5) == 900.0
    assert backoff(f"{PATH}.patient", KeyError()).seconds(2, lambda: 0.5) == 3.0
    assert backoff(f"{PATH}.hopeless").seconds(1, lambda: 0.5) is None


@pytest.mark.parametrize(
    ("strategy", "slot", "told"),
    [
        (f"{PATH}.broken", "x", "it raised ZeroDivisionError: of the strategy"),
        (f"{PATH}.missing", "x", "cannot be loaded"),
        *((f"{PATH}.nonsense", slot, "it answered") for slot in ("nan", "inf", "negative", "text", "flag", "huge")),
    ],
)
def test_a_strategy_that_fails_is_told_of_once_and_the_exponential_one_answers(
    strategy: str, slot: str, told: str
) -> None:
    failing = backoff(strategy, slot=slot)
    with events.recorded() as heard:
        waits = [failing.seconds(failures, lambda: 0.5) for failures in (1, 2, 3)]
    assert waits == [Backoff(2.0, 3.0, 100.0).seconds(failures, lambda: 0.5) for failures in (1, 2, 3)]
    assert [event.name for event in heard] == ["advice"]
    assert strategy in heard[0].fields["text"] and told in heard[0].fields["text"]


def test_a_strategy_that_this_worker_does_not_know_is_replaced_by_that_of_its_settings() -> None:
    unknown = backoff("of.another.worker", default="linear")
    with events.recorded() as heard:
        assert unknown.seconds(3, lambda: 0.5) == 6.0
    assert [event.fields["topic"] for event in heard] == ["retry strategy"]
    assert "does not know it, and takes linear" in heard[0].fields["text"]


def test_the_process_of_a_body_answers_as_the_worker_does() -> None:
    asked = backoff("linear", dead_on=["KeyError"])
    again = question_of(asked, 1, 0.5)
    assert again_after(again, classes_of(Worse())) == 4.0
    assert again_after(again, classes_of(KeyError())) is None
    assert again_after(question_of(asked, 9, 0.5), classes_of(Worse())) is None
    assert (again_after(2.5, ()), again_after(None, ())) == (2.5, None)


def test_a_job_without_a_rule_sends_none() -> None:
    assert Policy(max_retries=7).retry is None
    assert Policy(dead_on=("KeyError",)).retry == RetryRule(None, None, ("KeyError",))
