"""What may happen to a row of `JobRuns`.

Attempts follow one another, outcomes stay, a slot is recorded once.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from celery_sqlbeat.store.sql.session import load
from tests.simulation.database import Call
from tests.simulation.hub import Process
from tests.simulation.jobs import Spec
from tests.simulation.ledger import Ledger
from tests.simulation.rows import JobRow, RunRow, instant

FINAL = frozenset({"success", "dlq", "dispatched", "skipped", "cancelled"})
OPEN = frozenset({"scheduled", "claimed", "running"})
_SLACK = 0.002  # seconds
_DELETED = "job deleted"
_CONTINUES = load("sqlite")["insert_runs"].rows.names.index("continues")

MAY_CREATE = {"insert_runs", "insert_gaps", "insert_outbox"}
MAY_DELETE = {"purge_runs", "purge_old_runs", "purge_dead"}
MAY_WRITE = {"reopen_runs", "start_runs", "close_runs", "leave_attempts", "leave_dead", "cancel_waiting", "extend_held"}
MAY_WRITE |= {"refuse_starts", "end_results", "ask_runs", "cancel_runs"}


class RunChecks:
    """Checks every change of a run's row."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._fail = ledger.fail
        self._checks: dict[str, Callable[[Process, Call, RunRow, RunRow, str], None]] = {
            "reopen_runs": self._reopened,
            "start_runs": self._started,
            "close_runs": self._closed,
            "extend_held": self._extended,
            "refuse_starts": self._refused,
        }

    def created(self, process: Process, call: Call, new: RunRow, before: JobRow | None, now: str) -> None:
        """Note that a row was added. `before`: the job's row as it was before the transaction."""
        if call.block not in MAY_CREATE:
            self._fail("G2", f"{call.block} added a run of {new.job_name}", new.job_id)
        if call.block == "insert_runs":
            self._first_or_next(call, new, before, now)
        elif call.block == "insert_gaps":
            self._gap(new)
        elif new.state != "scheduled" or new.due_at != now:
            self._fail("G2", f"an extra slot of {new.job_name} does not wait in the outbox", new.job_id)
        elif any(one.state in OPEN for one in self._attempts(new)):
            self._fail("G2", f"{new.job_name} {new.scheduled_for} was replayed beside an open attempt", new.job_id)

    def deleted(self, call: Call, old: RunRow) -> None:
        """Note that a row is gone."""
        if call.block not in MAY_DELETE or (old.state in OPEN or old.due_at is not None):
            self._fail("G2", f"{call.block} deleted a run of {old.job_name} that is {old.state}", old.job_id)

    def changed(self, process: Process, call: Call, old: RunRow, new: RunRow, now: str) -> None:
        """Note that a row was written."""
        if call.block not in MAY_WRITE:
            self._fail("G4", f"{call.block} writes a run of {new.job_name}", new.job_id)
        is_late = old.state == "dispatched" and new.state == "running" and call.block == "start_runs"
        is_late |= old.state == "dispatched" and call.block in ("refuse_starts", "cancel_runs")
        if old.state in FINAL and new.state != old.state and not is_late:
            self._fail("G2", f"{call.block} made {new.state} of {new.job_name}, which was {old.state}", new.job_id)
        if (old.run_id, *old.slot, old.attempt) != (new.run_id, *new.slot, new.attempt):
            self._fail("G2", f"{call.block} made another slot of an attempt of {new.job_name}", new.job_id)
        if new.run_id in self._ledger.asked and new.state not in (old.state, "running", "cancelled"):
            self._fail("G2", f"a run of {new.job_name} that was cancelled became {new.state}", new.job_id)
        if call.block in ("ask_runs", "cancel_runs"):
            self._ledger.asked.add(new.run_id)
        check = self._checks.get(call.block)
        if check is not None:
            check(process, call, old, new, now)
        if new.state in FINAL and old.state not in FINAL:
            self._is_only_outcome(new)

    def _attempts(self, run: RunRow) -> list[RunRow]:
        """Return the other attempts of its slot, in their order."""
        found = [self._ledger.runs[run_id] for run_id in self._ledger.slots[run.slot]]
        return sorted((one for one in found if one.run_id != run.run_id), key=lambda one: one.attempt)

    def _may_repeat(self, run: RunRow) -> bool:
        """Whether an operator moved the job back, so that this slot may come once more."""
        moved = self._ledger.moved.get(run.job_id)
        return moved is not None and run.scheduled_for <= moved

    def _is_only_outcome(self, run: RunRow) -> None:
        others = [one for one in self._attempts(run) if one.state in FINAL and one.reason != "replayed"]
        if run.reason == _DELETED and all(one.reason == _DELETED for one in others):
            return  # the attempt that was unlocked by hand, and the one before it, end together with their job
        if others and not self._may_repeat(run):
            self._fail("G2", f"{run.job_name} {run.scheduled_for} is {run.state} and {others[0].state}", run.job_id)

    def _first_or_next(self, call: Call, new: RunRow, before: JobRow | None, now: str) -> None:
        row = next(row for row in call.rows if row[0] == new.run_id)
        if before is None or not any(new.claimed_at in instants for instants in self._ledger.read_at.values()):
            self._fail("G8", f"a claim of {new.job_name} is dated {new.claimed_at}", new.job_id)
            return
        earlier = self._attempts(new)
        continued = row[_CONTINUES]
        if continued is None:
            self._fresh(new, before, earlier, new.claimed_at or now)  # planned as of its reading
            return
        last = earlier[-1] if earlier else None
        if last is not None and self._may_repeat(new):
            # Its slot came once more, beside attempts of the first time that go on: numbers count
            # both.
            last = next((one for one in earlier if one.run_id == continued), last)
        if last is None or last.run_id != continued or earlier[-1].attempt != new.attempt - 1:
            self._fail("G2", f"attempt {new.attempt} of {new.job_name} does not follow the one before", new.job_id)
        else:
            self._follows(new, last)

    def _follows(self, new: RunRow, last: RunRow) -> None:
        if last.state not in ("retry", "running", "claimed"):
            self._fail("G2", f"an attempt of {new.job_name} follows one that is {last.state}", new.job_id)
        if (new.failures, new.lost_leases) != (last.failures, last.lost_leases):
            counted = f"{last.failures} failures and {last.lost_leases} lost leases"
            self._fail("G10", f"attempt {new.attempt} of {new.job_name} forgot {counted}", new.job_id)

    def _fresh(self, new: RunRow, before: JobRow, earlier: list[RunRow], now: str) -> None:
        if earlier and not self._may_repeat(new):
            self._fail("G2", f"the slot {new.scheduled_for} of {new.job_name} came a second time", new.job_id)
        due = before.next_run_time
        if due is None or due > now or not new.advances:
            return  # a retry that was written by hand, or is all that is left of one
        spec = self._ledger.spec_of_run[new.run_id]
        if new.scheduled_for > now or new.scheduled_for < due:
            self._fail("G9", f"{new.job_name}, due at {due}, claimed the slot {new.scheduled_for} at {now}", new.job_id)
        slot = instant(new.scheduled_for)
        if spec.misfire != "catch_up" and step(spec, slot) <= instant(now):
            self._fail("G9", f"{new.job_name} claimed {new.scheduled_for} at {now}: not the latest slot", new.job_id)
        came_during_a_run = before.ran_until is not None and due <= before.ran_until and due == before.planned_at
        if spec.overlap == "skip" and came_during_a_run:
            self._fail("G2", f"{new.job_name} runs at {new.scheduled_for}, which came during a run", new.job_id)
        first = instant(due)
        waited = self._ledger.runs.get(before.retry_run_id or "")
        if spec.overlap == "replace" and waited is not None and waited.scheduled_for < new.scheduled_for:
            first = step(spec, instant(waited.scheduled_for))  # it made room instead of being tried again
        if slot != first:
            gaps = [gap for gap in self._ledger.gaps[new.job_id] if instant(gap[0]) == first]
            if not gaps or step(spec, instant(gaps[-1][1])) != slot:
                text = f"the slots of {new.job_name} from {first} until before {new.scheduled_for} are not recorded"
                self._fail("G2", text, new.job_id)

    def _gap(self, new: RunRow) -> None:
        assert new.last_slot is not None
        if new.state != "skipped" or not new.reason or new.last_slot < new.scheduled_for:
            self._fail("G2", f"a gap of {new.job_name} is {new.state} for {new.reason}", new.job_id)
        moved = self._ledger.moved.get(new.job_id)
        if moved is not None and new.scheduled_for <= moved:
            return
        for one in self._ledger.runs.values():
            if one.job_id != new.job_id or one.kind != "schedule" or one.run_id == new.run_id:
                continue
            last = one.last_slot or one.scheduled_for
            if one.scheduled_for <= new.last_slot and last >= new.scheduled_for:
                what = f"{new.scheduled_for} to {new.last_slot} ({new.reason})"
                self._fail("G2", f"{new.job_name}: {what} has a slot that is {one.state}", new.job_id)
        spec = self._ledger.specs.get(new.job_id)
        if spec is not None and new.slot_count < 2000:
            at = instant(new.scheduled_for)
            for _ in range(new.slot_count - 1):
                at = step(spec, at)
            if at != instant(new.last_slot):
                self._fail("G2", f"a gap of {new.job_name} counts {new.slot_count} slots wrongly", new.job_id)

    def _reopened(self, process: Process, call: Call, old: RunRow, new: RunRow, now: str) -> None:
        if old.state not in ("scheduled", "claimed"):
            self._fail("G3", f"an attempt of {new.job_name} that is {old.state} was taken up again", new.job_id)

    def _started(self, process: Process, call: Call, old: RunRow, new: RunRow, now: str) -> None:
        row = next((row for row in call.rows if row[0] == new.run_id), None)
        if row is None or row[1] != old.claim_id:
            self._fail("G4", f"a message of another claim started a run of {new.job_name}", new.job_id)
            return
        if old.state not in ("claimed", "dispatched", "running"):
            self._fail("G3", f"an attempt of {new.job_name} that is {old.state} started", new.job_id)
        job = self._ledger.jobs.get(new.job_id)
        if old.state == "dispatched" and (job is None or job.delete_requested):
            self._fail("G2", f"a run of {new.job_name} began, which was deleted by then", new.job_id)
        again = old.state == "running"
        if again and not (row[4] > (old.started_retry or 0) or row[3] == old.start_id):
            self._fail("G3", f"an attempt of {new.job_name} started twice", new.job_id)

    def _refused(self, process: Process, call: Call, old: RunRow, new: RunRow, now: str) -> None:
        job = self._ledger.jobs.get(new.job_id)
        is_deleted = job is None or job.delete_requested
        if (new.state, new.reason) != (("cancelled", _DELETED) if is_deleted else ("skipped", "overlap")):
            self._fail("G2", f"{process.name} made {new.state} ({new.reason}) of a run of {new.job_name}", new.job_id)
        if not is_deleted and (old.reason != "never started" or job is None or job.locked_by is None):
            self._fail("G2", f"{process.name} skipped a run of {new.job_name} that could begin", new.job_id)

    def _extended(self, process: Process, call: Call, old: RunRow, new: RunRow, now: str) -> None:
        if not any((row[0], row[1], row[2]) == (old.run_id, old.claim_id, old.fence) for row in call.rows):
            self._fail("G4", f"{process.name} extended an overlapping run of {new.job_name}", new.job_id)

    def _closed(self, process: Process, call: Call, old: RunRow, new: RunRow, now: str) -> None:
        rows = [row for row in call.rows if (row[0], row[1], row[2]) == (old.run_id, old.claim_id, old.fence)]
        if not rows:
            self._fail("G4", f"{process.name} ended a run of {new.job_name} under another claim", new.job_id)
            return
        if old.state not in ("claimed", "running"):
            self._fail("G4", f"{process.name} ended a run of {new.job_name} that is {old.state}", new.job_id)
        failures, lost = new.failures - old.failures, new.lost_leases - old.lost_leases
        if process.name.startswith("beat"):
            self._closed_by_beat(process, old, new, failures, now)
        elif process.name.startswith("worker"):
            self._closed_by_worker(old, new, failures, lost)
        self._is_bounded(new, rows[0][8], failures, lost)

    def _closed_by_beat(self, process: Process, old: RunRow, new: RunRow, failures: int, now: str) -> None:
        # Where the broker refused only a copy of a message, its run may have begun all the same.
        is_refused = (old.run_id, old.fence) in self._ledger.refused and old.state == "claimed"
        is_refused &= new.state in ("retry", "dlq")
        if failures != int(is_refused):
            self._fail("G10", f"{process.name} counted {failures} failures of {new.job_name}", new.job_id)
        if new.state == "success":
            self._fail("G2", f"{process.name} said that a run of {new.job_name} succeeded", new.job_id)
        if not old.exclusive and old.state == "running" and (old.lease_ends_at or "") > now:
            self._fail("G1", f"{process.name} ended an overlapping run of {new.job_name} too early", new.job_id)

    def _closed_by_worker(self, old: RunRow, new: RunRow, failures: int, lost: int) -> None:
        result = self._ledger.results.get(new.run_id)
        if any(run_id == new.run_id for run_id, _ in self._ledger.bodies):
            self._fail("G1", f"a run of {new.job_name} became {new.state} while its task still runs", new.job_id)
        if lost:
            self._fail("G10", f"a worker counted a lost lease of {new.job_name}", new.job_id)
        if (new.state == "success") != (result == "success") and new.state in ("success", "retry", "dlq"):
            self._fail("G2", f"the body of {new.job_name} ended as {result}, its run as {new.state}", new.job_id)
        # A worker that has heard of a cancellation by then counts none.
        if failures != int(result == "failure") and (failures or new.run_id not in self._ledger.asked):
            self._fail("G10", f"{failures} failures of {new.job_name} for a body that ended as {result}", new.job_id)

    def _is_bounded(self, new: RunRow, retry_seconds: float | None, failures: int, lost: int) -> None:
        settings = self._ledger.settings
        if new.state == "retry":
            is_over = failures and new.failures > new.max_retries
            if is_over or (lost and new.lost_leases > settings.max_lost_leases):
                self._fail("G10", f"{new.job_name} is tried again after {new.failures} failures", new.job_id)
            longest = min(settings.retry_base * settings.retry_factor ** (new.failures - 1), settings.retry_max)
            if failures and not 0 <= (retry_seconds or 0.0) <= longest + _SLACK:
                self._fail("G10", f"{new.job_name} waits {retry_seconds} s, more than {longest}", new.job_id)
        if new.state == "dlq" and not (new.failures > new.max_retries or new.lost_leases > settings.max_lost_leases):
            self._fail("G10", f"{new.job_name} is a dead letter after {new.failures} failures", new.job_id)


def step(spec: Spec, slot: datetime) -> datetime:
    """Return the slot after this one, as far as no run comes between."""
    if spec.next_slot is not None:
        return spec.next_slot(slot)
    return slot + timedelta(seconds=spec.interval or 0.0)
