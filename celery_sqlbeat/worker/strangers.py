"""What a worker sees of other schedulers: messages that some beat has sent, and none of ours."""

import time
from collections.abc import Callable
from typing import Any

from celery_sqlbeat.details import Stranger
from celery_sqlbeat.worker.header import HEADER

_BEATS, _NAMES = "celery_beat_task", "periodic_task_name"  # Celery's own mark of beat, and that of django-celery-beat
_MOST = 20  # entries that are remembered; with so many the pattern is clear


class Strangers:
    """Of one worker. Seen where the consumer is served, told from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, str | None], tuple[int, float, str]] = {}

    def saw(self, task: str, headers: Any) -> None:
        """Look at a message without a claim. Nearly all of them are nobody's schedule."""
        if type(headers) is not dict or (_BEATS not in headers and _NAMES not in headers) or HEADER in headers:
            return
        name = headers.get(_NAMES)
        key = task, name if isinstance(name, str) else None
        times = self._seen.pop(key, (0, 0.0, ""))[0]
        # Without Celery's own mark it may be a single run, which somebody asked for in an admin page.
        self._seen[key] = times + (2 if headers.get(_BEATS) else 1), self._clock(), str(headers.get("origin") or "")
        if len(self._seen) > _MOST:
            del self._seen[next(iter(self._seen))]  # the one that was last seen the longest ago

    @property
    def told(self) -> list[Stranger]:
        """Those that have sent more than one message that could be by hand."""
        now = self._clock()
        return [
            Stranger(task, name, origin, round(now - at, 1))
            for (task, name), (times, at, origin) in list(self._seen.items())
            if times > 1
        ]
