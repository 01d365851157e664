"""The dead letters of a namespace: slots whose attempts have all failed. They stay until they are purged."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

from celery_sqlbeat.checks import NotAllowed, seconds, shown
from celery_sqlbeat.errors import FieldError, NoSuchRun
from celery_sqlbeat.handle.records import Run, run_of
from celery_sqlbeat.handle.runs import find_run, how_many
from celery_sqlbeat.ids import Ids
from celery_sqlbeat.model import RunRecord
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.protocol import FIRST_ID

FoundRuns = list[Run]  # in the class itself `list` is a method
Letter = str | uuid.UUID | Run
Letters = Letter | Iterable[Letter] | None
Progress = Callable[[int], None]

REPLAYED = "replayed"
_ONE = (str, uuid.UUID, Run)
BATCH = 500  # letters; a transaction each


class Dead:
    """`beat.dead`. Without letters named, `replay` and `purge` take all of them."""

    def __init__(self, store: Callable[[], Store]) -> None:
        """The store is asked for when it is first needed."""
        self._store = store
        self._ids = Ids()

    def list(self, job: str | None = None, *, limit: int | None = None) -> FoundRuns:
        """The dead letters, oldest first; those that were replayed say so as their reason."""
        return [*itertools.islice(map(run_of, self._letters(None, job, None)), how_many(limit))]

    def replay(
        self, letters: Letters = None, *, job: str | None = None, progress: Progress = lambda _: None
    ) -> FoundRuns:
        """Give dead letters another attempt, each under a new run id; returns what waits now to run.

        A letter is replayed once. One whose job is gone stays where it is.
        """
        admin, made = self._store().for_admin(), list[Run]()
        chosen = (letter for letter in self._letters(letters, job, None) if letter.reason != REPLAYED)
        for batch in _batches(chosen):
            done = admin.replay([*zip(self._ids.run_ids(len(batch)), batch, strict=True)])
            made += [run_of(run) for run in map(admin.run, sorted(done)) if run is not None]
            progress(len(batch))
        return made

    def purge(
        self,
        letters: Letters = None,
        *,
        job: str | None = None,
        older_than: float | timedelta | None = None,
        progress: Progress = lambda _: None,
    ) -> int:
        """Delete dead letters for good: these, or those of a job, or those that ended so long ago; returns how many."""
        admin, purged = self._store().for_admin(), 0
        for batch in _batches(self._letters(letters, job, _age(older_than))):
            purged += len(admin.purge_dead([letter.run_id for letter in batch]))
            progress(len(batch))
        return purged

    def _letters(self, letters: Letters, job: str | None, older_than: timedelta | None) -> Iterator[RunRecord]:
        found = self._all() if letters is None else self._named(letters)
        end = None if older_than is None else self._store().nodes().clock() - older_than
        for letter in found:
            if job in (None, letter.job_name) and (end is None or (letter.finished_at or letter.created_at) < end):
                yield letter

    def _all(self) -> Iterator[RunRecord]:
        admin, after = self._store().for_admin(), FIRST_ID
        while page := admin.dead(BATCH, after):
            yield from page
            after = page[-1].run_id

    def _named(self, letters: Letter | Iterable[Letter]) -> Iterator[RunRecord]:
        """All of them are looked up before anything is done to one."""
        store, found = self._store(), []
        for each in [letters] if isinstance(letters, _ONE) else letters:
            run_id = each.id if isinstance(each, Run) else each
            row = find_run(store, run_id)
            if row is None or row.state != "dlq":
                raise NoSuchRun(str(run_id))
            found.append(row)
        return iter(found)


def _age(value: Any) -> timedelta | None:
    kind = seconds(0)
    try:
        return None if value is None else timedelta(seconds=kind.read(value))
    except NotAllowed as refusal:
        raise FieldError("older_than", shown(value), f"write {refusal.allowed}") from None


def _batches(letters: Iterator[RunRecord]) -> Iterator[list[RunRecord]]:
    while batch := [*itertools.islice(letters, BATCH)]:
        yield batch
