"""Wait for the end of a run: polls that are ever further apart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery_sqlbeat import environment
from celery_sqlbeat.api.records import Run
from celery_sqlbeat.config.validation import NotAllowed, seconds, shown
from celery_sqlbeat.errors import FieldError, NoSuchRun, RunNotEnded, TransientError

_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.02, 2.0, 1.3  # seconds, seconds, from poll to poll
_SECONDS = seconds(0)


def wait_for_end(
    get: Callable[[Any], Run | None],
    run_id: object,
    timeout: float | timedelta,
    pause: Callable[[float], object] = lambda s: threading.Event().wait(s),
) -> Run:
    """Poll a run until it has ended; an outage of the database is waited through."""
    try:
        longest: float = _SECONDS.read(timeout)
    except NotAllowed as refusal:
        raise FieldError("timeout", shown(timeout), f"write {refusal.allowed}") from None
    clock, step = environment.monotonic, _FIRST_PAUSE
    end = clock() + longest
    while True:
        run = None
        try:
            run = get(run_id)
            if run is None:
                raise NoSuchRun(str(run_id))
        except TransientError:
            if clock() >= end:
                raise
        if run is not None and run.is_ended:
            return run
        if run is not None and clock() >= end:
            raise RunNotEnded(run.id, run.state, longest)
        pause(min(step * (0.5 + environment.chance()), max(0.0, end - clock())))
        step = min(_LONGEST_PAUSE, _GROWTH * step)
