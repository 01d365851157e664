"""What a submission is on its way to its row, and what came of it: the claim, and the run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from celery_sqlbeat.api.one_off_input import Submission
from celery_sqlbeat.api.records import Run, run_of
from celery_sqlbeat.model import Claim, RunRecord, Slot
from celery_sqlbeat.model.definition import Definition
from celery_sqlbeat.model.lifecycle import CLAIMED, SCHEDULED
from celery_sqlbeat.model.one_offs import ONE_OFF, OneOff, Submitted


class Place(NamedTuple):
    """Where a submission is written: by this package, or in a transaction of the shop."""

    connection: Any = None
    using: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this package commits it."""
        return self.connection is None and self.using is None


class Item(NamedTuple):
    """One submission of a batch, as far as it is decided before it is written."""

    checked: Submission
    due_at: datetime | None
    run_id: str
    is_ours: bool
    """Whether this process publishes it itself."""


def placed(fields: Mapping[str, Any]) -> tuple[Place, dict[str, Any]]:
    """Return where a submission is written, and its other fields."""
    own = dict(fields)
    return Place(own.pop("connection", None), own.pop("using", None)), own


def is_same(place: Place, other: Place) -> bool:
    """Return whether two submissions may be of one batch."""
    return place.connection is other.connection and place.using == other.using


def claim_of(one_off: OneOff, definition: Definition, answer: Submitted) -> Claim:
    """Return the claim of the submitter, which is published as one of a beat."""
    call = definition.call
    return Claim(
        job_id=one_off.run_id,
        job_name=one_off.run_id,
        task_name=one_off.task_name,
        args=call.args,
        kwargs=call.kwargs,
        options=call.options,
        run_id=one_off.run_id,
        claim_id=one_off.claim_id or "",
        fence=answer.fence,
        slot=Slot(ONE_OFF, answer.due_at, 1, 0, 0, None, None, True, None, False),
        lease_seconds=one_off.lease_seconds,
        max_retries=one_off.max_retries,
        exclusive=True,
        code_key=None,
        max_runtime=one_off.max_runtime,
        is_sensitive=definition.policy.sensitive,
        retry=definition.policy.retry,
        pool=definition.policy.pool,
    )


def new_run(item: Item, answer: Submitted, unseen: str) -> Run:
    """Return the run as it was written, without reading it."""
    is_claimed = bool(answer.is_new and item.is_ours and answer.fence)
    state = (CLAIMED if is_claimed else SCHEDULED) if answer.is_new else unseen
    row = RunRecord(
        run_id=answer.run_id,
        job_id=answer.run_id,
        job_name=answer.run_id,
        kind=ONE_OFF,
        scheduled_for=answer.due_at,
        last_slot=None,
        slot_count=1,
        attempt=1,
        state=state,
        prior_state=state,
        reason=None,
        fence=answer.fence,
        claimed_by=None,
        claimed_at=answer.now if is_claimed else None,
        published_at=None,
        started_by=None,
        started_at=None,
        finished_at=None,
        failures=0,
        lost_leases=0,
        due_at=None if is_claimed else answer.due_at,
        error=None,
        traceback=None,
        created_at=answer.now,
        task_name=item.checked.text.task_name,
    )
    return run_of(row, is_new=answer.is_new)
