"""Withhold claims whose pool is full: their messages could only come back."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from celery_sqlbeat import environment, events
from celery_sqlbeat.config.pools import Pool, pool_of
from celery_sqlbeat.errors import TransientError
from celery_sqlbeat.model import Claim
from celery_sqlbeat.model.lifecycle import released
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.places import places_held
from celery_sqlbeat.store.records import Guard, Release

_PAUSE_SECONDS = 1.0  # until a slot that found its pool full is due again
_SLOTS_A_SECOND = 50  # that are due again, so that thousands that wait do not keep beats busy


class FullPools:
    """Sends no more messages at once than their pools have free places.

    It is not what keeps the limit: a run takes its place when it begins.
    """

    def __init__(
        self,
        store: Store,
        rnd: Callable[[], float] = environment.chance,
        before: Callable[[Sequence[Claim]], Sequence[Claim]] = lambda claims: claims,
    ) -> None:
        """`before` sifts the claims first."""
        self._store = store
        self._before = before
        self._random = rnd

    def sift(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Return the claims to send; release those whose pools are full for a while."""
        claims = self._before(claims)
        by_pool: dict[Pool, list[Claim]] = defaultdict(list)
        for claim in claims:
            if claim.pool is not None and (pool := pool_of(claim.pool)) is not None:
                by_pool[pool].append(claim)
        if not by_pool:
            return claims
        withheld: set[str] = set()
        try:
            for pool, named in by_pool.items():
                holders = [lock.holder for lock in places_held(self._store, pool).values()]
                rest = named[max(0, pool.places - len(holders)) :]
                # At least one place is held, or as many are sent as there are.
                reason = pool.full(sorted(holders) or [claim.job_name for claim in named[: pool.places]])
                withheld |= self._release(rest, reason)
        except TransientError as error:  # they are sent, and their workers ask again
            events.step_failed(step="look which pools are full", error=error)
        return [claim for claim in claims if claim.run_id not in withheld]

    def _release(self, claims: Sequence[Claim], reason: str) -> set[str]:
        if not claims:
            return set()
        longest = max(_PAUSE_SECONDS, len(claims) / _SLOTS_A_SECOND)
        seconds = longest * (0.5 + 0.5 * self._random())
        releases = [Release.of(claim, released(reason, seconds)) for claim in claims]
        self._store.finish(releases, Guard.UNSTARTED)
        return {claim.run_id for claim in claims}  # what is not released is somebody else's by now
