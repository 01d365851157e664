"""The header of a message as a beat writes it, the request that brings it, and its run."""

from types import SimpleNamespace
from typing import Any

from celery_sqlbeat.publish.messages import header
from tests.support.claims import SLOT, claim

STORE = "01a1ef5d-2d7e-7000-8ca9-980534221d7d"
CLAIM = claim()._replace(claim_id="0f8fad5b-d9cb-469f-a165-70867728950e", fence=7)
RAW: dict[str, Any] = header(CLAIM, STORE, "default")["sqlbeat"]
REQUEST = {"id": CLAIM.run_id, "retries": 2}
RUN = SimpleNamespace(job_name="j", scheduled_for=SLOT.scheduled_for, attempt=1, fence=7, run_id="r", job_id="j")
