"""What is judged: the bodies' own account, the rows of JobRuns, and the faults that excuse it.

Independent of the code under test on purpose: neither this nor the rules import any of it.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from tests.chaos.witnesses import Body

OUTCOMES = {"success", "dlq", "dispatched", "cancelled", "skipped"}


class Run(NamedTuple):
    """A row of JobRuns."""

    run: str
    job: str
    kind: str
    slot: datetime
    last_slot: datetime | None
    slots: int
    attempt: int
    state: str
    reason: str | None
    fence: int
    failures: int
    lost_leases: int
    finished: datetime | None = None
    """When its end was recorded, by the server's clock."""


class Job(NamedTuple):
    """What is known of a job from its definition alone."""

    every: float
    """Seconds; its slots lie on a grid."""
    exclusive: bool
    max_retries: int
    always_fails: bool = False
    strategy: str | None = None
    """Of its task's own: "batch" runs bodies later and elsewhere, "at once" before it
    acknowledges."""
    is_deleted: str | None = None
    """Now and then, and defined again: "by the package" or "by hand"."""
    stores_result: bool = False
    max_runtime: float | None = None
    is_backlog: bool = False
    """Nobody consumes its queue until the storm is over."""


class Freeze(NamedTuple):
    """A time in which a worker, or its main process alone, stood still.

    What it ran may overlap its successor.
    """

    process: int
    since: float
    until: float
    went_on: float = math.inf
    """When it was told to go on; `until` is a moment later."""
    is_whole: bool = True
    """Whether the children of a main process stood still with it."""


class Kill(NamedTuple):
    """A process killed while everything else was well."""

    process: int
    is_beat: bool
    at: float


class Hang(NamedTuple):
    """A child of prefork that was stopped inside a body, for good."""

    run: str
    process: int
    """The main process of its worker."""
    at: float
    is_timed: bool
    """Whether everything else was well."""


class Doubt(NamedTuple):
    """A time in which connections of consumers broke.

    The broker may deliver what a plain worker still runs.
    """

    since: float
    until: float


class Limits(NamedTuple):
    """How long a fail-over may take, in seconds."""

    dispatch: float
    """Until others carry on with the jobs of a killed beat."""
    lease: float
    """Until the runs of a killed worker are taken over, and others carry on with its jobs."""
    stop: float = 10.0
    """From the end of a run's time until its end is on record."""
    queued: float = 0.0
    """Until the last deadline of a message that nobody takes."""
    unacknowledged: float = math.inf
    """Until the broker delivers again what a consumer still has and has not acknowledged."""


class History(NamedTuple):
    """Everything that is judged."""

    bodies: Sequence[Body]
    runs: Sequence[Run]
    jobs: Mapping[str, Job]
    freezes: Sequence[Freeze]
    until: datetime
    """Slots up to this instant must have their outcome."""
    max_lost_leases: int
    clock: float
    """What an instant's timestamp needs to be on the clock of the bodies."""
    kills: Sequence[Kill] = ()
    limits: Limits = Limits(5.0, 10.0)
    hangs: Sequence[Hang] = ()
    doubts: Sequence[Doubt] = ()
    child_kills: Sequence[Kill] = ()
    """Of a single child each, by its main process."""
    withheld: Collection[str] = ()
    """Runs of which a beat told that it sent no copy, since somebody without leases may have the
    message."""


def by_job(history: History) -> Mapping[str, list[Body]]:
    """Return the bodies of each job, in the order in which they began."""
    found: defaultdict[str, list[Body]] = defaultdict(list)
    for body in sorted(history.bodies, key=lambda body: body.began):
        found[body.job].append(body)
    return found


def by_run(history: History) -> Mapping[str, list[Body]]:
    """Return the bodies of each run, in the order in which they began."""
    found: defaultdict[str, list[Body]] = defaultdict(list)
    for body in sorted(history.bodies, key=lambda body: body.began):
        found[body.run].append(body)
    return found


def attempts_of(runs: Iterable[Run]) -> Mapping[tuple[str, datetime], list[Run]]:
    """Return the attempts of each slot in their order; a gap of skipped slots is no attempt."""
    found: defaultdict[tuple[str, datetime], list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.attempt):
        if run.attempt > 0:
            found[run.job, run.slot].append(run)
    return found


def was_frozen(body: Body, history: History) -> bool:
    """Whether its worker stood still while it ran."""
    return any(
        freeze.process == body.process and freeze.since <= body.last_seen and freeze.until >= body.began
        for freeze in history.freezes
    )


def stood_still_before(body: Body, history: History) -> bool:
    """Whether its process stood still between the last check of its lease and its first line.

    The check was over when the process went on, and the body had not begun.
    """
    return body.checked is not None and any(
        freeze.process == body.process
        and (freeze.is_whole or body.child == body.process)
        and body.checked <= freeze.went_on <= body.began
        for freeze in history.freezes
    )


def on_clock(instant: datetime, history: History) -> float:
    """Return an instant of the server on the clock of the bodies."""
    return instant.timestamp() + history.clock


def name_of(body: Body) -> str:
    """Return a body in words."""
    return f"attempt {body.attempt} of slot {body.slot} (fence {body.fence}, run {body.run})"
