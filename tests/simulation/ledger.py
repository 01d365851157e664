"""What really happened: rows as they were committed, messages, bodies.

The model that every check reads.

It is told by triggers, by the broker and by the pools, never by the code under test.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.model.one_offs import Cancellation
from tests.simulation.hub import Hub, Process
from tests.simulation.jobs import Spec
from tests.simulation.rows import JobRow, RunRow

_NOTICED = 2.0  # seconds; a clock that is set by less may as well have drifted
_TRACE = 400  # lines that are kept of each job

Slot = tuple[str, str, str]


class Violation(BaseException):
    """An invariant does not hold. No code under test may catch it."""

    def __init__(self, invariant: str, text: str, job: str | None) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant, self.text, self.job = invariant, text, job


@dataclass(eq=False)
class Body:
    """A task that runs, as its pool sees it."""

    worker: Process
    run_id: str
    job_id: str
    claim_id: str
    fence: int
    retries: int
    exclusive: bool
    lease_seconds: float
    since: float
    sent_at: float
    """When the last statement that gave or extended its lease was sent."""
    handed: bool = False
    """Whether a strategy of its task's own has it, which nobody can stop."""
    stopped_at: float | None = None
    """When its worker gave its lease up and told it to stop."""
    overdue_at: float | None = None
    """When it was told to stop for its `max_runtime`; its lease is kept until it is gone."""


@dataclass
class Ledger:
    """Everything that the checks know."""

    hub: Hub
    settings: Settings
    steps: int = 0
    jobs: dict[str, JobRow] = field(default_factory=dict)
    runs: dict[str, RunRow] = field(default_factory=dict)
    specs: dict[str, Spec] = field(default_factory=dict)
    """By job id, as the jobs are defined now."""
    spec_of_run: dict[str, Spec] = field(default_factory=dict)
    """As the job was defined when the run was claimed."""
    slots: dict[Slot, list[str]] = field(default_factory=lambda: defaultdict(list))
    purged: set[Slot] = field(default_factory=set)
    """Those whose outcome was deleted with the old history."""
    gaps: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    asked: set[str] = field(default_factory=set)
    """The runs that somebody has asked to cancel: they end so, or have ended before."""
    cancelled: set[str] = field(default_factory=set)
    """Those of them that are known to have ended: no body of theirs may begin."""
    moved: dict[str, str] = field(default_factory=dict)
    """The latest slot before which an operator has moved a job back: up to there slots may come
    twice."""
    bodies: dict[tuple[str, int], Body] = field(default_factory=dict)
    begun: set[tuple[str, int]] = field(default_factory=set)
    results: dict[str, str] = field(default_factory=dict)
    """How the latest body of a run ended."""
    overdue: set[tuple[str, int]] = field(default_factory=set)
    """Bodies that were stopped for their `max_runtime`, which is a failure whatever they say, by
    run and retries."""
    granted: dict[tuple[str, str], float] = field(default_factory=dict)
    """When the statement was sent that began a run, by run and start."""
    unbegun: set[tuple[str, int]] = field(default_factory=set)
    """Claims that a worker gave back before a body began, by run and fence."""
    extended: dict[tuple[str, str], float] = field(default_factory=dict)
    """When the latest statement was sent that extended a run, by worker and run."""
    refused: set[tuple[str, int]] = field(default_factory=set)
    """Claims that no message could be made of, by run and fence."""
    unconfirmed: set[tuple[str, int]] = field(default_factory=set)
    """Messages of which their beats cannot know whether the broker has them, by run and fence."""
    claimed: dict[tuple[str, int], float] = field(default_factory=dict)
    """When a run was claimed, by run and fence: by no clock that can be set."""
    read_at: dict[str, set[str | None]] = field(default_factory=dict)
    """When each beat read the due jobs of its batch, by the server's clock."""
    unleased: dict[str, int] = field(default_factory=dict)
    """The fence of the latest message of each run whose queue no worker consumes that keeps
    leases."""
    fences: dict[str, int] = field(default_factory=dict)
    """The highest fence that was seen of a job, by its name: it outlives the job."""
    replaced: set[str] = field(default_factory=set)
    """Runs that made room for the next slot: their bodies go on until their workers have heard of
    it."""
    unlocked: dict[str, float] = field(default_factory=dict)
    """When an operator last took a job from its run."""
    touched: dict[str, float] = field(default_factory=dict)
    """When a job's row was last written."""
    edits: dict[tuple[str, int], Spec] = field(default_factory=dict)
    """What an operator is about to write, by job and version."""
    copies: dict[tuple[str, str, int], int] = field(default_factory=lambda: defaultdict(int))
    jumps: list[tuple[float, float]] = field(default_factory=list)
    """When the server's clock was set, and by how much."""
    violation: Violation | None = None
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _trace: dict[str | None, deque[tuple[int, float, str]]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_TRACE))
    )

    def fail(self, invariant: str, text: str, job_id: str | None = None) -> None:
        """End the simulation: an invariant does not hold."""
        violation = Violation(invariant, text, job_id)
        if self.violation is None:
            self.violation = violation
        raise violation

    def note(self, job_id: str | None, text: str) -> None:
        """Add a line to the trace, of one job or of all."""
        self._trace[job_id].append((self.steps, self.hub.now, text))

    def acknowledged(self, run_id: str, answer: Cancellation) -> None:
        """Note what somebody was told who has cancelled a run."""
        run = self.runs.get(run_id)
        if run is None or not (answer.is_done or answer.is_asked):
            return
        self.did("cancellation")
        if run_id not in self.asked or (answer.is_done and run.state != "cancelled"):
            self.fail("G2", f"a run of {run.job_name} is {run.state}, and was said to be cancelled", run.job_id)
        if answer.is_done:
            self.cancelled.add(run_id)

    def did(self, what: str) -> None:
        """One step of the simulation."""
        self.steps += 1
        self.counts[what] += 1

    def trace(self, job_id: str | None, lines: int) -> Iterable[str]:
        """Return the last lines about a job, and about everything."""
        found = list(self._trace[None]) + (list(self._trace[job_id]) if job_id is not None else [])
        for step, at, text in sorted(found, key=lambda line: line[0])[-lines:]:
            yield f"{step:>8} {at:>10.3f}  {text}"

    @property
    def jumped_at(self) -> float:
        """When the server's clock was set last."""
        return self.jumps[-1][0] if self.jumps else -1e9

    def jumped_since(self, at: float) -> float:
        """By how much the server's clock was set forward since then."""
        return sum(seconds for when, seconds in self.jumps if when >= at and seconds > _NOTICED)

    @property
    def set_back(self) -> float:
        """How many seconds the server's clock still has to go until it is where it was before."""
        at = highest = 0.0
        for _, seconds in self.jumps:
            at += seconds
            highest = max(highest, at)
        return highest - at

    def is_its_beats(self, run_id: str, fence: int) -> bool:
        """Whether the beat that claimed a run can still publish and record it.

        It has a dispatch timeout for that.

        A clock that was set by little may as well have drifted, so the claim may end earlier by
        that.
        """
        at = self.claimed[run_id, fence]
        drifted = _NOTICED + sum(seconds for when, seconds in self.jumps if when >= at and 0 < seconds <= _NOTICED)
        return self.hub.now - at + drifted < self.settings.dispatch_timeout

    def running(self, job_id: str) -> list[Body]:
        """Return the bodies of a job that run now."""
        return [body for body in self.bodies.values() if body.job_id == job_id]

    def differences(self, old: Any, new: Any) -> str:
        """Return what changed in a row, for the trace."""
        if old is None:
            return "new"
        pairs = zip(old._fields, old, new, strict=True)
        return ", ".join(f"{name} {was!r} -> {now!r}" for name, was, now in pairs if was != now)
