"""Celery's remote control for workers: look at once whether runs are still held, instead of at the next heartbeat.

What is lost is decided by the database alone, so whoever sends this makes a worker ask, and nothing more.
"""

from collections.abc import Collection
from typing import Any

from celery.worker.control import control_command

from celery_sqlbeat.roster import RECALL


@control_command(name=RECALL, args=[("runs", list)])  # type: ignore[untyped-decorator]  # Celery has no types
def recall(state: Any, runs: Collection[str] = ()) -> dict[str, int]:
    """Extend the leases of these runs now; a run whose lease is lost is stopped by that."""
    extension = getattr(state.consumer.controller, "sqlbeat", None)
    return {"ok": extension.office.recall(runs) if extension is not None else 0}
