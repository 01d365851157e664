"""Slots that have ended, for whoever ends the results of their earlier attempts."""

from collections.abc import Iterable

from celery_sqlbeat.model import EndedSlot
from celery_sqlbeat.store.database import Database


class SqlResultStore:
    """The ResultStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    def unended(self, page_size: int, since_seconds: float) -> list[EndedSlot]:
        scope = {"namespace": self._namespace, "page_size": page_size, "since_seconds": since_seconds}
        found = [EndedSlot(*row) for row in self._database.read("read_unended", **scope)]
        if not found:
            return []
        earlier: dict[str, list[tuple[str, int]]] = {}
        for run_id, earlier_id, attempt in self._database.read("read_earlier", [(slot.run_id,) for slot in found]):
            earlier.setdefault(run_id, []).append((earlier_id, attempt))
        return [slot._replace(earlier=tuple(earlier.get(slot.run_id, ()))) for slot in found]

    def ended(self, run_ids: Iterable[str]) -> None:
        self._database.fetch("end_results", [(run_id,) for run_id in sorted(set(run_ids))])
