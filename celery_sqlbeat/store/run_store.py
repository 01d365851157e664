"""Releases runs: the one place where a lease ends, whoever ends it. First the jobs' rows, then the runs'."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from celery_sqlbeat.lifecycle import CLAIMED, LONGEST_REASON, RUNNING, Ending, by_way_of
from celery_sqlbeat.store.database import Database
from celery_sqlbeat.store.protocol import Answer
from celery_sqlbeat.store.session import Row, Rows, Session
from celery_sqlbeat.store.steps import Steps

_LONGEST_ERROR = 2000  # characters; it begins with its type and what happened, and may go on with data
_LONGEST_TRACEBACK = 16000  # the other way round: its last lines say where it was raised


class Release(NamedTuple):
    """A run, the right to write about it, and how it ends."""

    job_id: str
    run_id: str
    claim_id: str
    fence: int
    ending: Ending


def release(
    database: Database,
    namespace: str,
    releases: Sequence[Release],
    only_unstarted: bool = False,
    only_ended: bool = False,
    grace_seconds: float = 0.0,
) -> Answer:
    """End runs and free their jobs; answers the run ids for which it was so. For the others the claim is lost.

    A beat's, which are guarded, wait for nobody: those whose rows somebody keeps locked are left as they are.
    """
    if not releases:
        return set
    ordered = sorted(releases, key=itemgetter(1))  # by run, as every statement locks
    is_guarded = only_unstarted or only_ended
    guard = {
        "only_unstarted": int(only_unstarted),
        "only_ended": int(only_ended),
        "grace_seconds": grace_seconds,
    }
    name = "release_at_once" if is_guarded else "finish_at_once"
    if database.does_at_once(name):
        return _at_once(database, name, namespace, ordered, guard)
    before = _before(guard)
    everyone = {one.run_id for one in ordered}
    lock_rows = [(one.job_id, one.run_id) for one in ordered]
    job_rows = [(r.job_id, r.run_id, r.claim_id, r.fence, r.ending.state, r.ending.retry_seconds) for r in ordered]

    def work(session: Session) -> set[str]:
        mine = {row[0] for row in session.fetch("lock_claims", lock_rows)} if is_guarded else everyone
        if not mine:
            return set()
        released = session.fetch("release_jobs", [row for row in job_rows if row[1] in mine], **guard)
        free = {row[0] for row in released}
        run_rows = [
            (one.run_id, one.claim_id, one.fence, one.job_id in free, *_end_of(one.ending, before))
            for one in ordered
            if one.run_id in mine
        ]
        closed = {row[0] for row in session.fetch("close_runs", run_rows, **guard)}
        if is_guarded:
            # An overlapping run that has begun goes on by itself, but its job is free.
            closed |= {one.run_id for one in ordered if one.job_id in free}
        if any(unforeseen for _, unforeseen in released):
            session.fetch("bump_changes", namespace=namespace)
        return closed

    def settle(session: Session) -> set[str] | None:
        return {row[0] for row in session.fetch("read_endings", _endings(ordered))} or None

    return lambda: database.write(work, settle)


def releasing(database: Database, namespace: str, releases: Sequence[Release]) -> Steps[set[str]]:
    """The same in steps, whatever state the runs are in."""
    if not database.does_at_once("finish_at_once"):
        yield None
        return release(database, namespace, releases)()
    ordered = sorted(releases, key=itemgetter(1))
    guard = {"only_unstarted": 0, "only_ended": 0, "grace_seconds": 0.0}
    found = yield from database.asking(
        "finish_at_once", _all_rows(ordered, guard), partial(_settled, ordered), namespace=namespace, **guard
    )
    return _done(ordered, found)


def _at_once(
    database: Database, name: str, namespace: str, ordered: Sequence[Release], guard: dict[str, float]
) -> Answer:
    """The same as one statement."""
    answer = database.ask(name, _all_rows(ordered, guard), partial(_settled, ordered), namespace=namespace, **guard)
    return lambda: _done(ordered, answer())


def _all_rows(ordered: Sequence[Release], guard: Mapping[str, float]) -> Rows:
    before = _before(guard)
    return [(one.job_id, one.run_id, one.claim_id, one.fence, *_end_of(one.ending, before)) for one in ordered]


def _before(guard: Mapping[str, float]) -> str:
    """The state of the runs that are to end: those that nobody has started are still claimed."""
    return CLAIMED if guard["only_unstarted"] else RUNNING


def _settled(ordered: Sequence[Release], session: Session) -> list[Row] | None:
    return session.fetch("read_endings", _endings(ordered)) or None


def _done(ordered: Sequence[Release], found: Sequence[Row]) -> set[str]:
    ids = {row[0] for row in found}
    return {one.run_id for one in ordered if one.run_id in ids or one.job_id in ids}


def _endings(ordered: Sequence[Release]) -> Rows:
    return [(one.run_id, one.claim_id, one.fence, one.ending.state) for one in ordered]


def _end_of(end: Ending, before: str) -> Row:
    """The last columns of a row of close_runs."""
    return (
        end.state,
        by_way_of(end.state, before),
        _end(end.reason, LONGEST_REASON),
        end.retry_seconds,
        end.failures,
        end.lost_leases,
        _beginning(end.error, _LONGEST_ERROR),
        _end(end.traceback, _LONGEST_TRACEBACK),
    )


def delete_free(session: Session, namespace: str, job_ids: Rows) -> set[str]:
    """Delete those of the jobs to be deleted that no run holds; what waited for its turn gets its outcome."""
    found = session.fetch("delete_requested", job_ids) if job_ids else []
    for job_id, *run_ids in found:
        for run_id in run_ids:
            session.fetch("cancel_waiting", namespace=namespace, job_id=job_id, run_id=run_id)
    return {row[0] for row in found}


def _beginning(text: str | None, longest: int) -> str | None:
    clean = _storable(text)
    return clean if clean is None or len(clean) <= longest else clean[: longest - 4] + " ..."


def _end(text: str | None, longest: int) -> str | None:
    clean = _storable(text)
    return clean if clean is None or len(clean) <= longest else "... " + clean[4 - longest :]


def _storable(text: str | None) -> str | None:
    """A text as every database takes it: an error may hold bytes of a file's name, which are no text."""
    return None if text is None else text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
