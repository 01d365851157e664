"""What a message says about the claim that it carries. It comes from outside, and may say anything. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from celery_sqlbeat.worker.requests import can_be_asked, is_id

HEADER = "sqlbeat"
VERSION = 1
_LONGEST_NAME = 100  # characters of a namespace, as the settings have it, or of a store's id
_LONGEST_LEASE = 10.0**9  # seconds
_ANY_ID = "00000000-0000-4000-8000-000000000000"


class Header(NamedTuple):
    """A header in the form that this version writes; whether the claim is true only the database knows."""

    store: str
    namespace: str
    run: str
    claim: str
    fence: int
    celery_retries: int
    lease_seconds: float | None = None
    """None where the beat that wrote it is an older one."""
    forgotten: bool = False
    """Whether the beat fired and forgot it: a worker of another store may run it as a plain worker would."""

    @property
    def delivery(self) -> tuple[str, str, int, int]:
        """What all copies of one message have in common, and nothing else has."""
        return self.run, self.claim, self.fence, self.celery_retries


class Malformed(NamedTuple):
    """No header that any version of this package writes: forged or damaged."""

    reason: str


class Copied(NamedTuple):
    """The header of another message, sent on with this one: it says nothing about this one."""

    run: str


class Newer(NamedTuple):
    """A header of a version that this worker does not know yet."""

    version: int


def read(raw: Any, request: Mapping[str, Any]) -> Header | Copied | Malformed | Newer:
    """Read the header of a message whose other headers are `request`."""
    if not isinstance(raw, Mapping):
        return Malformed("it is no mapping")
    if is_copied(raw, request):
        return Copied(raw["run"])
    version = raw.get("v")
    if type(version) is not int or version < VERSION:
        return Malformed("it has no version")
    if version > VERSION:
        return Newer(version)
    fields = [raw.get(name) for name in Header._fields[:5]]
    found = Header._make(
        (*fields, request.get("retries") or 0, _seconds(raw.get("lease")), raw.get("forgotten") is True)
    )
    if not can_be_asked(found.run, found.claim, found.fence, _ANY_ID, found.celery_retries):
        return Malformed("its run, claim or fence is not in the form that beats write")
    if not all(type(name) is str and 0 < len(name) <= _LONGEST_NAME for name in (found.store, found.namespace)):
        return Malformed("its store or namespace is no name")
    return found


def _seconds(raw: Any) -> float | None:
    """A length that is one; nothing depends on it but how often a worker says that it holds the message."""
    is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
    return float(raw) if is_number and 0 < raw < _LONGEST_LEASE else None


def is_copied(raw: Any, request: Mapping[str, Any]) -> bool:
    """Whether a header names another message than the one that brings it."""
    run = raw.get("run") if isinstance(raw, Mapping) else None
    return run != request.get("id") and is_id(run)
