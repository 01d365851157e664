"""Take every statement, change and message into the ledger, and let the checks read it."""

from typing import Any

from tests.simulation.body_checks import BodyChecks
from tests.simulation.broker import Message
from tests.simulation.copy_checks import CopyChecks
from tests.simulation.database import Call, Change
from tests.simulation.hub import Process
from tests.simulation.job_checks import JobChecks
from tests.simulation.ledger import Ledger
from tests.simulation.rows import JobRow, RunRow
from tests.simulation.run_checks import FINAL, RunChecks


class Witness:
    """Sees all that happens."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.job_checks = JobChecks(ledger)
        self.run_checks = RunChecks(ledger)
        self.body_checks = BodyChecks(ledger)
        self.copy_checks = CopyChecks(ledger)

    def statement(self, process: Process, name: str) -> None:
        """Note that a statement is about to run."""
        self.ledger.did("statement")

    def due_read(self, process: Process, name: str, instants: set[str | None]) -> None:
        """Note that a beat has read due jobs: a claim is dated by that."""
        before = set[str | None]() if name == "read_outbox" else self.ledger.read_at.get(process.name, set())
        self.ledger.read_at[process.name] = before | instants

    def published(self, process: Process, message: Message) -> None:
        """Note that a process hands a message to the broker."""
        self.ledger.did("publish")
        self.body_checks.published(process, message)
        run = self.ledger.runs.get(message.run)
        if run is not None and not message.retries:
            self.copy_checks.published(process, message, run.job_id)

    def refused(self, run_id: str, fence: int) -> None:
        """No message can be made of a claim."""
        self.ledger.refused.add((run_id, fence))

    def unconfirmed(self, run_id: str, fence: int) -> None:
        """Note that its sender cannot know whether the broker has a message."""
        self.ledger.unconfirmed.add((run_id, fence))

    def delivered(self, message: Message) -> None:
        """Note that a worker gets a message."""
        self.ledger.did("delivery")

    def committed(self, process: Process, sent_at: float, calls: list[Call], changes: list[Change], now: str) -> None:
        """Note that a transaction changed rows; they are judged in the order of writing."""
        ledger = self.ledger
        before: dict[str, JobRow] = {}
        held: list[JobRow] = []
        extended: set[str] = set()
        for at, table, _, *values in changes:
            if table == "JobRuns" and calls[at].block == "insert_gaps":
                gap = RunRow._make(values)
                ledger.gaps[gap.job_id].append((gap.scheduled_for, gap.last_slot or gap.scheduled_for))
        for at, table, is_there, *values in changes:
            call = calls[at]
            if table == "Jobs":
                job = JobRow._make(values)
                before.setdefault(job.id, ledger.jobs.get(job.id, job))
                self._job(process, call, job, bool(is_there), now)
                if call.block == "claim_jobs":
                    held.append(job)
                elif call.block == "extend_leases" and job.run_id is not None:
                    extended.add(job.run_id)
            else:
                run = RunRow._make(values)
                old = ledger.runs.get(run.run_id, run)
                if (old.state, run.state, run.reason) == ("running", "scheduled", "not begun"):
                    ledger.unbegun.add((run.run_id, run.fence))
                self._run(process, call, run, bool(is_there), before.get(run.job_id), now)
                if call.block == "extend_held":
                    extended.add(run.run_id)
                elif call.block == "start_runs":
                    ledger.granted[run.run_id, run.start_id or ""] = sent_at
        self._records_its_slots(held)
        if extended:
            self.body_checks.extended(process, extended, sent_at)

    def _job(self, process: Process, call: Call, new: JobRow, is_there: bool, now: str) -> None:
        ledger = self.ledger
        old = ledger.jobs.get(new.id)
        ledger.note(new.id, f"{process.name} {call.block}: {ledger.differences(old, new) if is_there else 'deleted'}")
        if not is_there:
            self.job_checks.deleted(new)
            del ledger.jobs[new.id]
            return
        if old is not None:
            self.job_checks.changed(process, call, old, new, now)
            self._by_operator(process, call, old, new)
        if call.block == "claim_jobs" and new.run_id is not None:
            ledger.spec_of_run[new.run_id] = ledger.specs[new.id]
            ledger.claimed[new.run_id, new.fence] = ledger.hub.now
        ledger.jobs[new.id] = new
        ledger.touched[new.id] = ledger.hub.now

    def _by_operator(self, process: Process, call: Call, old: JobRow, new: JobRow) -> None:
        """Note what an operator did, so that nobody else is blamed for it."""
        ledger = self.ledger
        if process.name != "operator":
            return
        ledger.specs[new.id] = ledger.edits.pop((new.id, new.version), ledger.specs[new.id])
        if old.locked_by is not None and new.locked_by is None:
            ledger.unlocked[new.id] = ledger.hub.now
        if new.next_run_time != old.next_run_time and call.block != "resume_job":
            slots = [run.last_slot or run.scheduled_for for run in ledger.runs.values() if run.job_id == new.id]
            ledger.moved[new.id] = max([ledger.moved.get(new.id, ""), old.next_run_time or "", *slots])

    def _run(self, process: Process, call: Call, new: RunRow, is_there: bool, before: JobRow | None, now: str) -> None:
        ledger = self.ledger
        old = ledger.runs.get(new.run_id)
        text: Any = ledger.differences(old, new) if is_there else "deleted"
        if old is None:
            text = f"{new.kind} {new.scheduled_for}, attempt {new.attempt}, {new.state} {new.reason or ''}"
        ledger.note(new.job_id, f"{process.name} {call.block} {new.run_id}: {text}")
        if not is_there:
            self.run_checks.deleted(call, new)
            del ledger.runs[new.run_id]
            ledger.slots[new.slot].remove(new.run_id)
            if new.state in FINAL:
                ledger.purged.add(new.slot)
            return
        if old is None:
            self.run_checks.created(process, call, new, before, now)
            ledger.slots[new.slot].append(new.run_id)
        else:
            self.run_checks.changed(process, call, old, new, now)
        ledger.runs[new.run_id] = new

    def _records_its_slots(self, held: list[JobRow]) -> None:
        """Check that a claim and the record of its slot are one transaction."""
        for job in held:
            run = self.ledger.runs.get(job.run_id or "")
            if run is None or (run.claim_id, run.fence, run.state) != (job.claim_id, job.fence, "claimed"):
                self.ledger.fail("G2", f"{job.job_name} is claimed, and its slot is not recorded", job.id)
