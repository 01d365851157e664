"""Encrypt the arguments of all jobs with the newest key of `sqlbeat_payload_key`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from celery_sqlbeat.api.jobs import job_pages
from celery_sqlbeat.api.runs import run_pages
from celery_sqlbeat.config.payload_key import Keyring, is_sealed
from celery_sqlbeat.model import JobRecord, SealJob
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import JobQuery, RunQuery

_TRIES = 10  # of a row; a try fails only where somebody changes the row meanwhile


@dataclass
class Resealed:
    """What was done, and what is left to do."""

    jobs: int = 0
    """How many rows of jobs and one-offs have other texts now."""
    locked: list[str] = field(default_factory=list)
    """Jobs that no key opens."""
    changing: list[str] = field(default_factory=list)
    """Jobs that somebody else kept changing."""


def reseal(store: Store, keys: Keyring, progress: Callable[[int], None] = lambda _: None) -> Resealed:
    """Encrypt what is plain, or under an older key, row by row where it is as it was read.

    One-offs that have ended are rows as well, since they may be replayed.

    `store` gives the rows as they are kept. It may be interrupted, and done again: what is under
    the newest key already is not written.
    """
    done = Resealed()
    for page, one_offs in _pages(store):
        rows, tries = page, 0
        while rows and tries < _TRIES:
            result = store.write_jobs([write for row in rows if (write := _write(row, keys)) is not None])
            done.jobs += len(result.done)
            rows = (
                [*store.jobs(JobQuery(names=result.conflicts, one_offs=one_offs)).values()] if result.conflicts else []
            )
            tries += 1
        done.changing += [row.job_name for row in rows]
        done.locked += [row.job_name for row in page if _is_locked(row, keys)]
        progress(len(page))
    return done


def _pages(store: Store) -> Iterator[tuple[list[JobRecord], bool]]:
    """Yield the rows page by page, and whether they are those of one-offs."""
    for page in job_pages(store):
        yield page, False
    for runs in run_pages(store, RunQuery(one_offs=True)):
        yield [*store.jobs(JobQuery(names=[run.run_id for run in runs], one_offs=True)).values()], True


def _write(row: JobRecord, keys: Keyring) -> SealJob | None:
    sealed = keys.resealed(row.args), keys.resealed(row.kwargs)
    if sealed == (row.args, row.kwargs):
        return None
    return SealJob(row.job_name, version=row.version, args=sealed[0], kwargs=sealed[1])


def _is_locked(row: JobRecord, keys: Keyring) -> bool:
    return any(is_sealed(keys.opened(text)) for text in (row.args, row.kwargs))
