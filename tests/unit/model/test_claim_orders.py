"""Where more is due than one batch, a claim order says what is claimed first."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_sqlbeat import events
from celery_sqlbeat.config.plugins import CLAIM_ORDERS
from celery_sqlbeat.model import DueBatch, DueJob
from celery_sqlbeat.model.claim_orders import candidate_of, order_of

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
PATH = "tests.support.plugged"


def due(*rows: tuple[str, str | None, Any]) -> DueBatch:
    """Return due jobs, oldest first: name, owner, options."""
    jobs = []
    for number, (name, owner, options) in enumerate(rows):
        facts: dict[str, Any] = dict.fromkeys(DueJob._fields)
        facts |= {"job_id": name, "job_name": name, "code_owner": owner, "options": options, "extra": 0}
        jobs.append(DueJob(**{**facts, "next_run_time": NOON + timedelta(seconds=number)}))
    return DueBatch(jobs)


def claimed(name: str, batch: DueBatch, size: int) -> str:
    order = order_of(name)
    assert order is not None
    return "".join(job.job_name for job in order(batch, size).jobs)


ROWS = due(
    ("a", "shop", None),
    ("b", "shop", '{"priority": 3}'),
    ("c", "shop", '{"queue": "x"}'),
    ("d", "depot", "no JSON"),
    ("e", None, '{"priority": 9}'),
    ("f", "depot", '{"priority": "high"}'),
    ("g", None, '["priority"]'),
)


def test_the_order_of_the_store_needs_no_other() -> None:
    assert order_of("oldest") is None


@pytest.mark.parametrize(
    ("name", "first"), [("priority", "ebacd"), ("fair", "adebf"), ("fair", "adebfgc"[:6]), ("oldest", "abcde")]
)
def test_an_order_chooses_the_batch(name: str, first: str) -> None:
    if name != "oldest":
        assert claimed(name, ROWS, len(first)) == first


def test_what_fits_into_one_batch_is_not_ordered() -> None:
    assert claimed("priority", ROWS, 7) == "abcdefg"


def test_what_an_order_leaves_out_comes_last() -> None:
    CLAIM_ORDERS.add(f"{PATH}.youngest", f"{PATH}.youngest")
    assert claimed(f"{PATH}.youngest", ROWS, 4) == "gabc"


def test_an_order_that_fails_is_told_of_once_and_the_oldest_are_claimed() -> None:
    CLAIM_ORDERS.add(f"{PATH}.confused", f"{PATH}.confused")
    order = order_of(f"{PATH}.confused")
    assert order is not None
    with events.recorded() as heard:
        batches = ["".join(job.job_name for job in order(ROWS, 3).jobs) for _ in range(2)]
    assert batches == ["abc", "abc"]
    assert [event.name for event in heard] == ["advice"] and "AttributeError" in heard[0].fields["text"]


def test_a_row_that_says_anything_is_a_candidate_all_the_same() -> None:
    row = due(("a", None, "[" * 100_000)).jobs[0]._replace(next_run_time="tomorrow")
    candidate = candidate_of(row)
    assert (candidate.priority, candidate.due_at.year) == (0, 9999)
