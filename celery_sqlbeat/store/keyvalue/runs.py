"""Start, extend and end runs, and keep what others know of them."""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from celery_sqlbeat.model import SCHEDULE, EndedSlot, RefusedStart, StartedRun, StartRequest
from celery_sqlbeat.model.one_offs import Asked
from celery_sqlbeat.store.keyvalue.claims import recorded
from celery_sqlbeat.store.keyvalue.end_rows import end_run
from celery_sqlbeat.store.keyvalue.rows import Key, Place, Row, Scan
from celery_sqlbeat.store.keyvalue.start_rows import start_run
from celery_sqlbeat.store.keyvalue.tables import JOB, RUN, UNENDED, after, instant, runs_index, score
from celery_sqlbeat.store.keyvalue.units import View, carry_out, parts, sure
from celery_sqlbeat.store.records import Extended, Guard, Recorded, Release, RunNote

_BY_RETRIES = attrgetter("celery_retries")


class Runs:
    """What workers do to one place, and every end of a run."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def start(self, requests: Sequence[StartRequest], worker: str) -> dict[str, StartedRun | RefusedStart]:
        """Take over the leases of the runs that may begin, and say why others may not."""
        by_run: dict[str, list[StartRequest]] = {}
        # Of two requests for one run the one with more of Celery's own retries counts.
        for request in sorted(requests, key=_BY_RETRIES, reverse=True):
            by_run.setdefault(request.run_id, []).append(request)
        asked = list(by_run.values())
        answers = carry_out(self._place, asked, lambda same: [(RUN, same[0].run_id)], partial(start_run, worker=worker))
        # Where one has no answer, the same questions may be asked again.
        known = zip(by_run, sure(answers), strict=True)
        return {run_id: answer for run_id, answer in known if answer is not None}

    def extend(self, held: Sequence[tuple[StartedRun, float]]) -> Extended:
        """Extend leases by so many seconds from now."""
        answers = carry_out(self._place, held, _lease_key, _extend)
        run_ids = [run.run_id for run, _ in held]
        extended = recorded(run_ids, answers)
        asked = {run_id: one for run_id, one in zip(run_ids, answers, strict=True) if isinstance(one, Asked)}
        return Extended(set(run_ids) - extended.done - extended.busy, extended.busy, asked)

    def finish(self, releases: Sequence[Release], guard: Guard = Guard.HELD) -> Recorded:
        """End runs, or their attempts, and free their jobs."""

        def end(view: View, release: Release) -> bool:
            ended = end_run(view, release, guard)
            # An overlapping run that has begun goes on by itself, but a beat has freed its job.
            return ended.is_closed or (ended.is_released and guard is not Guard.HELD)

        answers = carry_out(self._place, releases, _release_keys, end)
        return recorded([release.run_id for release in releases], answers)

    def note_runs(self, notes: Sequence[RunNote]) -> Recorded:
        """Keep the check-ins of monitors, and whose results are ended."""
        answers = carry_out(self._place, notes, lambda note: [(RUN, note.run_id)], _note)
        return recorded([note.run_id for note in notes], answers)

    def unended_results(self, page_size: int, since_seconds: float) -> list[EndedSlot]:
        """Return slots that ended lately and whose earlier attempts may have no final result."""
        snapshot = self._place.read(scans=[Scan(UNENDED, limit=page_size, is_reversed=True)])
        since = after(snapshot.now, -since_seconds)
        ids = [run_id for run_id, at in snapshot.scanned[0].ids if at > since]
        slots: list[EndedSlot] = []
        for part in parts(ids):
            slots += self._slots(part)
        return slots

    def _slots(self, run_ids: Sequence[str]) -> list[EndedSlot]:
        if not run_ids:
            return []
        runs = self._rows(RUN, run_ids)
        jobs = self._rows(JOB, sorted({run["job_id"] for run in runs.values()}))
        slots = {run_id: score(run["scheduled_for"]) for run_id, run in runs.items()}
        scans = [Scan(runs_index(run["job_id"]), low=slots[run_id], high=slots[run_id]) for run_id, run in runs.items()]
        listed = [[found_id for found_id, _ in same.ids] for same in self._place.read(scans=scans).scanned]
        others = self._rows(RUN, sorted({other for ids in listed for other in ids}))
        return [
            EndedSlot(
                run_id,
                run["job_name"],
                run["attempt"],
                run["state"],
                jobs.get(run["job_id"], {}).get("task_name"),
                jobs.get(run["job_id"], {}).get("options"),
                tuple((other, others[other]["attempt"]) for other in ids if _precedes(others.get(other), run)),
            )
            for (run_id, run), ids in zip(runs.items(), listed, strict=True)
        ]

    def _rows(self, table: str, ids: Sequence[str]) -> dict[str, Row]:
        read = self._place.read([(table, row_id) for row_id in ids]).rows if ids else {}
        return {key[1]: versioned.row for key, versioned in read.items() if versioned.row is not None}


def _precedes(other: Row | None, run: Row) -> bool:
    """Return whether another run is an earlier attempt of the same slot that a beat has claimed."""
    if other is None or other.get("claimed_at") is None or other["attempt"] >= run["attempt"]:
        return False
    return (other["scheduled_for"], other["kind"]) == (run["scheduled_for"], run.get("kind", SCHEDULE))


def _lease_key(lease: tuple[StartedRun, float]) -> list[Key]:
    run = lease[0]
    return [(JOB, run.job_id) if run.exclusive else (RUN, run.run_id)]


def _extend(view: View, lease: tuple[StartedRun, float]) -> bool | Asked:
    """Extend the lease of a job, or of a run that overlaps others, while its holder holds it."""
    run, seconds = lease
    row = view.row(*_lease_key(lease)[0])
    if row is None or (row.get("claim_id"), row["fence"]) != (run.claim_id, run.fence):
        return False
    if run.exclusive:
        if row.get("locked_by") is None or row.get("run_id") != run.run_id:
            return False
        row["locked_at"] = view.now
    elif row.get("held_by") is None:
        return False
    row["lease_ends_at"] = after(view.now, seconds)
    asked = view.row(RUN, run.run_id) if row.get("asked") or not run.exclusive else None
    if asked is None or asked.get("cancel_at") is None:
        return True
    return Asked(asked["cancel_by"], asked["cancel_reason"], instant(asked["cancel_at"]))


def _release_keys(release: Release) -> list[Key]:
    return [(JOB, release.job_id), (RUN, release.run_id)]


def _note(view: View, note: RunNote) -> bool:
    run = view.row(RUN, note.run_id)
    if run is None or (note.claim_id is not None and run.get("claim_id") != note.claim_id):
        return False
    if note.check_in is not None:
        run["check_in"] = note.check_in
    if note.results_ended:
        run["results_ended_at"] = view.now
    return True
