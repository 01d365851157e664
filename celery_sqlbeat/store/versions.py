"""Say whether this release may work on a schema that a newer one has upgraded."""

import re
from collections.abc import Callable

import celery_sqlbeat
from celery_sqlbeat.errors import ReleaseTooOld
from celery_sqlbeat.store.records import Schema


def usable_schema(version: int, known: int, oldest_release: Callable[[], str]) -> Schema:
    """Return which schema is there; ReleaseTooOld where it has left this release behind."""
    if version <= known:
        return Schema(version, known)
    oldest, own = oldest_release(), celery_sqlbeat.__version__
    if _numbers(own) < _numbers(oldest):
        raise ReleaseTooOld(version, own, oldest)
    return Schema(version, known, oldest)


def _numbers(release: str) -> tuple[int, ...]:
    """Read a release as its numbers; a pre-release counts as its final release."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:3])
