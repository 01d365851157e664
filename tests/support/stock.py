"""Celery's own objects, typed where its stubs deny or lack what Celery documents."""

from datetime import tzinfo
from typing import Any, TypeVar

from celery.schedules import BaseSchedule

S = TypeVar("S", bound=BaseSchedule)


def in_zone(schedule: S, zone: tzinfo) -> S:
    """Give a schedule a time zone of its own."""
    schedule.tz = zone  # type: ignore[misc,assignment]  # a cached property, which may be set
    return schedule


def untyped(value: Any) -> Any:
    """Pass on a value whose type the stubs have wrong or incomplete."""
    return value
