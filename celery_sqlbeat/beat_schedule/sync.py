"""Keep the table as the code says, and report conflicts between the beats of a namespace.

A beat leaves the jobs to others that only they have in their code. All this happens at the start,
after changes by others, and as other beats come and go.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from celery_sqlbeat import environment, events
from celery_sqlbeat.beat_schedule.custom_schedule import ScheduleQuestions
from celery_sqlbeat.beat_schedule.entries import NAMELESS, CodeSchedule, shown_release
from celery_sqlbeat.beat_schedule.plan import SchedulePlanner
from celery_sqlbeat.model import Beside, Claim, Claimable, CodeImport, LivingRelease
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import CodeTally, Imported, NewestRelease

_TRIES = 5  # of an import; jobs that fire between its read and its write are few
_MOST_NAMES = 10  # of entries in one sentence
_REMIND_SECONDS = 600.0  # between two reports of one conflict
_DIFFERENCES = (
    "a job does not start again while its last run goes on, but right after it (overlap), and a run that failed is "
    "tried again (max_retries)"
)
_AS_STOCK = 'to have it as before, set sqlbeat_policies = {"*": {"overlap": "allow", "max_retries": 0}}'

TASK_IDS = (
    "the id of a message is that of its run, another one for each attempt, so that a copy is told from a new attempt"
)


class Problem(NamedTuple):
    """A conflict between beats, as the logs of both sides and `sqlbeat check` report it."""

    about: tuple[str, str]
    """The other app and its release."""
    says: str
    remedy: str


def problems(
    namespace: str, owner: str, release: str, entries: Mapping[str, str], living: Sequence[LivingRelease]
) -> list[Problem]:
    """Find the conflicts between this release of an app and all others that have a living beat."""
    return [*other_apps(namespace, owner, living), *other_releases(namespace, owner, release, entries, living)]


def other_apps(namespace: str, owner: str, living: Sequence[LivingRelease]) -> Iterator[Problem]:
    """Find other apps in the namespace of this app."""
    for other, beat in {release.owner: release.beat for release in living if release.owner != owner}.items():
        moves = owner if namespace != owner else other
        yield Problem(
            (other, ""),
            f"the apps {owner} and {other} ({beat}) share the namespace {namespace!r} of one database: jobs of one "
            "name collide, and on a queue that both consume each gets the other's tasks",
            f'set in {moves}, for its beats and workers: sqlbeat_namespace = "{moves}" '
            f'and, on the same broker, task_default_queue = "{moves}"',
        )


def other_releases(
    namespace: str, owner: str, release: str, entries: Mapping[str, str], living: Sequence[LivingRelease]
) -> Iterator[Problem]:
    """Find other releases of this app that have another schedule."""
    for other in living:
        if other.owner != owner or other.release == release or other.entries is None:
            continue
        differences = [
            ("only there", sorted(other.entries.keys() - entries.keys())),
            ("only here", sorted(entries.keys() - other.entries.keys())),
            ("otherwise defined", _differing(entries, other.entries)),
        ]
        told = "; ".join(f"{what}: {_listed(names)}" for what, names in differences if names)
        if told:
            yield Problem(
                (owner, other.release),
                f"release {shown_release(other.release)} of {owner} ({other.beat}) is alive beside release "
                f"{shown_release(release)} with another beat_schedule: {told}. An entry stays while a living beat "
                "has it, as the newest of those defines it",
                "where this is a deployment, it ends with the older beats; beats that are to keep different schedules "
                f'need a namespace each: sqlbeat_namespace = "{namespace}-2" for the beats and workers of one of them',
            )


def _differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    return sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


class EntryCalls:
    """Knows the entries of this process's `beat_schedule`, and which jobs are this beat's."""

    def __init__(self, code: CodeSchedule, questions: ScheduleQuestions | None = None) -> None:
        """Know no other beats yet. `questions` are those to custom schedule classes."""
        self.questions = questions or ScheduleQuestions()
        self._by_key = {key: code_entry.entry for key, code_entry in code.by_key().items()}
        self._names = frozenset(code.told())
        self.keys = sorted(self._by_key)
        self._claimable = Claimable(code.owner, self.keys, (), self._names)
        self._living: frozenset[str] = frozenset()

    @property
    def claimable(self) -> Claimable:
        """The jobs that this beat may claim, without those whose schedule has not answered."""
        if self.questions.is_idle or not (silent := self.questions.pending()):
            return self._claimable
        return self._claimable._replace(code_keys=[key for key in self.keys if key not in silent])

    def learn(self, living: Iterable[LivingRelease], spared: Iterable[str]) -> None:
        """Leave the jobs to other living beats that only they have in their code.

        `spared`: jobs that may be in the code of a beat that does not tell its entries.
        """
        living = list(living)
        mine = self._claimable.owner
        theirs = {name for release in living if release.owner == mine for name in release.entries or ()} | set(spared)
        self._claimable = self._claimable._replace(other_entries=sorted(theirs - self._names))
        self._living = frozenset(release.owner for release in living)

    def is_own(self, job_name: str, owner: str | None) -> bool:
        """Return whether this beat may send a job; each beat may send jobs without an owner."""
        return self._claimable.includes(job_name, owner)

    def is_sent_by_others(self, job_name: str, owner: str | None) -> bool:
        """Return whether another living beat sends the messages of a job."""
        return not self.is_own(job_name, owner) and (owner == self._claimable.owner or owner in self._living)

    def filled(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims with the arguments of their entries, where no text can hold these."""
        return [claim if claim.code_key is None else self._filled(claim, claim.code_key) for claim in claims]

    def _filled(self, claim: Claim, key: str) -> Claim:
        entry = self._by_key[key]
        return claim._replace(args=entry.args or (), kwargs=entry.kwargs or {}, options=entry.options or {})


def import_code(
    store: Store,
    owner: str,
    release: str,
    entries: Mapping[str, str] | None,
    planner: SchedulePlanner,
    live_seconds: float,
    announce: bool = False,
) -> Imported:
    """Plan and write an import, again where what it was planned from has changed meanwhile.

    `entries`: a digest of each, or None where the release does not tell. What was written stays, so
    that each try has less to write.
    """
    added, changed, left = list[str](), list[str](), list[str]()
    for _ in range(_TRIES):
        now, rows, beside = store.code_state(owner, release, live_seconds)
        changes = None if beside.newer is None else planner(now, rows, beside)
        done = store.import_code(CodeImport(owner, release, entries, live_seconds, beside, changes, announce))
        added, changed, left = added + done.added, changed + done.changed, left + done.left
        if not done.is_stale:
            break
    return done._replace(added=added, changed=changed, left=left)


class ScheduleSync:
    """Brings the `beat_schedule` of this process into the table."""

    def __init__(
        self,
        store: Store,
        code: CodeSchedule,
        planner: SchedulePlanner,
        calls: EntryCalls,
        namespace: str,
        alive_seconds: float,
        differs: bool,
        clock: Callable[[], float] = environment.monotonic,
    ) -> None:
        """Import nothing yet. `differs`: some entry behaves otherwise than under stock beat."""
        self._store = store
        self._code = code
        self._planner = planner
        self._calls = calls
        self._namespace = namespace
        self._alive_seconds = alive_seconds
        self._differs = differs
        self._clock = clock
        self._told = code.told()
        self._tally: CodeTally | None = None
        self._spared: frozenset[str] = frozenset()
        self._beside = Beside()
        self._reminders: dict[tuple[str, str], float] = {}
        self._refused: Mapping[str, str] = {}

    def bring(self) -> None:
        """Write what the code says, except for entries of a newer release that has a live beat."""
        code = self._code
        newest = self._newest()
        # The others are to read it now, and not at their next poll.
        done = self._import(newest.has_others)
        if not code.is_named and self._adopt_of_the_nameless(done):
            done = self._import(newest.has_others)
        for name, owner in done.kept.items():
            events.entry_rejected(entry=name, reason=f"a job of {owner or 'the table'} has this name already")
        self._tell(done)
        if newest.imported is None and self._differs:
            events.advice(topic="two things differ from stock beat", text=_DIFFERENCES, remedy=_AS_STOCK)
        replaced = code.with_task_id() if newest.imported is None else []
        if replaced:
            text = f"the task_id in the options of {', '.join(replaced)} is replaced: {TASK_IDS}"
            events.advice(topic="options", text=text, remedy="take it out")
        self._consider(self._living(newest))
        self._name_orphans()

    def keep(self) -> None:
        """Write it again where the table, or the entries of other beats, may have changed."""
        newest = self._newest()
        living = self._living(newest)
        self._consider(living)
        if self._is_outdated(newest, living):
            done = self._import()
            if done.winner == self._code.release != newest.imported or done.added or done.changed or done.left:
                self._tell(done)

    def _import(self, announce: bool = False) -> Imported:
        code = self._code
        alive = self._alive_seconds
        done = import_code(self._store, code.owner, code.release, self._told, self._planner, alive, announce)
        self._tally, self._spared, self._beside = done.tally, done.spared, done.beside
        if done.is_stale:
            self._tally = None  # at the next poll it is imported again
            events.step_failed(step="import the beat_schedule", error="somebody else keeps changing its rows")
        for name, why in done.refused.items():
            if self._refused.get(name) != why:
                events.entry_rejected(entry=name, reason=f"the database refuses its row: {why}")
        self._refused = done.refused
        return done

    def _adopt_of_the_nameless(self, done: Imported) -> bool:
        """Adopt what this app defined before it had a name, once no nameless beat is alive."""
        names = [name for name, owner in done.kept.items() if owner == NAMELESS]
        if not names or any(release.owner == NAMELESS for release in self._store.living(self._alive_seconds)):
            return False
        return bool(self._store.adopt(self._code.owner, NAMELESS, names))

    def _tell(self, done: Imported) -> None:
        events.jobs_imported(
            app=self._code.owner,
            release=shown_release(self._code.release),
            winner=shown_release(done.winner),
            added=len(done.added),
            changed=len(done.changed),
            left=len(done.left),
        )

    def _newest(self) -> NewestRelease:
        return self._store.newest_release(self._code.owner, self._code.release, self._alive_seconds)

    def _living(self, newest: NewestRelease) -> list[LivingRelease]:
        return self._store.living(self._alive_seconds) if newest.has_others else []

    def _is_outdated(self, newest: NewestRelease, living: list[LivingRelease]) -> bool:
        if newest.winner == self._code.release != newest.imported or newest.tally != self._tally:
            return True
        others = [
            release for release in living if release.owner == self._code.owner and release.release != self._code.release
        ]
        if any(release.entries is None for release in others):
            return False  # it may have any entry
        theirs = {name for release in others for name in release.entries or ()}
        # What was left to them is now this beat's to disable, or to define.
        return not self._spared <= theirs or not (self._beside.newer or theirs) & self._told.keys() <= theirs

    def _consider(self, living: list[LivingRelease]) -> None:
        """Leave to the others what is theirs, and report conflicts with them."""
        code, now = self._code, self._clock()
        self._calls.learn(living, self._spared)
        conflicts = problems(self._namespace, code.owner, code.release, self._told, living)
        self._reminders = {problem.about: self._reminders.get(problem.about, now) for problem in conflicts}
        for problem in conflicts:
            if self._reminders[problem.about] <= now:
                events.conflict_found(reason=problem.says, remedy=problem.remedy)
                self._reminders[problem.about] = now + _REMIND_SECONDS

    def _name_orphans(self) -> None:
        """Report apps whose jobs nobody claims: renamed, moved, or their beats have not started."""
        living = {release.owner for release in self._store.living(self._alive_seconds)} | {self._code.owner}
        for owner, jobs in sorted(self._store.counts().owners.items()):
            if owner not in living:
                events.advice(
                    topic="owner",
                    text=f"{jobs} enabled jobs belong to the app {owner}, whose beats alone claim them, and none of "
                    "them is alive",
                    remedy=f"if it was renamed to {self._code.owner}: celery -A app sqlbeat jobs adopt --owner {owner}",
                )
