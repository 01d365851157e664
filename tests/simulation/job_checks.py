"""What may happen to a row of `Jobs`, statement by statement.

Who may write it, from which state, and to what.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tests.simulation.database import Call
from tests.simulation.hub import Process
from tests.simulation.jobs import Spec
from tests.simulation.ledger import Ledger
from tests.simulation.rows import JobRow, RunRow, instant, seconds_from

MOST_REPUBLISHES = 3
_SLACK = 0.002  # seconds; durations go through floating point

_CLAIM = {"locked_by", "locked_at", "lease_ends_at", "claimed_at", "published_at", "planned_at", "fence", "run_id"}
_CLAIM |= {"claim_id", "started_retry", "republishes", "replace_at"}
_OPERATOR = {"enabled", "disabled_reason", "version"}
MAY_WRITE: dict[str, set[str]] = {
    "claim_jobs": _CLAIM,
    "mark_published": {"published_at", "lease_ends_at"},
    "postpone_start_deadline": {"locked_by", "locked_at", "republishes", "lease_ends_at"},
    "start_jobs": {"locked_by", "locked_at", "lease_ends_at", "claimed_at", "started_retry", "run_id", "claim_id"}
    | {"fence"},
    "extend_leases": {"locked_at", "lease_ends_at"},
    "postpone_replacing": {"replace_at"},
    "postpone_starts": {"published_at", "lease_ends_at"},
    "release_jobs": (_CLAIM - {"planned_at"})
    | {"ran_until", "last_run_time", "retry_at", "retry_run_id", "next_run_time", "enabled", "disabled_reason"},
    "pass_by_waiting": {"fence", "run_id", "claim_id", "retry_at", "retry_run_id"}
    | {"next_run_time", "enabled", "disabled_reason"},
    "advance_jobs": {"next_run_time", "enabled", "disabled_reason"},
    "repair_rows": {"next_run_time", "retry_at", "quarantine"},
    "quarantine_jobs": {"quarantine"},
    "release_orphan_locks": {"locked_by", "locked_at", "lease_ends_at", "run_id", "claim_id", "started_retry", "fence"},
    "pause_job": _OPERATOR,
    "resume_job": _OPERATOR | {"next_run_time"},
    "update_job": {"next_run_time", "quarantine", "version"},
    "request_delete": _OPERATOR | {"delete_requested"},
    "insert_jobs": set(JobRow._fields),
    "by_hand": set(JobRow._fields),
}
"""Which columns a statement may write at all."""


class JobChecks:
    """Checks every change of a job's row."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._fail = ledger.fail
        self._fences = ledger.fences
        self._last_fence = 0
        self._checks: dict[str, Callable[[Process, Call, JobRow, JobRow, str], None]] = {
            "claim_jobs": self._claimed,
            "mark_published": self._marked,
            "postpone_start_deadline": self._queued_on,
            "start_jobs": self._started,
            "extend_leases": self._extended,
            "postpone_starts": self._postponed,
            "release_jobs": self._released,
            "release_orphan_locks": self._freed,
            "pass_by_waiting": self._passed,
        }

    def changed(self, process: Process, call: Call, old: JobRow, new: JobRow, now: str) -> None:
        """Note that a row was written."""
        allowed = MAY_WRITE.get(call.block)
        if allowed is None:
            self._fail("G4", f"{call.block} writes a job's row", new.id)
            return
        for name, was, is_now in zip(JobRow._fields, old, new, strict=True):
            if was != is_now and name not in allowed:
                self._fail("G2", f"{call.block} changed {name} of {new.job_name}", new.id)
        if new.fence < old.fence:
            self._fail("G4", f"the fence of {new.job_name} fell from {old.fence} to {new.fence}", new.id)
        self._last_fence = self._fences.get(new.job_name, 0)
        self._fences[new.job_name] = max(new.fence, self._last_fence)
        if new.next_run_time != old.next_run_time and call.block not in ("by_hand", "update_job", "repair_rows"):
            self._moved(call, old, new)
        check = self._checks.get(call.block)
        if check is not None:
            check(process, call, old, new, now)

    def deleted(self, old: JobRow) -> None:
        """Note that a row is gone."""
        if old.locked_by is not None:
            self._fail("G2", f"{old.job_name} was deleted while a run holds it", old.id)

    def _moved(self, call: Call, old: JobRow, new: JobRow) -> None:
        if old.next_run_time is None:
            return
        if new.next_run_time is not None and new.next_run_time <= old.next_run_time:
            text = f"the next slot of {new.job_name} is {new.next_run_time}, not later than {old.next_run_time}"
            self._fail("G8", f"{call.block}: {text}", new.id)

    def _lasts(self, job: JobRow, now: str, seconds: float) -> None:
        if job.lease_ends_at is None or abs(seconds_from(now, job.lease_ends_at) - seconds) > _SLACK:
            self._fail("G8", f"the lease of {job.job_name} ends at {job.lease_ends_at}, not {seconds} s later", job.id)

    def _holder(self, call: Call, old: JobRow, new: JobRow) -> Any:
        """Return the row of the batch that may write.

        It names the run, the claim and the fence that hold the job.
        """
        for row in call.rows:
            if row[0] == old.id and (row[1], row[2], row[3]) == old.holder:
                return row
        given = [tuple(row[1:4]) for row in call.rows if row[0] == old.id]
        self._fail("G4", f"{call.block} of {given} wrote {new.job_name}, which {old.holder} holds", old.id)
        return None

    def _claimed(self, process: Process, call: Call, old: JobRow, new: JobRow, now: str) -> None:
        if old.locked_by is not None:
            self._fail("G1", f"{process.name} claimed {new.job_name}, which {old.locked_by} holds", new.id)
        read_at = new.claimed_at or now  # the clock may have been set since
        due = old.retry_at or old.next_run_time
        waiting = any(
            run.job_id == old.id and run.due_at is not None and run.due_at <= read_at
            for run in self._ledger.runs.values()
        )
        may_run = old.enabled or (old.disabled_reason == "finished" and waiting)  # an extra slot after the last one
        if not may_run or old.quarantine is not None:
            self._fail("G2", f"{process.name} claimed {new.job_name}, which is disabled", new.id)
        if not waiting and (due is None or due > read_at):
            self._fail("G2", f"{process.name} claimed {new.job_name} at {read_at}, which is due at {due}", new.id)
        if new.fence <= old.fence:
            self._fail("G4", f"a claim of {new.job_name} did not raise the fence", new.id)
        if new.fence <= self._last_fence:
            self._fail("G4", f"a claim of {new.job_name} has a fence that an earlier job of its name had", new.id)
        if new.claimed_at not in self._ledger.read_at.get(process.name, ()):
            self._fail("G8", f"a claim of {new.job_name} is dated {new.claimed_at}, when it was not read", new.id)
        self._lasts(new, now, self._ledger.settings.dispatch_timeout)

    def _marked(self, process: Process, call: Call, old: JobRow, new: JobRow, now: str) -> None:
        if self._holder(call, old, new) is not None and old.started_retry is not None:
            self._fail("G4", f"{process.name} marked {new.job_name} published, which a worker has started", new.id)

    def _queued_on(self, process: Process, call: Call, old: JobRow, new: JobRow, now: str) -> None:
        self._holder(call, old, new)
        if old.started_retry is not None or (old.lease_ends_at or "") > now:
            self._fail("G9", f"{process.name} extended the queueing of {new.job_name} too early", new.id)
        if new.republishes > MOST_REPUBLISHES:
            self._fail("G9", f"{new.job_name} is published again for the {new.republishes}th time", new.id)

    def _started(self, process: Process, call: Call, old: JobRow, new: JobRow, now: str) -> None:
        asked = [row for row in call.rows if row[0] == new.run_id]
        run = self._ledger.runs.get(new.run_id or "")
        if not asked or run is None:
            self._fail("G4", f"{process.name} started {new.job_name} without having asked", new.id)
            return
        _, claim_id, fence, start_id, retries = asked[0]
        if claim_id != run.claim_id or (fence != run.fence and run.prior_state != "dispatched"):
            self._fail("G4", f"a message of another claim started {new.job_name}", new.id)
        if old.locked_by is not None and old.run_id != new.run_id:
            self._fail("G1", f"{new.run_id} started although {old.run_id} holds {new.job_name}", new.id)
        if run.state not in ("claimed", "running", "dispatched"):
            self._fail("G3", f"an attempt that is {run.state} started: {new.job_name}", new.id)
        again = old.run_id == new.run_id and old.started_retry is not None
        if again and not (retries > (old.started_retry or 0) or start_id == run.start_id):
            self._fail("G3", f"an attempt of {new.job_name} started again with {retries} retries", new.id)
        self._lasts(new, now, run.lease_seconds)

    def _extended(self, process: Process, call: Call, old: JobRow, new: JobRow, now: str) -> None:
        row = self._holder(call, old, new)
        if row is not None:
            self._lasts(new, now, row[4])
            if self._ledger.runs[row[1]].started_by != old.locked_by:
                self._fail("G4", f"{process.name} extended {new.job_name}, which {old.locked_by} holds", new.id)

    def _postponed(self, process: Process, call: Call, old: JobRow, new: JobRow, now: str) -> None:
        asked = [row for row in call.rows if (row[0], row[1], row[2]) == old.holder]
        if not asked or (old.started_retry is not None and old.started_retry >= asked[0][3]):
            self._fail("G4", f"{process.name} postponed the start of {new.job_name}, which it cannot begin", new.id)
        if (new.lease_ends_at or "") < (old.lease_ends_at or ""):
            self._fail("G2", f"{process.name} moved the deadline of {new.job_name} back", new.id)

    def _released(self, process: Process, call: Call, old: JobRow, new: JobRow, now: str) -> None:
        row = self._holder(call, old, new)
        if row is None:
            return
        if new.locked_by is not None or new.run_id is not None:
            self._fail("G1", f"{new.job_name} was released, but is not free", new.id)
        if new.fence <= old.fence:
            self._fail("G4", f"the release of {new.job_name} did not raise the fence", new.id)
        run, state = self._ledger.runs[row[1]], row[5]
        if process.name.startswith("beat"):
            self._released_by_beat(process, call, old, run, state, now)
        self._follows(old, new, run, state, row[6], now)

    def _passed(self, process: Process, call: Call, old: JobRow, new: JobRow, now: str) -> None:
        if not any(row[0] == old.id and row[2] == old.fence for row in call.rows):
            self._fail("G4", f"{process.name} passed by a run of {new.job_name}, which has changed", new.id)
        if (old.locked_by is None) != (new.fence > old.fence):
            self._fail("G4", f"{process.name} passed by a run of {new.job_name} under fence {new.fence}", new.id)
        if old.locked_by is not None and old.run_id != new.run_id:
            self._fail("G1", f"{process.name} took {new.job_name} from {old.locked_by}", new.id)

    def _freed(self, process: Process, call: Call, old: JobRow, new: JobRow, now: str) -> None:
        if old.run_id in self._ledger.runs:
            self._fail("G1", f"{process.name} took {old.job_name} for a lock without a run", old.id)

    def _released_by_beat(self, process: Process, call: Call, old: JobRow, run: RunRow, state: str, now: str) -> None:
        has_begun = old.started_retry is not None
        if call.scalars["only_replaceable"]:
            self._replaced(process, old, run, state, now)
            return
        if call.scalars["only_ended"]:
            if run.exclusive and (old.lease_ends_at or "") > now:
                self._fail("G1", f"{process.name} took {old.job_name}, whose lease ends at {old.lease_ends_at}", old.id)
            if run.exclusive and has_begun:
                self._had_its_chance(process, old, now)
            elif old.published_at is None and self._ledger.is_its_beats(run.run_id, old.fence):
                age = self._ledger.hub.now - self._ledger.claimed[run.run_id, old.fence]
                text = f"{process.name} took {old.job_name} from {old.locked_by}, which claimed it {age:.2f} s ago"
                self._fail("G7", text, old.id)
        elif has_begun:
            self._fail("G4", f"{process.name} released {old.job_name} as {state}, which a worker has started", old.id)
        if run.exclusive and has_begun and state not in ("retry", "dlq"):
            self._fail("G2", f"a started run of {old.job_name} that lost its lease became {state}", old.id)

    def _replaced(self, process: Process, old: JobRow, run: RunRow, state: str, now: str) -> None:
        """Check a run that made room for the next slot of its job."""
        if state != "cancelled" or self._ledger.spec_of_run[run.run_id].overlap != "replace":
            self._fail("G4", f"{process.name} released {old.job_name} as {state}, which a worker has started", old.id)
        if old.started_retry is None:
            self._fail("G9", f"{process.name} replaced a run of {old.job_name} that nobody has begun", old.id)
        if old.replace_at is None or old.replace_at > now or not old.enabled:
            self._fail("G2", f"{process.name} replaced a run of {old.job_name} before the next slot came", old.id)
        self._ledger.replaced.add(run.run_id)

    def _had_its_chance(self, process: Process, old: JobRow, now: str) -> None:
        """After an outage or a clock jump the living can extend leases before they are taken."""
        ledger = self._ledger
        chance_since = ledger.hub.now - ledger.settings.heartbeat_interval
        if getattr(process, "back_at", -1.0) > chance_since:
            text = f"{process.name} took {old.job_name} from {old.locked_by} just after it could not reach the database"
            self._fail("G7", text, old.id)
        jumped = ledger.jumped_since(chance_since)
        if jumped and old.lease_ends_at is not None and seconds_from(old.lease_ends_at, now) < jumped:
            text = f"{process.name} took {old.job_name} from {old.locked_by} just after the clock was set"
            self._fail("G7", text, old.id)

    def _follows(
        self, old: JobRow, new: JobRow, run: RunRow, state: str, retry_seconds: float | None, now: str
    ) -> None:
        """Check what a job does next, after the end of a run that held it."""
        waits = retry_seconds is not None and (run.exclusive or run.state != "running")
        waits &= run.run_id not in self._ledger.asked
        if not run.advances:
            if new.next_run_time != old.next_run_time or new.retry_at != old.retry_at:
                self._fail("G8", f"an extra slot moved the schedule of {new.job_name}", new.id)
            return
        if waits:
            if new.next_run_time != old.next_run_time:
                self._fail("G10", f"{new.job_name} ended as {state}, and its next slot changed", new.id)
            if new.retry_at is None or abs(seconds_from(now, new.retry_at) - (retry_seconds or 0.0)) > _SLACK:
                self._fail("G10", f"{new.job_name} waits for its retry until {new.retry_at}", new.id)
            return
        if new.retry_at is not None:
            self._fail("G10", f"{new.job_name} ended as {state}, and waits for a retry", new.id)
        if old.next_run_time != run.seen_next_run_time:
            if new.next_run_time != old.next_run_time:
                self._fail("G8", f"an operator's next run of {new.job_name} was overwritten", new.id)
            return
        expected = following(self._ledger.spec_of_run[run.run_id], run, now)
        found = None if new.next_run_time is None else instant(new.next_run_time)
        if found not in expected:
            wanted = " or ".join(str(at) for at in expected)
            text = f"the slot after {run.scheduled_for} of {new.job_name} is {found}, not {wanted}"
            self._fail("G8", f"{text} ({self._ledger.spec_of_run[run.run_id].cadence}, {state})", new.id)


def following(spec: Spec, run: RunRow, now: str) -> list[datetime]:
    """Return the slot after the one of this run, reckoned anew."""
    slot = instant(run.scheduled_for)
    if spec.next_slot is not None:
        return [spec.next_slot(slot)]
    assert spec.interval is not None and run.claimed_at is not None
    step = timedelta(seconds=spec.interval)
    nearest = slot + step
    claimed_at = instant(run.claimed_at)
    caught_up = [nearest] if spec.misfire == "catch_up" and nearest <= claimed_at else []
    if spec.cadence == "fixed_rate":
        return [nearest]
    if spec.cadence == "fixed_delay":
        return [*caught_up, max(instant(now), slot) + step]
    return [*caught_up, claimed_at + step if claimed_at + step > slot else nearest]
