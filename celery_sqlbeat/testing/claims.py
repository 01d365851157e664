"""Make the claims of submitters, for tests."""

from celery_sqlbeat.model import Claim, Slot
from celery_sqlbeat.model.one_offs import ONE_OFF, OneOff, Submitted


def claim_of(wanted: OneOff, answer: Submitted) -> Claim:
    """Return the claim of a submitter, as its message carries it."""
    assert wanted.claim_id is not None
    slot = Slot(ONE_OFF, answer.due_at, 1, 0, 0, None, None, True, None, False)
    return Claim(
        job_id=wanted.run_id,
        job_name=wanted.run_id,
        task_name=wanted.task_name,
        args=(),
        kwargs={},
        options={},
        run_id=wanted.run_id,
        claim_id=wanted.claim_id,
        fence=answer.fence,
        slot=slot,
        lease_seconds=wanted.lease_seconds,
        max_retries=wanted.max_retries,
        exclusive=True,
        code_key=None,
    )
