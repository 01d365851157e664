"""What happens outside of the database: messages, bodies of tasks, stops. Observed at the edges."""

import math

from celery_sqlbeat.config.settings import stop_timeout
from celery_sqlbeat.model import StartedRun
from tests.simulation.broker import VANILLA, Message
from tests.simulation.hub import Process
from tests.simulation.ledger import Body, Ledger
from tests.simulation.rows import RunRow

MOST_COPIES = 1 + 3  # the message and its three republishes
_SLACK = 0.01  # seconds


class BodyChecks:
    """Checks what workers and beats do with messages and tasks."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._fail = ledger.fail
        settings = ledger.settings
        self._interval, self._failures = settings.heartbeat_interval, settings.heartbeat_failures

    def published(self, process: Process, message: Message) -> None:
        """Note that a process hands a message to the broker."""
        run = self._ledger.runs.get(message.run)
        if run is None:
            self._fail("G9", f"{process.name} published a message for {message.job_name} of no known run")
            return
        self._ledger.note(run.job_id, f"{process.name} publishes {message.run} fence {message.fence}")
        if message.retries:
            return
        key = message.run, message.claim, message.fence
        self._ledger.copies[key] += 1
        if self._ledger.copies[key] > MOST_COPIES:
            self._fail("G9", f"{self._ledger.copies[key]} messages for one claim of {run.job_name}", run.job_id)
        if message.queue == VANILLA:
            self._is_sent_once(process, message, run)
        # A worker may begin and give back the first copy while the beat is at the next, and another
        # beat may have claimed the run since; the fence drops that copy.
        was_given_back = self._ledger.copies[key] > 1 and (message.run, message.fence) in self._ledger.unbegun
        # An operator can take a claim from a beat that still has time for it, whose message is
        # stale then.
        claimed_at = self._ledger.claimed.get((message.run, message.fence), math.inf)
        is_unlocked = self._ledger.unlocked.get(run.job_id, -1.0) >= claimed_at
        is_lost = run.claim_id != message.claim or run.state == "scheduled"
        if is_lost and not was_given_back and not is_unlocked:
            self._fail("G5", f"{process.name} published a claim of {run.job_name} that it has lost", run.job_id)

    def _is_sent_once(self, process: Process, message: Message, run: RunRow) -> None:
        """Check that a fire-and-forget message is sent once: nobody would drop a second one."""
        ledger = self._ledger
        before = ledger.unleased.get(message.run)
        ledger.unleased[message.run] = message.fence
        if before is None or (message.run, before) in ledger.unconfirmed:
            return
        if any(started == message.run for started, _ in ledger.granted):
            return  # a worker that keeps leases got the first one after all, and gave it back
        is_unlocked = ledger.unlocked.get(run.job_id, -1.0) >= ledger.claimed[message.run, before]
        if ledger.is_its_beats(message.run, before) and not is_unlocked:
            text = f"{process.name} sent {run.job_name} a second time, which nobody drops, while its beat recorded it"
            self._fail("G7", text, run.job_id)

    def dropped(self, worker: Process, message: Message) -> None:
        """Note that a worker was told that a message is stale."""
        run = self._ledger.runs.get(message.run)
        if run is None or run.claim_id != message.claim or run.fence != message.fence:
            return
        if self._ledger.results.get(message.run) == "stopped":
            return  # its release follows, and another attempt
        if (message.run, message.retries - 1) in self._ledger.overdue:
            return  # that body was stopped for its max_runtime: a failure, so its own retry is not to begin
        if message.run in self._ledger.asked and message.retries:
            return  # somebody has cancelled it meanwhile
        job = self._ledger.jobs.get(run.job_id)
        if run.state == "dispatched" and job is not None and not job.delete_requested:
            text = (
                f"{worker.name} dropped a message of {run.job_name} that never started, and its row says nothing of it"
            )
            self._fail("G2", text, run.job_id)
        if job is None or not run.exclusive:
            return
        holds = job.holder == (message.run, message.claim, message.fence)
        is_new = job.started_retry is None or job.started_retry < message.retries
        if holds and is_new:
            text = f"{worker.name} dropped a message of {run.job_name} ({message.retries} retries) that may begin"
            self._fail("G3", text, run.job_id)

    def begins(self, worker: Process, run: StartedRun, retries: int) -> Body:
        """Return a body begins."""
        ledger = self._ledger
        now = ledger.hub.now
        key = run.run_id, retries
        sent_at = max(ledger.granted[run.run_id, run.start_id], ledger.extended.get((worker.name, run.run_id), -1.0))
        if run.run_id in self._ledger.cancelled:
            self._fail("G2", f"{worker.name} begins a run of {run.job_name} that was cancelled", run.job_id)
        if key in ledger.begun:
            self._fail("G3", f"attempt {run.attempt} of {run.job_name} begins twice ({retries} retries)", run.job_id)
        if any(run.run_id == other and retries < later for other, later in ledger.begun):
            self._fail("G3", f"{run.job_name} begins again between two of Celery's own retries", run.job_id)
        if now > sent_at + run.lease_seconds:
            self._fail("G5", f"a body of {run.job_name} begins after the end of its lease", run.job_id)
        body = Body(
            worker,
            run.run_id,
            run.job_id,
            run.claim_id,
            run.fence,
            retries,
            bool(run.exclusive),
            run.lease_seconds,
            now,
            sent_at,
        )
        if run.exclusive and not self._may_overlap(body):
            for other in ledger.running(run.job_id):
                if other.run_id != run.run_id and other.exclusive and not self._may_overlap(other):
                    text = f"{run.run_id} of {run.job_name} begins while {other.run_id} runs on {other.worker.name}"
                    self._fail("G1", text, run.job_id)
        ledger.begun.add(key)
        ledger.bodies[key] = body
        ledger.note(run.job_id, f"{worker.name} begins {run.run_id} with {retries} retries")
        return body

    def _may_overlap(self, body: Body) -> bool:
        """Tell whether an overlap cannot be prevented.

        Replaced, frozen, unlocked by hand, cut off in a jump.
        """
        ledger = self._ledger
        if body.run_id in ledger.replaced or (body.handed and body.stopped_at is not None):
            return True
        if body.worker.last_frozen[1] > body.sent_at or ledger.unlocked.get(body.job_id, -1.0) >= body.sent_at:
            return True
        return ledger.jumped_at > body.sent_at and ledger.hub.now > ledger.jumped_at + self._interval

    def told_to_stop(self, body: Body, is_overdue: bool) -> None:
        """Note that the worker stops a body; an overdue one keeps its lease until it is gone."""
        if is_overdue:
            body.overdue_at = self._ledger.hub.now
            self._ledger.did("overdue body")
            self._ledger.note(body.job_id, f"{body.worker.name} stops {body.run_id}, which is overdue")
        elif body.stopped_at is None:
            body.stopped_at = self._ledger.hub.now
            self._ledger.note(body.job_id, f"{body.worker.name} stops {body.run_id}")

    def ended(self, body: Body, how: str) -> None:
        """Note that a body is gone."""
        self._ledger.bodies.pop((body.run_id, body.retries), None)
        how = how if body.stopped_at is None else "stopped"
        if body.overdue_at is not None and how == "failure":
            self._ledger.overdue.add((body.run_id, body.retries))
        self._ledger.results[body.run_id] = how
        self._ledger.note(body.job_id, f"{body.worker.name}: {body.run_id} ended as {how}")

    def extended(self, worker: Process, run_ids: set[str], sent_at: float) -> None:
        """Note that a heartbeat was committed that had been sent then."""
        for run_id in run_ids:
            self._ledger.extended[worker.name, run_id] = sent_at
        asked_at = getattr(worker, "heartbeat_at", -1.0)  # before the tries that failed
        for body in self._ledger.bodies.values():
            if body.worker is worker and body.run_id in run_ids:
                if body.stopped_at is not None and asked_at > body.stopped_at:
                    self._fail("G5", f"{worker.name} extended {body.run_id}, which it has given up", body.job_id)
                body.sent_at = sent_at

    def watch(self) -> None:
        """Every body whose lease was not extended must have been told to stop in time."""
        now = self._ledger.hub.now
        for body in self._ledger.bodies.values():
            if body.stopped_at is not None or body.overdue_at is not None:
                continue  # it was told, whichever reason came first, and is gone in time
            interval = min(self._interval, body.lease_seconds / (self._failures + 1))
            longest = min(interval * (self._failures + 1), body.lease_seconds - stop_timeout(body.lease_seconds))
            if body.worker.last_frozen[1] > body.sent_at:
                # Frozen, the worker could do nothing; once it goes on it stops the task at once.
                if body.worker.last_frozen[1] + 1.0 >= now:
                    continue
                longest = max(longest, body.worker.last_frozen[1] + 1.0 - body.sent_at)
            if now > body.sent_at + longest + _SLACK:
                text = f"{body.worker.name} still runs {body.run_id}, extended {now - body.sent_at:.2f} s ago"
                self._fail("G5", text, body.job_id)
