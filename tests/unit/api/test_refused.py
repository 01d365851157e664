"""Jobs that beats could not send: told by their rows, and seen to be still so."""

import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sqlbeat.api.status import refused_jobs
from celery_sqlbeat.model import SeenNode

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)


def beat(told: Any, stopped: bool = False, name: str = "beat@a/1") -> SeenNode:
    text = told if isinstance(told, str) else json.dumps({"refused": told})
    facts = dict.fromkeys(SeenNode._fields)
    facts.update(node_id=name, kind="beat", heartbeat_at=NOON, now=NOON, details=text)
    facts.update(stopped_at=NOON if stopped else None)
    return SeenNode(**facts)  # type: ignore[arg-type]  # the rest does not matter


def store(**row: Any) -> Any:
    plain = {"enabled": 1, "quarantine": None, "last_run_time": None, "published_at": None}
    found = SimpleNamespace(**{**plain, **row})
    return SimpleNamespace(jobs=lambda query: {name: found for name in query.names if name != "gone"})


TOLD = {"times": 3, "error": "NotFound: x", "seconds_ago": 60}


def test_a_refused_job_is_named_with_its_error() -> None:
    assert refused_jobs(store(), [beat({"nightly": TOLD, "gone": TOLD})]) == {
        "nightly": "job nightly could not be published 3 times in a row: NotFound: x"
    }


def test_the_latest_of_several_beats_counts() -> None:
    later = {**TOLD, "error": "TypeError: y", "seconds_ago": 10}
    (says,) = refused_jobs(store(), [beat({"a": TOLD}), beat({"a": later}), beat({"a": TOLD})]).values()
    assert "TypeError: y" in says


@pytest.mark.parametrize(
    "row",
    [
        {"last_run_time": NOON - timedelta(seconds=30)},
        {"published_at": NOON - timedelta(seconds=30)},
        {"enabled": 0},
        {"quarantine": "x"},
    ],
)
def test_a_job_that_was_sent_since_then_or_is_not_to_be_sent_is_none(row: dict[str, Any]) -> None:
    assert refused_jobs(store(**row), [beat({"a": TOLD})]) == {}
    assert refused_jobs(store(last_run_time=NOON - timedelta(seconds=90)), [beat({"a": TOLD})])


def test_what_was_told_long_ago_or_by_who_has_gone_is_none() -> None:
    assert refused_jobs(store(), [beat({"a": {**TOLD, "seconds_ago": 601}}), beat({"a": TOLD}, stopped=True)]) == {}


@pytest.mark.parametrize("told", ["nonsense", "[]", '{"refused": 7}', '{"refused": {"a": 1, "b": {"times": "x"}}}'])
def test_what_cannot_be_read_says_nothing(told: str) -> None:
    assert refused_jobs(store(), [beat(told)]) == {}
