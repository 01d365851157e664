"""What is kept of an error, as text. And when a retry is due. Errors come from tasks, and may be anything."""

import numbers
import traceback
from datetime import datetime, timezone
from typing import Any, NamedTuple

from celery.utils.time import maybe_make_aware
from kombu.utils.encoding import safe_str

from celery_sqlbeat.checks import LONGEST_WAIT


class Report(NamedTuple):
    """What is stored of an error; the store bounds it."""

    error: str | None = None
    traceback: str | None = None


NO_REPORT = Report()


def report(error: BaseException, exc_info: Any) -> Report:
    """The error and its traceback."""
    trace = safe_str(getattr(exc_info, "traceback", None) or "")  # type: ignore[no-untyped-call]
    return Report(text_of(error), trace or None)


def raised(error: BaseException) -> Report:
    """The same of an error that is being handled, without the place that handles it."""
    trace = error.__traceback__
    try:
        lines = traceback.format_exception(type(error), error, trace.tb_next if trace and trace.tb_next else trace)
    except Exception:  # an error may be unable to say what it is
        lines = traceback.format_tb(trace)
    return Report(text_of(error), safe_str("".join(lines)) or None)  # type: ignore[no-untyped-call]


def text_of(error: BaseException) -> str:
    """What an error says of itself; the name of its type where it cannot."""
    try:
        return repr(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def seconds_until(when: Any, app: Any) -> float:
    """How long until Celery's own retry is due: it says so in seconds, as an instant, or not at all (at once).

    At most so long as every database can add to an instant: then the attempt is looked after.
    """
    if isinstance(when, numbers.Real):
        return min(max(0.0, float(when)), LONGEST_WAIT)
    if isinstance(when, datetime):
        at: datetime = maybe_make_aware(when, app.timezone)
        return min(max(0.0, (at - datetime.now(timezone.utc)).total_seconds()), LONGEST_WAIT)
    return 0.0
