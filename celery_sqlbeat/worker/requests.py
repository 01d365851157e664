"""Whether a request to start is one that a database can be asked about. Messages come from outside."""

import re
from typing import Any

_is_uuid = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_LARGEST_FENCE = 2**63 - 1
_MOST_CELERY_RETRIES = 2**31 - 1


def can_be_asked(run_id: Any, claim_id: Any, fence: Any, start_id: Any, celery_retries: Any) -> bool:
    """Whether each field has its type and fits its column, in the one way that this package writes it.

    One message from a hostile producer must not become the error of a whole batch.
    """
    return (
        is_id(run_id)
        and is_id(claim_id)
        and is_id(start_id)
        and _is_whole(fence, _LARGEST_FENCE)
        and _is_whole(celery_retries, _MOST_CELERY_RETRIES)
    )


def is_id(value: Any) -> bool:
    """Whether it is an id as this package writes it."""
    return type(value) is str and _is_uuid(value) is not None


def _is_whole(value: Any, largest: int) -> bool:
    return type(value) is int and 0 <= value <= largest  # not isinstance: True is no fence
