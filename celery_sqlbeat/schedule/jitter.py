"""Jitter: each job's own share of a spread, so that jobs of one crontab do not all fire at one instant."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b

NO_OFFSET = timedelta()


@lru_cache(maxsize=65536)
def offset_of(key: str, jitter: float) -> timedelta:
    """The share of the jitter (seconds) that belongs to this job: the same in every process, spread evenly."""
    fraction = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    return timedelta(microseconds=fraction * int(jitter * 1_000_000) >> 64)
