"""Check-ins that monitors of schedules open when the message of a slot is sent: later messages of the slot carry them.

Sentry's SDK sends `in_progress` from `apply_entry` and puts the check-in's id into the headers. An attempt that follows
another one, or a copy of a message, would open a second check-in, and the first would stay open until it is late.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from celery_sqlbeat.model import Claim
from celery_sqlbeat.store.protocol import BeatStore

_PREFIX = "sentry-monitor-"
_NEW_EACH_TIME = "sentry-monitor-start-timestamp-s"


def check_in_of(headers: Any) -> str | None:
    """What these headers say of a check-in, as text; None where they say nothing."""
    if not isinstance(headers, Mapping):
        return None
    found = {
        name: value
        for name, value in headers.items()
        if isinstance(name, str) and name.startswith(_PREFIX) and name != _NEW_EACH_TIME
    }
    return json.dumps(found, default=str) if found else None


def headers_of(check_in: str | None) -> dict[str, Any]:
    """The headers that carry a check-in on."""
    found = json.loads(check_in) if check_in else {}
    return found if isinstance(found, dict) else {}


def carried(store: BeatStore, claims: Sequence[Claim], are_copies: bool = False) -> Sequence[Claim]:
    """The claims with the check-ins that earlier messages of their slots have opened."""
    before = {claim.run_id: claim.run_id if are_copies else claim.slot.continues for claim in claims}
    wanted = {run_id for run_id in before.values() if run_id is not None}
    known = store.check_ins(wanted) if wanted else {}
    if not known:
        return claims
    return [claim._replace(check_in=known.get(before[claim.run_id] or "")) for claim in claims]
