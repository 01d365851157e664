"""Which jobs could not be sent the last time, how often in a row, and why: for their pauses, and for `health`."""

from collections.abc import Callable
from typing import Any, NamedTuple

from celery_sqlbeat.model import Claim

KEY = "refused"  # in what a beat tells of itself
TIMES = 3  # in a row, from which on that is worth telling: once or twice may be an outage
TOLD_SECONDS = 600.0  # so long it is told; a job that is not tried any more is nobody's trouble
_MOST_TOLD = 20  # jobs
_LONGEST_ERROR = 300  # characters
# Seconds before a slot that no broker takes is due again; such a message must not keep beat busy.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0


class _Refusal(NamedTuple):
    job_name: str
    times: int
    error: str
    at: float


class Refusals:
    """Of one beat."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all: dict[str, _Refusal] = {}
        self._is_news = False

    def came(self, claim: Claim, error: str) -> None:
        """A claim of this job could not be sent."""
        before = self._all.get(claim.job_id)
        times = 1 if before is None else before.times + 1
        self._all[claim.job_id] = _Refusal(claim.job_name, times, error, self._clock())
        self._is_news = self._is_news or times == TIMES

    def are_news(self) -> bool:
        """Whether there is a job to be told of that was not when this was last asked."""
        is_news, self._is_news = self._is_news, False
        return is_news

    def over(self, claim: Claim) -> None:
        """The job's message was taken."""
        self._all.pop(claim.job_id, None)

    def pause(self, claim: Claim) -> float:
        """How many seconds, at most, until the slot is tried again: ever longer."""
        before = self._all.get(claim.job_id)
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(0 if before is None else before.times, 10))

    def told(self) -> dict[str, Any]:
        """What others should know, by job name: how often, why, and how many seconds ago the last time."""
        now = self._clock()
        lately = [one for one in list(self._all.values()) if one.times >= TIMES and now - one.at < TOLD_SECONDS]
        return {
            one.job_name: {
                "times": one.times,
                "error": one.error[:_LONGEST_ERROR],
                "seconds_ago": round(now - one.at, 3),
            }
            for one in lately[:_MOST_TOLD]
        }
