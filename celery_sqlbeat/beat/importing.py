"""Keeps the table saying what the code says: at the start, after changes by others, and as other beats come and go."""

import logging
import time
from collections.abc import Callable, Mapping

from celery_sqlbeat.beat.code import CodePlanner
from celery_sqlbeat.beat.code_calls import CodeCalls
from celery_sqlbeat.beat.entries import NAMELESS, CodeSchedule, shown_release
from celery_sqlbeat.beat.neighbours import problems
from celery_sqlbeat.model import Beside, LivingRelease
from celery_sqlbeat.store.protocol import CodeStore, CodeTally, Imported, NewestRelease

logger = logging.getLogger(__name__)

_REMIND_SECONDS = 600.0  # what others have to end is told again, not at every look
_DIFFERENCES = (
    "Two things differ from stock beat by design: a job does not start again while its last run goes on, but right "
    "after it (overlap), and a run that failed is tried again (max_retries). To have it as before, set "
    'sqlbeat_policies = {"*": {"overlap": "allow", "max_retries": 0}}'
)

TASK_IDS = (
    "the id of a message is that of its run, another one for each attempt, so that a copy is told from a new attempt"
)


class Importing:
    """The `beat_schedule` of this process on its way into the table."""

    def __init__(
        self,
        store: CodeStore,
        code: CodeSchedule,
        plan: CodePlanner,
        calls: CodeCalls,
        namespace: str,
        alive_seconds: float,
        differs: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`differs`: some entry behaves otherwise than under stock beat."""
        self._store = store
        self._code = code
        self._plan = plan
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
        """Write what the code says, except for what a newer release that has a live beat says otherwise."""
        code = self._code
        newest = self._newest()
        done = self._import()
        if not code.is_named and self._adopt_of_the_nameless(done):
            done = self._import()
        for name, owner in done.kept.items():
            logger.error("entry %s is left out: a job of %s has this name already", name, owner or "the table")
        if done.winner != code.release:
            winner, own = shown_release(done.winner), shown_release(code.release)
            logger.info("release %s of %s defines the jobs; this beat has %s", winner, code.owner, own)
        else:
            self._tell(done)
        if newest.imported is None and self._differs:
            logger.warning(_DIFFERENCES)
        replaced = code.with_task_id() if newest.imported is None else []
        if replaced:
            logger.warning("the task_id in the options of %s is replaced: %s", ", ".join(replaced), TASK_IDS)
        if newest.has_others:
            self._store.announce()  # so that they look now, and not at their next poll
        self._heed(self._living(newest))
        self._name_orphans()

    def keep(self) -> None:
        """Write it again where the table may no longer say it, or other beats no longer what they had."""
        newest = self._newest()
        living = self._living(newest)
        self._heed(living)
        if self._is_outdated(newest, living):
            done = self._import()
            if done.winner == self._code.release != newest.imported or done.added or done.changed or done.left:
                self._tell(done)

    def _import(self) -> Imported:
        code = self._code
        done = self._store.import_code(code.owner, code.release, self._plan, self._alive_seconds, self._told)
        self._tally, self._spared, self._beside = done.tally, done.spared, done.beside
        for name, why in done.refused.items():
            if self._refused.get(name) != why:
                logger.error("entry %s is left out: the database refuses its row: %s", name, why)
        self._refused = done.refused
        return done

    def _adopt_of_the_nameless(self, done: Imported) -> bool:
        """Take over what this app defined while no name was known of it, once no beat of such an app is alive."""
        names = [name for name, owner in done.kept.items() if owner == NAMELESS]
        if not names or any(one.owner == NAMELESS for one in self._store.living(self._alive_seconds)):
            return False
        return bool(self._store.adopt(self._code.owner, NAMELESS, names))

    def _tell(self, done: Imported) -> None:
        logger.info(
            "beat_schedule of %s: %d jobs added, %d changed, %d left the code",
            self._code.owner,
            len(done.added),
            len(done.changed),
            len(done.left),
        )

    def _newest(self) -> NewestRelease:
        return self._store.newest_release(self._code.owner, self._code.release, self._alive_seconds)

    def _living(self, newest: NewestRelease) -> list[LivingRelease]:
        return self._store.living(self._alive_seconds) if newest.has_others else []

    def _is_outdated(self, newest: NewestRelease, living: list[LivingRelease]) -> bool:
        if newest.winner == self._code.release != newest.imported or newest.tally != self._tally:
            return True
        others = [one for one in living if one.owner == self._code.owner and one.release != self._code.release]
        if any(one.entries is None for one in others):
            return False  # it may have any entry
        theirs = {name for one in others for name in one.entries or ()}
        # What was left to them is this beat's now: to disable, or to define.
        return not self._spared <= theirs or not (self._beside.newer or theirs) & self._told.keys() <= theirs

    def _heed(self, living: list[LivingRelease]) -> None:
        """Leave to the others what is theirs, and say what is wrong about them."""
        code, now = self._code, self._clock()
        self._calls.learn(living, self._spared)
        found = problems(self._namespace, code.owner, code.release, self._told, living)
        self._reminders = {one.about: self._reminders.get(one.about, now) for one in found}
        for one in found:
            if self._reminders[one.about] <= now:
                logger.warning("%s: %s", one.says, one.remedy)
                self._reminders[one.about] = now + _REMIND_SECONDS

    def _name_orphans(self) -> None:
        """Name the apps whose jobs nobody claims: they were renamed, moved, or their beats are not started yet."""
        living = {one.owner for one in self._store.living(self._alive_seconds)} | {self._code.owner}
        for owner, jobs in sorted(self._store.owners().items()):
            if owner not in living:
                logger.warning(
                    "%d enabled jobs belong to the app %s, whose beats alone claim them, and none of them is alive. "
                    "If it was renamed to %s: celery -A app sqlbeat jobs adopt --owner %s",
                    jobs,
                    owner,
                    self._code.owner,
                    owner,
                )
