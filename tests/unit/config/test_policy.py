"""Policies are checked wherever they come from, and the most specific one wins."""

from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.config.policy import (
    DEFAULT,
    Policies,
    Policy,
    fields_from_text,
    policies_from_setting,
    policy_fields,
    policy_for,
)
from celery_sqlbeat.errors import FieldError, SettingError


def setting_error(key: str | None, value: object, allowed: str) -> SettingError:
    return SettingError(key or "policy", value, allowed)


def test_every_policy_can_be_set() -> None:
    given_policies: dict[str, Any] = {
        "cadence": "fixed_rate",
        "overlap": "allow",
        "misfire": "catch_up",
        "misfire_grace": timedelta(minutes=2),
        "catch_up_limit": 3,
        "max_retries": 0,
        "lock_timeout": 7.5,
        "max_runtime": timedelta(minutes=5),
        "timezone": "Australia/Lord_Howe",
        "jitter": 2,
        "max_parallel": 4,
        "retry_strategy": "linear",
        "retry_on": ["ConnectionError", "requests.*"],
        "dead_on": ("ValueError",),
    }
    assert Policy(**policy_fields(given_policies, setting_error)) == Policy(
        "fixed_rate",
        "allow",
        "catch_up",
        120.0,
        3,
        0,
        7.5,
        300.0,
        "Australia/Lord_Howe",
        2.0,
        4,
        False,
        "linear",
        ("ConnectionError", "requests.*"),
        ("ValueError",),
    )


def test_what_a_mapping_leaves_out_is_the_default() -> None:
    assert policy_fields({}, setting_error) == {}
    assert Policy() == DEFAULT


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cadence", "hourly"),
        ("cadence", None),
        ("overlap", True),
        ("overlap", "maybe"),
        ("max_parallel", 0),
        ("max_parallel", "2"),
        ("misfire", "SKIP"),
        ("misfire_grace", -1),
        ("misfire_grace", float("nan")),
        ("catch_up_limit", 0),
        ("catch_up_limit", 2.0),
        ("catch_up_limit", True),
        ("max_retries", -1),
        pytest.param("max_retries", 10**5000, id="too long to print"),
        ("lock_timeout", 0.5),
        ("lock_timeout", float("inf")),
        ("lock_timeout", "60"),
        ("timezone", "Mars/Olympus"),
        ("timezone", "../etc/passwd"),
        ("timezone", "America"),
        ("timezone", ""),
        ("timezone", "UTC\0"),
        ("jitter", timedelta(seconds=-1)),
        ("jitter", None),
    ],
)
def test_a_policy_that_cannot_work_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(SettingError) as caught:
        policies_from_setting({"payroll*": {key: value}})
    assert caught.value.name == f"sqlbeat_policies['payroll*']['{key}']"
    assert caught.value.allowed


@pytest.mark.parametrize("value", [None, [], "x", {"": {}}, {1: {}}, {"a": None}, {"a": {"color": 1}}, {"a": {2: 1}}])
def test_a_setting_of_another_shape_is_refused(value: object) -> None:
    with pytest.raises(SettingError, match=r"^sqlbeat_policies"):
        policies_from_setting(value)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "Policies"),
        ("[]", "Policies"),
        ("null", "Policies"),
        ('{"color": 1}', "Policies"),
        ('{"overlap": "maybe"}', "Policies.overlap"),
        ('{"jitter": NaN}', "Policies.jitter"),
        ("[" * 100_000, "Policies"),
    ],
)
def test_a_bad_text_in_a_row_names_its_field(text: str, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        fields_from_text(text)
    assert caught.value.field == field


def test_a_rows_policies_cannot_be_changed_by_one_who_reads_them() -> None:
    with pytest.raises(TypeError):
        fields_from_text('{"jitter": 1}')["jitter"] = 2  # type: ignore[index]


def test_a_longer_glob_beats_a_shorter_one_and_the_exact_name_every_glob() -> None:
    policies = policies_from_setting(
        {
            "pay": {"catch_up_limit": 5},
            "payroll-*": {"catch_up_limit": 3, "overlap": "allow"},
            "p*": {"catch_up_limit": 2, "misfire": "skip"},
            "*": {"catch_up_limit": 1, "jitter": 9},
        }
    )
    assert policy_for("pay", policies) == Policy(catch_up_limit=5, misfire="skip", jitter=9.0)
    assert policy_for("payroll-eu", policies) == Policy(catch_up_limit=3, overlap="allow", misfire="skip", jitter=9.0)
    assert policy_for("PAY", policies) == Policy(catch_up_limit=1, jitter=9.0)


def test_of_two_globs_of_one_length_the_later_wins() -> None:
    assert policy_for("ab", policies_from_setting({"a*": {"jitter": 1}, "*b": {"jitter": 2}})).jitter == 2
    assert policy_for("ab", policies_from_setting({"*b": {"jitter": 2}, "a*": {"jitter": 1}})).jitter == 1


def test_a_name_that_looks_like_a_glob_is_still_a_name() -> None:
    policies = policies_from_setting({"report[1]": {"jitter": 1}, "report*****": {"jitter": 2}})
    assert policy_for("report[1]", policies).jitter == 1
    assert policy_for("report1", policies).jitter == 2


def test_the_rows_own_policies_win_over_the_setting() -> None:
    policies = policies_from_setting({"job": {"overlap": "allow", "max_retries": 1}})
    own = fields_from_text('{"max_retries": null, "jitter": 0.5}')
    assert policy_for("job", policies, own) == Policy(overlap="allow", max_retries=None, jitter=0.5)


def test_without_any_policies_every_job_shares_one_object() -> None:
    assert policy_for("a", Policies()) is policy_for("b", Policies()) is DEFAULT
    policies = policies_from_setting({"a": {"jitter": 1}})
    assert policy_for("a", policies) is policy_for("a", policies)
