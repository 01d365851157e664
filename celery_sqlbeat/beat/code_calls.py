"""What is sent for the jobs of the code: arguments that no text can hold, and entries as tools want to see them."""

from collections.abc import Mapping, Sequence
from typing import Any

from celery.beat import ScheduleEntry

from celery_sqlbeat.beat.entries import CodeSchedule
from celery_sqlbeat.model import Claim
from celery_sqlbeat.schedule import Timeline
from celery_sqlbeat.schedule.stock import to_celery


class CodeCalls:
    """Knows the entries of this process's `beat_schedule`."""

    def __init__(self, code: CodeSchedule) -> None:
        self._by_key = {key: one.entry for key, one in code.by_key().items()}
        self.keys = sorted(self._by_key)

    def filled(self, claims: Sequence[Claim]) -> list[Claim]:
        """The claims with the arguments of their entries, where the row has none because they are no text."""
        return [claim if claim.code_key is None else self._filled(claim, claim.code_key) for claim in claims]

    def _filled(self, claim: Claim, key: str) -> Claim:
        entry = self._by_key[key]
        return claim._replace(args=entry.args or (), kwargs=entry.kwargs or {}, options=entry.options or {})


def entry_of(app: Any, entries: Mapping[Any, Any], claim: Claim) -> ScheduleEntry:
    """A claim as the entry that stock beat would hand to `apply_entry`, with the schedule of its job."""
    return ScheduleEntry(
        name=claim.job_name,
        task=claim.task_name,
        schedule=_schedule_of(app, entries, claim),
        args=claim.args,
        kwargs=dict(claim.kwargs),
        options=dict(claim.options),
        app=app,
    )


def _schedule_of(app: Any, entries: Mapping[Any, Any], claim: Claim) -> Any:
    line = claim.timeline
    if isinstance(line, Timeline):
        schedule = to_celery(line.schedule, app)
        schedule.tz = line.zone  # in place of the app's
        return schedule
    # A class of its own; or a message that goes out again, for which the row was not read.
    return getattr(entries.get(claim.job_name), "schedule", 0)
