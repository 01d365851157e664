"""Headers of messages come from outside.

What a beat writes is read, and everything else is told apart.
"""

import json
from typing import Any

import pytest

from celery_sqlbeat.celery_bridge.message_header import Copied, Header, Malformed, Newer, read
from celery_sqlbeat.config.policy import RetryRule
from celery_sqlbeat.publish.messages import header
from tests.support.headers import CLAIM, RAW, REQUEST, STORE


def test_what_a_beat_writes_is_read() -> None:
    assert read(RAW, REQUEST) == Header(STORE, "default", CLAIM.run_id, CLAIM.claim_id, 7, 2, CLAIM.lease_seconds)


@pytest.mark.parametrize(
    ("said", "is_forgotten"), [({}, False), ({"forgotten": True}, True), ({"forgotten": 1}, False)]
)
def test_a_message_that_was_fired_and_forgotten_says_so(said: dict[str, Any], is_forgotten: bool) -> None:
    found = read({**RAW, **said}, REQUEST)
    assert isinstance(found, Header) and found.forgotten is is_forgotten


@pytest.mark.parametrize(
    "rule", [RetryRule("linear"), RetryRule(None, ("OSError",), ("shop.*", "KeyError")), RetryRule("of.others", None)]
)
def test_what_a_job_says_of_retries_travels_with_its_message(rule: RetryRule) -> None:
    raw = header(CLAIM._replace(retry=rule), STORE, "default")["sqlbeat"]
    found = read(json.loads(json.dumps(raw)), REQUEST)
    assert isinstance(found, Header) and found.retry == rule
    assert "retry" not in RAW


@pytest.mark.parametrize(
    "raw", ["linear", ["linear"], {"strategy": 7}, {"strategy": "x" * 301}, {"dead_on": "KeyError"}, {"retry_on": [7]}]
)
def test_a_rule_that_no_beat_writes_is_none(raw: Any) -> None:
    found = read({**RAW, "retry": raw}, REQUEST)
    assert isinstance(found, Header) and found.retry in (None, RetryRule())


def test_the_id_of_a_store_on_sqlite_is_no_uuid() -> None:
    assert isinstance(read({**RAW, "store": "0123456789abcdef0123456789abcdef"}, REQUEST), Header)


def test_a_message_that_never_was_retried_may_say_so_by_silence() -> None:
    found = read(RAW, {"id": CLAIM.run_id, "retries": None})
    assert isinstance(found, Header) and found.celery_retries == 0


def test_what_a_later_version_adds_is_no_reason_to_drop_a_message() -> None:
    assert isinstance(read({**RAW, "more": [1]}, REQUEST), Header)


@pytest.mark.parametrize("version", [2, 3, 10**30])
def test_a_version_of_the_future_is_told_from_a_forgery(version: int) -> None:
    assert read({"v": version}, REQUEST) == Newer(version)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "",
        "sqlbeat",
        [],
        [RAW],
        7,
        {},
        {**RAW, "v": "1"},
        {**RAW, "v": True},
        {**RAW, "v": 0},
        {**RAW, "v": -1},
        {**RAW, "v": 1.0},
        {key: value for key, value in RAW.items() if key != "claim"},
        {**RAW, "run": CLAIM.run_id.upper().replace("0", "A")},
        {**RAW, "run": 7},
        {**RAW, "claim": None},
        {**RAW, "claim": "' OR 1=1 --"},
        {**RAW, "claim": {"$ne": None}},
        {**RAW, "fence": "7"},
        {**RAW, "fence": True},
        {**RAW, "fence": -1},
        {**RAW, "fence": 2**63},
        {**RAW, "fence": 7.0},
        {**RAW, "store": None},
        {**RAW, "store": ""},
        {**RAW, "store": "s" * 101},
        {**RAW, "namespace": []},
        {**RAW, "namespace": "n" * 101},
    ],
    ids=repr,
)
def test_a_header_that_no_beat_writes_is_malformed(raw: Any) -> None:
    assert isinstance(read(raw, REQUEST), Malformed)


@pytest.mark.parametrize("retries", ["1", -1, 2**31, 1.5, True])
def test_a_number_of_retries_that_is_none_is_malformed(retries: Any) -> None:
    assert isinstance(read(RAW, {**REQUEST, "retries": retries}), Malformed)


@pytest.mark.parametrize("other", [{}, {"fence": "7"}, {"v": 2}, {"claim": None}], ids=repr)
@pytest.mark.parametrize("own", ["01a1ef5d-2d7e-7000-8ca9-980534221d7d", "nightly", None])
def test_a_header_of_another_message_says_nothing_of_this_one(other: dict[str, Any], own: str | None) -> None:
    assert read({**RAW, **other}, {**REQUEST, "id": own}) == Copied(CLAIM.run_id)
