"""Claims as a beat holds them, for tests that have no database."""

import itertools
from datetime import datetime, timezone
from typing import Any

from celery_sqlbeat.model import Claim, Slot

SLOT = Slot("schedule", datetime(2026, 1, 1, tzinfo=timezone.utc), 1, 0, 0, None, None, True, None, False)
_numbers = itertools.count()


def claim(task: str = "shop.unknown", *args: Any, name: str = "", **options: Any) -> Claim:
    """Return a claim of a job that runs this task with these arguments and options."""
    number = next(_numbers)
    return Claim(
        f"j{number}",
        name or f"job-{number}",
        task,
        list(args),
        {},
        options,
        f"00000000-0000-4000-8000-{number:012d}",
        f"secret-{number}",
        number,
        SLOT,
        120.0,
        3,
        True,
        None,
    )
