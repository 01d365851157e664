"""What is sent for the jobs of the code: arguments that no text can hold, and entries as tools want to see them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery.beat import ScheduleEntry

from celery_sqlbeat.beat.entries import CodeSchedule
from celery_sqlbeat.beat.questions import Questions
from celery_sqlbeat.model import Claim, Claimable, LivingRelease
from celery_sqlbeat.schedule import Timeline
from celery_sqlbeat.schedule.stock import to_celery


class CodeCalls:
    """Knows the entries of this process's `beat_schedule`."""

    def __init__(self, code: CodeSchedule, questions: Questions | None = None) -> None:
        """`questions`: to custom schedule classes."""
        self.questions = questions or Questions()
        self._by_key = {key: one.entry for key, one in code.by_key().items()}
        self._names = frozenset(code.told())
        self.keys = sorted(self._by_key)
        self._claimable = Claimable(code.owner, self.keys, (), self._names)
        self._living: frozenset[str] = frozenset()

    @property
    def claimable(self) -> Claimable:
        """Which jobs this beat may claim, as far as it knows the others; not those whose code says nothing for now."""
        silent = self.questions.pending()
        if not silent:
            return self._claimable
        return self._claimable._replace(code_keys=[key for key in self.keys if key not in silent])

    def learn(self, living: Iterable[LivingRelease], spared: Iterable[str]) -> None:
        """Leave to other living beats what only they have in their code: nobody else can say where it belongs.

        `spared`: jobs that may be in the code of a beat that does not tell its entries.
        """
        living = list(living)
        mine = self._claimable.owner
        theirs = {name for one in living if one.owner == mine for name in one.entries or ()} | set(spared)
        self._claimable = self._claimable._replace(other_entries=sorted(theirs - self._names))
        self._living = frozenset(one.owner for one in living)

    def is_own(self, job_name: str, owner: str | None) -> bool:
        """Whether a job is this beat's to send; jobs of no app are everybody's."""
        return self._claimable.includes(job_name, owner)

    def is_sent_by_others(self, job_name: str, owner: str | None) -> bool:
        """Whether another living beat sends the messages of a job."""
        return not self.is_own(job_name, owner) and (owner == self._claimable.owner or owner in self._living)

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
