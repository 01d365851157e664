"""In which indexes a row stands."""

import pytest

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model.lifecycle import CANCELLED, RUNNING, SCHEDULED, STATES, TRANSITIONS
from celery_sqlbeat.store.keyvalue.entries import entries
from celery_sqlbeat.store.keyvalue.tables import RUN

PLAIN = {"job_id": "a", "scheduled_for": 0, "lease_ends_at": 0}


@pytest.mark.parametrize("before", ["new", *sorted(STATES)])
@pytest.mark.parametrize("after", sorted(STATES))
def test_a_run_is_written_only_in_a_state_that_it_may_get_to(before: str, after: str) -> None:
    row = {**PLAIN, "prior_state": before, "state": after}
    if (before, after) in TRANSITIONS or (before, after) == ("new", SCHEDULED):
        assert entries(RUN, "r", row)
    else:
        with pytest.raises(StoreError, match=f"cannot get from {before} to {after}"):
            entries(RUN, "r", row)


def test_a_run_without_a_state_before_is_a_new_one() -> None:
    assert entries(RUN, "r", {**PLAIN, "state": SCHEDULED})
    for state in (RUNNING, CANCELLED):
        with pytest.raises(StoreError):
            entries(RUN, "r", {**PLAIN, "state": state})
