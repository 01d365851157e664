"""Decide which release of a `beat_schedule` counts, and what those beside it have in their code.

Pure: a store reads which releases there are, and which of them have a living beat.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from celery_sqlbeat.model import Beside, LivingRelease
from celery_sqlbeat.store.records import CodeTally, NewestRelease

_TICK = timedelta(microseconds=1)


class ReleasesSeen(NamedTuple):
    """The releases of one owner, as a store sums them up for one of them."""

    now: datetime
    own_seen_at: datetime | None
    newest_seen_at: datetime | None
    live_release: str | None
    """The newest release that has a live beat of this owner."""
    live_seen_at: datetime | None
    imported_release: str | None
    """The one that wrote last."""
    imported_at: datetime | None
    other_beats: int
    """How many live beats of other releases, or of other owners, there are."""
    jobs: int
    left: int

    @property
    def tally(self) -> CodeTally:
        """How many jobs the owner has."""
        return CodeTally(self.jobs, self.left)

    def first_seen_at(self) -> datetime:
        """Return when our release was first seen.

        A new one is later than all others, even if the clock stepped back.
        """
        return self.own_seen_at or _later(self.now, self.newest_seen_at)

    def imports_at(self) -> datetime:
        """Return the instant of an import, later than those of all others."""
        return _later(self.now, self.imported_at)

    def winner(self, release: str) -> str:
        """Return the newest release that has a live beat; this beat counts as alive."""
        if self.live_release is None or self.live_seen_at is None or self.live_seen_at <= self.first_seen_at():
            return release
        return self.live_release

    def newest(self, release: str) -> NewestRelease:
        """Return the winning release, as a beat of this one asks for it."""
        return NewestRelease(self.winner(release), self.imported_release, self.tally, self.other_beats > 0)

    def beside(self, owner: str, release: str, living: Sequence[LivingRelease]) -> Beside:
        """Return what other living releases of this owner have in their code."""
        others = [other for other in living if other.owner == owner and other.release != release]
        since = self.first_seen_at()
        newer = [other for other in others if other.first_seen_at is not None and other.first_seen_at > since]
        return Beside(_names(newer), _names(others))


def read_entries(text: str | None) -> dict[str, str] | None:
    """Read the entries of a release; None where it has none that can be read."""
    try:
        told = json.loads(text) if text else None
    except ValueError:
        return None
    return {str(name): str(mark) for name, mark in told.items()} if isinstance(told, dict) else None


def tell_entries(entries: Mapping[str, str]) -> str:
    """Write the entries of a release."""
    return json.dumps(entries, sort_keys=True)


def _later(now: datetime, other: datetime | None) -> datetime:
    return now if other is None or other < now else other + _TICK


def _names(releases: Sequence[LivingRelease]) -> frozenset[str] | None:
    told = [release.entries for release in releases]
    return None if None in told else frozenset(name for entries in told if entries for name in entries)
