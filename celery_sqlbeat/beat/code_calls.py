"""What is sent for the jobs of the code: arguments that no text can hold, and entries as tools want to see them."""

from collections.abc import Sequence
from typing import Any

from celery.beat import ScheduleEntry

from celery_sqlbeat.beat.entries import CodeSchedule
from celery_sqlbeat.model import Claim


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


def entry_of(app: Any, claim: Claim) -> ScheduleEntry:
    """A claim as the entry that stock beat would hand to `apply_entry`."""
    return ScheduleEntry(
        name=claim.job_name,
        task=claim.task_name,
        schedule=0,  # nobody asks a due entry when it is due
        args=claim.args,
        kwargs=dict(claim.kwargs),
        options=dict(claim.options),
        app=app,
    )
