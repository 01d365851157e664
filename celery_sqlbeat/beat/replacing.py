"""Makes room for the next slot of jobs with `overlap = replace`: the run that goes on is cancelled under its fence.

It has lost its lease before the next one begins, so no two of them are valid; its worker learns so by a heartbeat.
"""

import logging
from collections.abc import Callable, Sequence

from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.protocol import BeatStore

logger = logging.getLogger(__name__)


class Replacing:
    """Whichever beat comes first."""

    def __init__(
        self,
        store: BeatStore,
        planner: Planner,
        owner: str,
        batch_size: int,
        recall: Callable[[Sequence[str]], None],
    ) -> None:
        """`owner`: the app of this beat. `recall` asks the workers to look at once whether they hold these runs."""
        self._store = store
        self._planner = planner
        self._owner = owner
        self._batch_size = batch_size
        self._recall = recall

    def replace(self) -> int:
        """Cancel the runs that make room; returns how many were dealt with."""
        found = self._store.replaceable(self._batch_size, self._owner)
        if not found:
            return 0
        answers = [(run, *self._planner.makes_room(run)) for run in found]
        postponed = [(run, later) for run, makes_room, later in answers if not makes_room]
        self._store.postpone_replacing(postponed)
        making_room = [run for run, makes_room, _ in answers if makes_room]
        replaced = self._store.replace(making_room) if making_room else set()
        for run in making_room:
            if run.run_id in replaced:
                logger.info("job %s, run %s is replaced: the next slot has come", run.job_name, run.run_id)
        if replaced:
            self._recall(sorted(replaced))
        return len(replaced) + len(postponed)
