"""What a beat or a worker tells of itself beside its columns: a JSON object in its row, with a key for each concern.

Another release may have written it: whatever is not as expected says nothing.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

UNLEASABLE = "unleasable"


def tell(unleasable: Iterable[str]) -> str:
    """The text for a worker's row: `unleasable` are tasks with a strategy of their own, which ends runs unheard."""
    return json.dumps({UNLEASABLE: sorted(unleasable)})


@lru_cache(maxsize=1000)  # the rows of a fleet, which say the same over and over
def unleasable(text: str | None) -> frozenset[str]:
    """The tasks of which a worker cannot keep the leases."""
    names = _read(text).get(UNLEASABLE)
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def _read(text: str | None) -> dict[str, Any]:
    try:
        told = json.loads(text or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
