"""Keeps the table saying what the code says: at the start, and again when the release that won has lost its beats."""

import logging

from celery_sqlbeat.beat.code import CodePlanner
from celery_sqlbeat.beat.entries import CodeSchedule
from celery_sqlbeat.store.protocol import CodeStore, NewestRelease

logger = logging.getLogger(__name__)

_DIFFERENCES = (
    "Two things differ from stock beat by design: a job does not start again while its last run goes on (overlap), "
    "and a run that failed is tried again (max_retries). To have it as before, set "
    'sqlbeat_policies = {"*": {"overlap": "allow", "max_retries": 0}}'
)


class Importing:
    """The `beat_schedule` of this process on its way into the table."""

    def __init__(
        self, store: CodeStore, code: CodeSchedule, plan: CodePlanner, alive_seconds: float, differs: bool
    ) -> None:
        """`differs`: some entry behaves otherwise than under stock beat."""
        self._store = store
        self._code = code
        self._plan = plan
        self._alive_seconds = alive_seconds
        self._differs = differs

    def bring(self) -> None:
        """Write what the code says, unless a newer release has a live beat."""
        code = self._code
        is_first = self._newest().imported is None
        done = self._store.import_code(code.owner, code.release, self._plan, self._alive_seconds)
        if done.winner != code.release:
            logger.info("release %s of %s defines the jobs; this beat has %s", done.winner, code.owner, code.release)
            return
        for name, owner in done.kept.items():
            logger.error("entry %s is left out: a job of %s has this name already", name, owner or "the table")
        logger.info(
            "beat_schedule of %s: %d jobs added, %d changed, %d left the code",
            code.owner,
            len(done.added),
            len(done.changed),
            len(done.left),
        )
        if is_first and self._differs:
            logger.warning(_DIFFERENCES)

    def keep(self) -> None:
        """Write it again where this release is the newest that is alive, and the table has another one."""
        newest = self._newest()
        if newest.winner == self._code.release != newest.imported:
            self.bring()

    def _newest(self) -> NewestRelease:
        return self._store.newest_release(self._code.owner, self._code.release, self._alive_seconds)
