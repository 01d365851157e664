"""One-offs: runs that somebody submits, without a job that has a schedule. Pure."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

ONE_OFF = "one_off"  # the kind of their slots
ONCE = "once"  # what stands for the schedule of a row that has one slot and no more
LONGEST_KEY = 255  # characters of an idempotency key that is kept as it was written
DEFAULT_TTL = 86_400.0  # seconds for which an idempotency key stands for its run


class IdempotencyKey(NamedTuple):
    """A key that stands for one run of the namespace, for so many seconds from its submission."""

    text: str
    """As it is kept: hashed where it is longer than LONGEST_KEY, or ends in a space."""
    digest: str
    """Of the task and its arguments: the key of another submission must not pass for this one's."""
    ttl_seconds: float


class OneOff(NamedTuple):
    """A one-off as somebody submits it; every field is checked already."""

    run_id: str
    """Also the id of its Celery task, and of the row that its leases are taken on."""
    task_name: str
    args: str | None
    kwargs: str | None
    options: str | None
    policies: str | None
    due_at: datetime | None = None
    """None: now, by the server's clock."""
    claim_id: str | None = None
    """Where the submitter publishes it itself: the claim that its message will carry.

    Only for one that is due now."""
    lease_seconds: float = 0.0
    """Of such a claim: what a beat would have read from the policies."""
    max_retries: int = 0
    max_runtime: float | None = None
    key: IdempotencyKey | None = None


class Submitted(NamedTuple):
    """Which run a submission stands for now."""

    run_id: str
    is_new: bool
    """Whether this call has made the run; else it was submitted before under the same key."""
    due_at: datetime
    now: datetime
    fence: int = 0
    """Of the claim, where the submitter has one."""
    task_name: str | None = None
    """Of a run that was submitted before."""
    digest: str | None = None
    """Of a run that was submitted before: what its key was given for."""


class CancelRequest(NamedTuple):
    """Who asks for the end of a run, of a job or of a one-off, and why."""

    run_id: str
    by: str
    reason: str


class Cancellation(NamedTuple):
    """What became of a request to cancel a run."""

    state: str
    """The state of the run now."""
    is_done: bool
    """Whether this call, or one before, has ended it as cancelled."""
    is_asked: bool
    """Whether it is running, and its worker has been asked to stop it: it can only end as
    cancelled, unless its lease was lost."""


class Asked(NamedTuple):
    """The request to stop a run, as the heartbeat of its worker brings it."""

    by: str
    reason: str
    at: datetime


NOBODY_ASKED: Mapping[str, Asked] = MappingProxyType({})


def kept_key(text: str) -> str:
    """Return an idempotency key as it is kept; some databases do not see spaces at its end."""
    is_kept = len(text) <= LONGEST_KEY and not text.endswith(" ")
    return text if is_kept else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def digest_of(task_name: str, args: str | None, kwargs: str | None) -> str:
    """Return a digest of a task and its arguments, whatever the order of the keywords."""
    call = [task_name, json.loads(args or "[]"), json.loads(kwargs or "{}")]
    return hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()
