"""Monitors of scheduled jobs that check a slot in by headers: an attempt that is tried again is not its end.

Sentry's SDK sends `in_progress` when the message is sent and, from Celery's `task_retry`, `error` for the slot.
"""

from typing import Any

MONITOR = "sentry-monitor-slug"  # without it Sentry's SDK sends no check-in for a task
_INNER = "headers"  # where the SDK puts its headers a second time


def leave_checked_in(request: Any) -> None:
    """Let this request, whose attempt is over and whose slot is not, send no check-in."""
    headers = getattr(request, "headers", None)
    if not isinstance(headers, dict):
        return
    for each in (headers, headers.get(_INNER)):
        if isinstance(each, dict):
            each.pop(MONITOR, None)
