"""What happens outside of the database: messages, bodies of tasks, stops. Observed at the edges."""

from celery_sqlbeat.config import stop_timeout
from celery_sqlbeat.model import StartedRun
from tests.simulation.broker import Message
from tests.simulation.hub import Process
from tests.simulation.ledger import Body, Ledger

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
        """A process hands a message to the broker."""
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
        if run.claim_id != message.claim or run.state == "scheduled":
            self._fail("G5", f"{process.name} published a claim of {run.job_name} that it has lost", run.job_id)

    def dropped(self, worker: Process, message: Message) -> None:
        """A worker was told that a message is stale."""
        run = self._ledger.runs.get(message.run)
        if run is None or run.claim_id != message.claim or run.fence != message.fence:
            return
        if self._ledger.results.get(message.run) == "stopped":
            return  # its release follows, and another attempt
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
        """A body begins."""
        ledger = self._ledger
        now = ledger.hub.now
        key = run.run_id, retries
        sent_at = max(ledger.granted[run.run_id, run.start_id], ledger.extended.get((worker.name, run.run_id), -1.0))
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
        """Replaced, frozen, taken away by an operator, cut off while the clock jumped: nobody can prevent it."""
        ledger = self._ledger
        if body.run_id in ledger.replaced:
            return True
        if body.worker.last_frozen[1] > body.sent_at or ledger.unlocked.get(body.job_id, -1.0) >= body.sent_at:
            return True
        return ledger.jumped_at > body.sent_at and ledger.hub.now > ledger.jumped_at + self._interval

    def told_to_stop(self, body: Body) -> None:
        """The worker stops a body."""
        if body.stopped_at is None:
            body.stopped_at = self._ledger.hub.now
            self._ledger.note(body.job_id, f"{body.worker.name} stops {body.run_id}")

    def ended(self, body: Body, how: str) -> None:
        """A body is gone."""
        self._ledger.bodies.pop((body.run_id, body.retries), None)
        how = how if body.stopped_at is None else "stopped"
        self._ledger.results[body.run_id] = how
        self._ledger.note(body.job_id, f"{body.worker.name}: {body.run_id} ended as {how}")

    def extended(self, worker: Process, run_ids: set[str], sent_at: float) -> None:
        """A heartbeat was committed that had been sent then."""
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
            if body.stopped_at is not None:
                continue
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
