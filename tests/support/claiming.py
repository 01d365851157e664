"""Claim as a beat does: read what is due, plan it, and write the plan."""

from typing import NamedTuple

from celery_sqlbeat.model import Claim, Claimable, GapRecord, Quarantine
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.records import ALL_JOBS
from tests.support.views import BeatView


class Fired(NamedTuple):
    """What came of one batch."""

    claims: list[Claim]
    gaps: list[GapRecord]
    quarantines: list[Quarantine]
    missed: set[str]
    jobs_read: int


def claim_due(
    beat: BeatView, planner: Planner, batch_size: int, dispatch_seconds: float, claimable: Claimable = ALL_JOBS
) -> Fired:
    """Claim a batch of due jobs."""
    due = beat.due(batch_size, claimable)
    claimed = beat.claim(due, planner(due), dispatch_seconds)
    return Fired(claimed.claims, claimed.gaps, claimed.quarantines, claimed.missed, len(due.jobs))
