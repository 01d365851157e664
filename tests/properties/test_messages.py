"""Whatever the name of a job, its label stays in its place."""

from datetime import datetime, timezone

from hypothesis import given
from hypothesis import strategies as st

from celery_sqlbeat.model import Claim, Slot
from celery_sqlbeat.publish import messages

SLOT = Slot("schedule", datetime(2026, 1, 1, tzinfo=timezone.utc), 3, 2, 0, None, None, True, None, False)


CLAIM = Claim("j1", "nightly", "shop.report", [1], {}, {}, "r1", "secret", 7, SLOT, 120.0, 3, True, None)


@given(st.text())
def test_no_name_of_a_job_breaks_out_of_its_label(name: str) -> None:
    assert len(messages.label(CLAIM._replace(job_name=name)).splitlines()) == 1
