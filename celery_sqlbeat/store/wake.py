"""When a beat has something to do, as the database sees it."""

from datetime import datetime
from typing import NamedTuple


class Wake(NamedTuple):
    """The earliest instants at which some beat has something to do, by the server's clock, and the change counter."""

    now: datetime
    due_at: datetime | None
    lease_ends_at: datetime | None
    planned_at: datetime | None
    held_ends_at: datetime | None
    outbox_at: datetime | None
    changes: int
    replace_at: datetime | None = None

    def starts_at(self) -> datetime | None:
        """When there is something to claim."""
        return min((at for at in (self.due_at, self.outbox_at) if at is not None), default=None)

    def ends_at(self) -> datetime | None:
        """When a lease ends, or a run is to make room for the next one."""
        ends = (self.lease_ends_at, self.held_ends_at, self.replace_at)
        return min((at for at in ends if at is not None), default=None)

    def stirs(self, before: "Wake") -> bool:
        """Whether more has happened since then than heartbeats."""
        return (self.changes, self.planned_at) != (before.changes, before.planned_at) or (
            self.starts_at() != before.starts_at()
        )
