"""The queues of a worker as its row tells them: an array of names, and of [name, seconds] for those it has left.

Whoever reads must know both apart: what a worker has just left is still leased, but nobody takes anything there.
"""

import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple


class Queues(NamedTuple):
    """What one worker consumed when it last said so."""

    consumed: AbstractSet[str]
    left: Mapping[str, float]
    """The queues that it no longer consumed, and for how many seconds."""


def tell(consumed: Iterable[str], left: Mapping[str, float]) -> str:
    """The text for the row."""
    return json.dumps([*sorted(consumed), *([name, round(seconds, 3)] for name, seconds in sorted(left.items()))])


def read(text: str | None) -> Queues:
    """What the text of a row says; none is said by what is no worker."""
    told: list[Any] = json.loads(text or "[]")
    names = frozenset(each for each in told if isinstance(each, str))
    return Queues(names, dict(each for each in told if not isinstance(each, str)))
