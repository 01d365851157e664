"""Any line of a file of jobs gives a job, or an error that names the line."""

import json

from hypothesis import given
from hypothesis import strategies as st

from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.errors import LineError
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.transfer.jsonl import FIELDS, CheckedLine, read_lines

RULES = Rules(Policies(), "UTC", 120.0, 3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
LIKELY = st.sampled_from(
    [
        "every 5m", "cron 0 3 * * *", "solar sunset 51.5 -0.12", "once 2027-01-31T09:00:00Z", "2027-01-31T09:00:00Z",
        "2027-01-31T09:00:00+01:00", "Europe/Berlin", "skip", "allow", "fixed_rate", 0, 1, -1, 0.5, 1e308, 10**400, [],
        {}, [1], {"queue": "q"}, {"expires": 5}, {"eta": "x"}, True, False, "finished", "\ud800", "a\0b", " a ",
    ]
)  # fmt: skip
LINES = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), LIKELY | JSON, max_size=8)


@given(LINES)
def test_any_object_is_a_job_or_an_error(fields: dict[str, object]) -> None:
    whole = {"name": "a", "task": "app.task", "schedule": 60, **fields}
    for found in read_lines([json.dumps(whole)], RULES):
        assert isinstance(found, CheckedLine) or found.line == 1
        assert isinstance(found, CheckedLine) or "\n" not in str(found)


@given(st.text())
def test_any_text_is_a_job_or_an_error(text: str) -> None:
    for found in read_lines(text.splitlines(), RULES):
        assert isinstance(found, (CheckedLine, LineError))
